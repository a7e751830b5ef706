// The page of one queue: its numbers, a plot of what the page has seen, what waits in it and who holds its GPUs.
import { html, useEffect, useRef } from "./ui.js";
import { Age, clock, count, gpuText, Name, NOT_KNOWN, whyHref } from "./format.js";
import { points, seenOf, seenSince } from "./history.js";
import { looks, Swatch } from "./looks.js";
import { barText, QueueBar } from "./queues.js";
import { facts, leftOut, queues, shares, waiting } from "./store.js";
import { wants } from "./waiting.js";

const LINES = [
  { label: "held", stroke: "--line-held", width: 2 },
  { label: "fair share", stroke: "--line-fair", dash: [6, 4] },
  { label: "deserved", stroke: "--line-deserved", dash: [2, 3] },
  { label: "asked for", stroke: "--line-asked" },
];
const HEIGHT_PX = 240;
const LEAST_POINTS = 2;
/** A plot shows at least five minutes. */
const LEAST_S = 300;

let loading = null;

/** Load the plotting library when a plot is first shown. It lies beside this module. */
function plots() {
  loading ??= new Promise((resolve, reject) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet" });
    sheet.href = new URL("./vendor/uplot/uPlot.min.css", import.meta.url).href;
    const script = document.createElement("script");
    script.src = new URL("./vendor/uplot/uPlot.iife.min.js", import.meta.url).href;
    script.onload = () => resolve(window.uPlot);
    script.onerror = reject;
    document.head.append(sheet, script);
  });
  return loading;
}

function drawn(UPlot, at, values) {
  // A canvas does not know light-dark(), so an element is asked what it makes of it.
  const colour = (name) => {
    at.style.color = `var(${name})`;
    return getComputedStyle(at).color;
  };
  const axis = { stroke: colour("--plot-text"), grid: { stroke: colour("--plot-grid") }, ticks: { stroke: colour("--plot-grid") } };
  const series = LINES.map((line) => ({ ...line, stroke: colour(line.stroke), points: { show: false } }));
  const options = {
    width: at.clientWidth,
    height: HEIGHT_PX,
    scales: {
      x: { range: (_, from, to) => [Math.min(from, to - LEAST_S), to] },
      y: { range: (_, low, high) => [0, Math.max(1, high)] },
    },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => clock(1000 * at)) }, { ...axis, label: "GPUs" }],
    series: [{ label: "time", value: (_, at) => (at === null ? NOT_KNOWN : clock(1000 * at)) }, ...series],
  };
  at.style.color = "";
  return new UPlot(options, values, at);
}

function Plot({ queue }) {
  const place = useRef();
  const plot = useRef();
  points.value;
  useEffect(() => {
    let isGone = false;
    const at = place.current;
    plots().then((UPlot) => {
      if (!isGone) plot.current = drawn(UPlot, at, seenOf(queue));
    });
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: at.clientWidth, height: HEIGHT_PX }));
    fit.observe(at);
    return () => {
      isGone = true;
      fit.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [queue]);
  useEffect(() => plot.current?.setData(seenOf(queue)), [queue, points.value]);
  return html`<div class="plot" ref=${place} role="img" aria-label=${`GPUs of ${queue} since ${clock(seenSince.value ?? 0)}`}></div>`;
}

/** The PodGroups that hold GPUs of the queue, the largest first. */
function holders(queue) {
  const found = new Map();
  for (const { queue: of, namespace, pod, group, milli, since } of shares()) {
    if (of !== queue) continue;
    const name = group || pod;
    const key = name ? `${namespace}/${name}` : "";
    const held = found.get(key) ?? { namespace, name, milli: 0, pods: new Set(), since };
    held.milli += milli;
    held.pods.add(pod);
    if (since && (!held.since || since < held.since)) held.since = since;
    found.set(key, held);
  }
  return [...found.values()].sort((a, b) => b.milli - a.milli);
}

const link = (namespace, name) =>
  name ? html`<a href=${whyHref(namespace, name)}><${Name} text=${`${namespace}/${name}`} /></a>` : "in namespaces that you may not see";

export function QueuePage({ name }) {
  facts.value;
  looks.value;
  const row = queues.value.get(name);
  const [held, waits] = [holders(name), waiting.value.filter((each) => each.queue === name)];
  const isBehind = leftOut.value > 0 && row?.waitingGroups !== 0;
  const first = `the first ${waiting.value.length} PodGroups that wait`;
  return html`<section class="region detail">
    <p><a href="#/queues">All queues</a></p>
    <h2 tabindex="-1" id="detail-title"><${Swatch} queue=${name} /> Queue <${Name} text=${name} /></h2>
    ${row
      ? html`<p>It ${barText(row)}; waiting in it and below: ${count(row.waitingGroups, "PodGroup")} (${count(row.waitingPods, "pod")}). Priority ${row.priority}${row.parent && html`, below <a href=${`#/queue/${encodeURIComponent(row.parent)}`}><${Name} text=${row.parent} /></a>`}.</p>
          <${QueueBar} row=${row} />
          <h3>Since this page was opened <small>an hour at most</small></h3>
          ${points.value < LEAST_POINTS
            ? html`<p class="quiet">The plot begins with the second point, within ten seconds.</p>`
            : html`<${Plot} queue=${name} />`}`
      : html`<p class="note">No queue of this name is known or shown to you.</p>`}
    <h3>Who holds its GPUs</h3>
    ${held.length === 0 && html`<p class="quiet">No pod of this queue itself holds a GPU.</p>`}
    <ul>${held.map((each) => html`<li>${link(each.namespace, each.name)}: ${gpuText(each.milli)}${each.since && html`, for <${Age} since=${each.since} />`}</li>`)}</ul>
    <h3>What waits in it ${isBehind && html`<small>of ${first}</small>`}</h3>
    ${waits.length === 0 && html`<p class="quiet">${isBehind ? `None of its PodGroups is among ${first}.` : "Nothing."}</p>`}
    <ol>${waits.map((each) => html`<li value=${each.position}>${link(each.namespace, each.name)}, ${wants(each)}: <bdi>${each.sentence}</bdi></li>`)}</ol>
  </section>`;
}
