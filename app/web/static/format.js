// Numbers, times and names as people read them. What was not measured is "–", never 0.
import { html, signal } from "./ui.js";

export const NOT_KNOWN = "–";

/** Milliseconds that the server's clock is ahead of ours. */
let aheadMs = 0;

export function setClock(serverTime) {
  const read = Date.parse(serverTime);
  if (!Number.isNaN(read)) aheadMs = read - Date.now();
}

export const serverNow = () => Date.now() + aheadMs;

/** Grows each second, and each ten seconds: what shows an age reads one of them. */
export const second = signal(0);
export const tenSeconds = signal(0);
setInterval(() => {
  second.value += 1;
  if (second.value % 10 === 0) tenSeconds.value += 1;
}, 1000);

export const gpus = (milli) => (milli === null || milli === undefined ? NOT_KNOWN : String(Math.round(milli) / 1000));

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

export const gpuText = (milli) => `${gpus(milli)} ${milli > 0 && milli <= 1000 ? "GPU" : "GPUs"}`;

/** An age in at most two units, as kubectl prints them. */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s}s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 120) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 8 && minutes % 60) return `${hours}h${minutes % 60}m`;
  return hours < 48 ? `${hours}h` : `${Math.floor(hours / 24)}d`;
}

// A formatter costs far more to make than to use.
const formatter = (options) => {
  let made;
  return () => (made ??= new Intl.DateTimeFormat([], { timeStyle: "medium", hourCycle: "h23", ...options }));
};
const onClock = formatter({});
const inFull = formatter({ dateStyle: "medium" });

/** A time of the day, and a whole date, of milliseconds or of a text of RFC 3339. */
const formatted = (made, time) => (Number.isNaN(+new Date(time)) ? NOT_KNOWN : made().format(new Date(time)));
export const clock = (time) => formatted(onClock, time);
export const dateAndTime = (time) => formatted(inFull, time);

export function Age({ since }) {
  tenSeconds.value;
  const at = Date.parse(since ?? "");
  if (Number.isNaN(at)) return NOT_KNOWN;
  return html`<time datetime=${since} title=${dateAndTime(at)}>${duration((serverNow() - at) / 1000)}</time>`;
}

/** A name of the cluster. It is text of strangers: isolated, so that it cannot reorder what stands around it. */
export const Name = ({ text }) => html`<bdi class="name" title=${text.length > 40 ? text : null}>${text}</bdi>`;

export const memory = (mib) => (mib === null || mib === undefined ? NOT_KNOWN : `${Math.round(mib / 102.4) / 10} GiB`);

export const whyHref = (namespace, name) => `#/why/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

export const queueHref = (name) => `#/queue/${encodeURIComponent(name)}`;
