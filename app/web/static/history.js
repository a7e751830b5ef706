// What this page has seen of each queue since it was opened, for an hour at most. Nothing is stored elsewhere.
import { signal } from "./ui.js";

export const EVERY_MS = 10_000;
export const KEPT_MS = 3_600_000;
export const SERIES = ["allocatedMilli", "fairShareMilli", "deservedMilli", "requestedMilli"];

/** When the first point was taken, by the server's clock in milliseconds; null before it. */
export const seenSince = signal(null);
/** Grows with each point. */
export const points = signal(0);

const times = [];
const series = new Map();

export function rememberQueues(queues, time) {
  const at = Date.parse(time);
  if (Number.isNaN(at) || at - (times.at(-1) ?? -Infinity) < EVERY_MS) return;
  times.push(at);
  for (const [name, row] of queues) {
    let seen = series.get(name);
    if (!seen) series.set(name, (seen = SERIES.map(() => Array(times.length - 1).fill(null))));
    SERIES.forEach((of, i) => seen[i].push(row[of]));
  }
  for (const [name, seen] of series) if (!queues.has(name)) seen.forEach((values) => values.push(null));
  while (at - times[0] > KEPT_MS) {
    times.shift();
    for (const [name, seen] of series) {
      seen.forEach((values) => values.shift());
      if (!queues.has(name) && seen[0].every((value) => value === null)) series.delete(name);
    }
  }
  seenSince.value ??= at;
  points.value += 1;
}

/** Return the times in seconds, and one list of GPUs for each of SERIES. */
export function seenOf(queue) {
  const values = series.get(queue) ?? SERIES.map(() => []);
  return [times.map((at) => at / 1000), ...values.map((each) => each.map((milli) => (milli === null ? null : milli / 1000)))];
}
