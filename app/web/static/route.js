// The address. Its hash names what is shown, and a filter of what waits: any view is a link, and the way back works.
import { signal } from "./ui.js";

const DETAILS = ["why", "queue"];

const pathOfHash = () => location.hash.split("?")[0] || "#/";

function read() {
  const [, kind = "", ...names] = pathOfHash().split("/");
  try {
    return { kind, names: names.map(decodeURIComponent) };
  } catch {
    return { kind: "", names: [] };
  }
}

const readFilter = () => new URLSearchParams(location.hash.split("?")[1]).get("filter") ?? "";

export const route = signal(read());
/** Grows with each journey, also one to where the reader already is. */
export const journeys = signal(0);
export const filter = signal(readFilter());

export const isDetail = ({ kind }) => DETAILS.includes(kind);

/** The hash of a part of the first page with the filter as it is. */
export const overviewHref = (path = "#/") => (filter.value ? `${path}?${new URLSearchParams({ filter: filter.value })}` : path);

/** Filter what waits. The way back leads to the list without this filter, and not through its letters. */
export function narrow(text) {
  const isOther = !filter.value || !text;
  filter.value = text;
  history[isOther ? "pushState" : "replaceState"](null, "", overviewHref(pathOfHash()));
}

window.addEventListener("hashchange", () => {
  route.value = read();
  // A page of one pod or queue has no list: its way back leads to the list as it was.
  if (!isDetail(route.value)) filter.value = readFilter();
  journeys.value += 1;
});
