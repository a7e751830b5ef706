// The tree of queues: one bar a queue, its numbers, and a line of what the page has seen of it.
import { computed, html, signal } from "./ui.js";
import { clock, count, gpus, gpuText, Name, queueHref } from "./format.js";
import { useGradual } from "./gradual.js";
import { KEPT_MS, points, seenOf, seenSince } from "./history.js";
import { lookOf, looks, Swatch } from "./looks.js";
import { facts, queues } from "./store.js";

const NO_QUEUE = "pods without a queue";
/** Larger trees begin with their first two levels. */
const MOST_OPEN = 60;
const SPARK_POINTS = 60;
/** The cost of drawing a row, in cells of the cluster. */
const A_ROW = 15;

/** The queues whose state is not the first one. */
const turned = signal(new Set());

/** The tree in the order of drawing: rows with their level. The row of pods without a queue comes last. */
const tree = computed(() => {
  const below = new Map();
  for (const row of queues.value.values()) {
    if (!row.key) continue;
    const parent = queues.value.has(row.parent) && row.parent !== row.key ? row.parent : "";
    below.set(parent, [...(below.get(parent) ?? []), row]);
  }
  for (const rows of below.values()) rows.sort((a, b) => b.priority - a.priority || (a.key < b.key ? -1 : 1));
  const isSmall = queues.value.size <= MOST_OPEN;
  const found = [];
  const walk = (parent, level) => {
    for (const row of below.get(parent) ?? []) {
      const hasMore = below.has(row.key);
      const isOpen = hasMore && (isSmall || level < 2) !== turned.value.has(row.key);
      found.push({ row, level, hasMore, isOpen });
      if (isOpen) walk(row.key, level + 1);
    }
  };
  walk("", 1);
  const nobody = queues.value.get("");
  if (nobody) found.push({ row: nobody, level: 1, hasMore: false, isOpen: false });
  return found;
});

/** How many thousandths a whole bar is: as much as the cluster has, or more if a queue has or wants more. */
const scale = computed(() => {
  const total = facts.value?.summary.gpuMilli.total ?? 0;
  let most = Math.max(total, 1000);
  for (const { allocatedMilli, deservedMilli, requestedMilli } of queues.value.values()) {
    most = Math.max(most, allocatedMilli ?? 0, Math.min(deservedMilli ?? 0, 2 * total), Math.min(requestedMilli ?? 0, 2 * total));
  }
  return most;
});

function toggle(name) {
  const next = new Set(turned.value);
  if (!next.delete(name)) next.add(name);
  turned.value = next;
}

export function barText({ allocatedMilli, deservedMilli, fairShareMilli, limitMilli, requestedMilli }) {
  const limit = limitMilli === null ? "no limit" : `limit ${gpus(limitMilli)}`;
  const deserved = deservedMilli === null ? "deserves any number" : `deserves ${gpus(deservedMilli)}`;
  return `holds ${gpus(allocatedMilli)}, ${deserved}, fair share ${gpus(fairShareMilli)}, asks for ${gpus(requestedMilli)}, ${limit}`;
}

export function QueueBar({ row }) {
  const part = (milli) => `${Math.min(100, (100 * milli) / scale.value)}%`;
  const tick = (milli, classes) =>
    milli !== null && milli !== undefined && milli <= scale.value && html`<i class=${classes} style=${{ left: part(milli) }}></i>`;
  return html`<div class="queue-bar" role="img" aria-label=${barText(row)} title=${barText(row)}>
    <i class="ghost" style=${{ width: part(row.requestedMilli ?? 0) }}></i>
    <i class="held ${row.key ? lookOf(row.key).classes : "hue-foreign"}" style=${{ width: part(row.allocatedMilli ?? 0) }}></i>
    ${row.key && html`${tick(row.deservedMilli, "tick deserved")} ${tick(row.fairShareMilli, "tick fair")} ${tick(row.limitMilli, "wall")}`}
  </div>`;
}

function Sparkline({ queue }) {
  points.value;
  const [times, allocated] = seenOf(queue);
  const most = Math.max(1, ...allocated);
  const step = Math.max(1, Math.ceil(allocated.length / SPARK_POINTS));
  const [width, height] = [KEPT_MS / 1000, 20];
  const xy = [];
  for (let i = allocated.length - 1; i >= 0; i -= step) {
    if (allocated[i] === null) continue;
    xy.push(`${Math.round(width - (times.at(-1) - times[i]))},${(height - 1 - (allocated[i] / most) * (height - 2)).toFixed(1)}`);
  }
  const known = allocated.filter((each) => each !== null);
  const text = known.length ? `held between ${Math.min(...known)} and ${Math.max(...known)} GPUs` : "nothing seen yet";
  return html`<svg class="spark" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" role="img" aria-label=${text}>
    <polyline points=${xy.join(" ")} />
  </svg>`;
}

function QueueRow({ row, level, hasMore, isOpen }) {
  looks.value;
  const name = row.key || NO_QUEUE;
  return html`<tr class="queue" data-row=${`queue ${row.key}`}>
    <th scope="row" class=${`level-${Math.min(level, 8)}`}>
      ${hasMore
        ? html`<button class="plain twist" aria-expanded=${String(isOpen)} aria-label=${`queues below ${name}`} onClick=${() => toggle(row.key)}>
            <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span>
          </button>`
        : html`<span class="twist"></span>`}
      <${Swatch} queue=${row.key} />
      ${row.key
        ? html`<a href=${queueHref(row.key)} data-go><${Name} text=${row.key} /></a>`
        : html`<span class="quiet">${NO_QUEUE}</span>`}
      ${row.displayName && row.displayName !== row.key && html` <small><${Name} text=${row.displayName} /></small>`}
      <span class="off-screen">, level ${level}${row.parent && `, below ${row.parent}`}</span>
    </th>
    <td class="bar-cell"><${QueueBar} row=${row} /></td>
    <td class="number">${gpus(row.allocatedMilli)}</td>
    <td class="number">${row.key ? (row.deservedMilli === null ? "any" : gpus(row.deservedMilli)) : "–"}</td>
    <td class="number">${row.key ? gpus(row.fairShareMilli) : "–"}</td>
    <td class="number">${gpus(row.requestedMilli)}</td>
    <td class="number">${row.key ? (row.limitMilli === null ? "none" : gpus(row.limitMilli)) : "–"}</td>
    <td class="number" title=${count(row.waitingPods, "pod")}>${row.waitingGroups}<span class="off-screen">, ${count(row.waitingPods, "pod")}</span></td>
    <td class="spark-cell"><${Sparkline} queue=${row.key} /></td>
  </tr>`;
}

const Empty = () =>
  html`<p class="empty">
    ${facts.value.incomplete
      ? "No queue is shown to you. If queues are hidden, the line at the top of the page says so; otherwise there is no queue."
      : "There is no queue."}${" "}
    A queue says how many GPUs a team deserves; see <code>kubectl explain queues.scheduling.run.ai.spec</code>, then
    <code>kubectl get queues.scheduling.run.ai</code> lists them.
  </p>`;

export function Queues() {
  const rows = tree.value;
  const drawn = useGradual(rows.length, A_ROW);
  const since = seenSince.value;
  return html`<section class="region queues" id="queues" aria-labelledby="queues-title">
    <h2 id="queues-title" tabindex="-1">Queues <small>a whole bar is ${gpuText(scale.value)}</small></h2>
    ${rows.every(({ row }) => !row.key)
      ? html`<${Empty} />`
      : html`<ul class="legend">
          <li><i class="key held"></i> held</li>
          <li><i class="key ghost"></i> asked for</li>
          <li><i class="key tick deserved"></i> deserved</li>
          <li><i class="key tick fair"></i> fair share</li>
          <li><i class="key wall"></i> limit</li>
        </ul>`}
    ${rows.length > 0 &&
    html`<div class="scroll" tabindex="-1">
      <table>
        <thead>
          <tr>
            <th scope="col">Queue</th><th scope="col">GPUs</th><th scope="col" class="number">Held</th><th scope="col" class="number">Deserves</th>
            <th scope="col" class="number">Fair share</th><th scope="col" class="number">Asks for</th><th scope="col" class="number">Limit</th>
            <th scope="col" class="number">Waiting</th><th scope="col">Last hour</th>
          </tr>
        </thead>
        <tbody>
          ${rows.slice(0, drawn).map((each) => html`<${QueueRow} key=${each.row.key} ...${each} />`)}
        </tbody>
      </table>
    </div>`}
    ${since !== null &&
    html`<p class="quiet">
      “Last hour” is what this page has seen: it was opened at ${clock(since)} and keeps up to an hour. For longer times, scrape
      <code>/metrics</code>.
    </p>`}
  </section>`;
}
