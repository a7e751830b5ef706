// The keyboard: single letters, and two-letter journeys that begin with g.
import { askAgain } from "./explanation.js";
import { areKeysOn, openHelp } from "./help.js";
import { isSpoken } from "./header.js";
import { isDetail, overviewHref, route } from "./route.js";
import { retryNow } from "./stream.js";
import { catchUp } from "./waiting.js";

const JOURNEYS = { c: "#/cluster", q: "#/queues", w: "#/waiting", h: "#/" };
const JOURNEY_MS = 1500;

let journeyUntil = 0;

const isTyping = (target) => target.closest?.("input, textarea, select, dialog");

function step(by) {
  const at = document.activeElement?.closest("[data-row]");
  const region = at?.closest(".region") ?? document.getElementById("waiting");
  const rows = [...(region?.querySelectorAll("[data-row]") ?? [])];
  const next = rows[at ? Math.max(0, Math.min(rows.length - 1, rows.indexOf(at) + by)) : 0];
  next?.querySelector("[data-go]")?.focus();
}

function refresh() {
  catchUp();
  askAgain();
  retryNow();
}

function back() {
  if (isDetail(route.value)) location.hash = overviewHref();
}

function filter() {
  if (!document.getElementById("filter")) location.hash = overviewHref("#/waiting");
  // The overview may only now be drawn.
  requestAnimationFrame(() => document.getElementById("filter")?.focus());
}

const LETTERS = {
  "?": openHelp,
  "/": filter,
  j: () => step(1),
  k: () => step(-1),
  r: refresh,
  m: () => (isSpoken.value = !isSpoken.value),
};

export function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event.target)?.id === "filter") return event.target.blur();
  if (isTyping(event.target)) return;
  if (event.key === "Escape") return back();
  if (!areKeysOn.value) return;
  if (event.key === "g") return void (journeyUntil = Date.now() + JOURNEY_MS);
  if (Date.now() < journeyUntil && event.key in JOURNEYS) {
    journeyUntil = 0;
    event.preventDefault();
    // The same hash again is a journey too.
    const there = overviewHref(JOURNEYS[event.key]);
    if (location.hash === there) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = there;
    return;
  }
  const act = LETTERS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
