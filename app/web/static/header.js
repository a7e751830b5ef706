// The first line: how many GPUs are free, the largest gang that fits now, and how old the picture is.
import { effect, html, signal } from "./ui.js";
import { clock, count, duration, gpus, gpuText, second, serverNow } from "./format.js";
import { openHelp } from "./help.js";
import { connection, heardAt, retryNow } from "./stream.js";
import { facts, leftOut, waiting } from "./store.js";
import { nextTheme, theme } from "./theme.js";

const FIGURES = [
  ["free", "free"],
  ["allocated", "held"],
  ["reserved", "reserved"],
  ["unhealthy", "unhealthy"],
  ["unmanaged", "not managed"],
];
const SPOKEN_EVERY_MS = 5000;

/** Whether changes are read out. */
export const isSpoken = signal(true);

function largest(gangs) {
  const fitting = gangs.filter(({ pods }) => pods > 0).sort((a, b) => b.gpus - a.gpus);
  if (!fitting.length) return "none";
  return fitting.map(({ gpus: each, pods }) => `${count(pods, "pod")} of ${gpuText(each * 1000)}`).join(" or ");
}

function staleness() {
  const { is, since, sentence } = connection.value;
  const { stale } = facts.value;
  if (is === "lost") return { since, sentence: `${sentence}; trying again` };
  return stale && { since: Date.parse(stale.since), sentence: stale.sentence };
}

function Status() {
  second.value;
  const old = staleness();
  if (old) {
    return html`<p class="status stale">
      <strong>STALE since ${clock(old.since)}</strong> <span>${old.sentence}</span>${" "}
      ${connection.value.is === "lost" && html`<button onClick=${retryNow}>Try now</button>`}
    </p>`;
  }
  const { plan, active } = facts.value;
  return html`<p class="status">
    <strong class="live">live</strong>, heard ${duration((Date.now() - heardAt) / 1000)} ago
    ${plan.at && html`<span>; plan of ${clock(plan.at)}${plan.milliseconds !== null && `, ${plan.milliseconds} ms`}</span>`}
    ${!active && html`<span>; this replica does not decide</span>`} <span class="quiet">server time ${clock(serverNow())}</span>
  </p>`;
}

export function Header() {
  const state = facts.value;
  return html`<header>
    <h1><a href="#/">Leeboard</a></h1>
    ${state &&
    html`<dl class="figures">
        ${FIGURES.map(([key, name]) => html`<div class=${`figure ${key}`}><dt>${name}</dt><dd>${gpus(state.summary.gpuMilli[key])}</dd></div>`)}
        <div class="figure"><dt>of GPUs</dt><dd>${gpus(state.summary.gpuMilli.total)}</dd></div>
        <div class="figure"><dt>PodGroups wait</dt><dd>${waiting.value.length + leftOut.value}</dd></div>
      </dl>
      <p class="fits"><b>Largest gang that fits now:</b> ${largest(state.summary.largestGangs)}</p>
      <${Status} />
      ${state.incomplete && html`<p class="note">${state.incomplete}</p>`}`}
    <p class="row tools">
      <button onClick=${nextTheme} aria-label=${`Colours: ${theme.value}`}>${theme.value}</button>
      <button onClick=${openHelp}>Help <kbd>?</kbd></button>
    </p>
  </header>`;
}

const spoken = signal("");
let [spokenAt, timer] = [0, null];

function summary() {
  const old = staleness();
  if (old) return `Stale since ${clock(old.since)}: ${old.sentence}`;
  const { free } = facts.value.summary.gpuMilli;
  return `${gpuText(free)} free, ${count(waiting.value.length + leftOut.value, "PodGroup")} waiting.`;
}

effect(() => {
  if (!facts.value) return;
  const text = summary();
  clearTimeout(timer);
  timer = setTimeout(() => {
    spokenAt = Date.now();
    spoken.value = isSpoken.value ? text : "";
  }, Math.max(0, spokenAt + SPOKEN_EVERY_MS - Date.now()));
});

/** One sentence for screen readers, at most every five seconds and only when it changes. */
export const Spoken = () => html`<p class="off-screen" aria-live="polite" id="spoken">${spoken.value}</p>`;
