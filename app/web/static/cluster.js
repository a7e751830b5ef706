// The cluster: a block for each topology domain, a row for each node, a cell for each GPU.
import { computed, html, signal, useLayoutEffect, useRef } from "./ui.js";
import { MOST_CELLS } from "./blocks.js";
import { CellFacts, NodeFacts, NodeRow } from "./cells.js";
import { gpus, gpuText, count, Name } from "./format.js";
import { useGradual } from "./gradual.js";
import { lightGang, moveByKey, settleTabStop } from "./grid.js";
import { lookOf, looks } from "./looks.js";
import { agents, blocks, devicesInAll, nodeOfDevice, viewOf } from "./store.js";

/** The cost of drawing, in cells. */
const [A_ROW, A_BLOCK] = [9, 20];

const isLarge = computed(() => devicesInAll.value > MOST_CELLS);
/** The blocks that were opened, oldest first; only a large cluster has closed ones. */
const opened = signal([]);
/** The cell under the pointer or the focus. */
const pointed = signal("");

const cellsOf = (block) => block.stats.value?.devices ?? 0;

/** Open a block. The oldest ones close when the page would hold too many cells. */
function toggle(key) {
  if (opened.value.includes(key)) {
    opened.value = opened.value.filter((each) => each !== key);
    return;
  }
  const sizes = new Map(blocks.value.map((block) => [block.key, cellsOf(block)]));
  const kept = [key];
  let cells = sizes.get(key) ?? 0;
  for (const each of opened.value.toReversed()) {
    cells += sizes.get(each) ?? 0;
    if (cells > MOST_CELLS) break;
    kept.unshift(each);
  }
  opened.value = kept;
}

function figures(stats) {
  const parts = [[stats.held, "held"], [stats.reserved, "reserved"], [stats.foreign, "not managed"], [stats.free, "free"], [stats.blocked, "blocked"]];
  const shown = parts.filter(([milli, what]) => milli || what === "free").map(([milli, what]) => `${gpus(milli)} ${what}`);
  if (stats.sick) shown.push(`${stats.sick} unhealthy`);
  return `${count(stats.devices, "GPU")}: ${shown.join(", ")}`;
}

function Bar({ stats }) {
  const held = [...stats.heldBy].sort(([a], [b]) => (a < b ? -1 : 1));
  const part = (milli, classes, text = "") =>
    milli > 0 && html`<i class="slice ${classes}" style=${{ flexGrow: milli }}>${text}</i>`;
  return html`<span class="bar" aria-hidden="true">
    ${held.map(([queue, milli]) => part(milli, `bound ${lookOf(queue).classes}`, lookOf(queue).tag))}
    ${part(stats.reserved, "reserved hue-none")} ${part(stats.foreign, "hue-foreign", "·")} ${part(stats.free, "free")}
    ${part(stats.blocked, "blocked")}
  </span>`;
}

function Title({ block }) {
  const { label, range } = block;
  return html`<${Name} text=${label} />${range && html`${label && " "}<bdi>${range}</bdi>`}`;
}

function Rows({ nodes }) {
  const drawn = useGradual(nodes.length, A_ROW);
  return html`<tbody role="rowgroup">
    ${nodes.slice(0, drawn).map((name) => html`<${NodeRow} key=${name} name=${name} />`)}
  </tbody>`;
}

function Block({ block }) {
  looks.value;
  const stats = block.stats.value;
  if (!stats) return null;
  const isOpen = !isLarge.value || opened.value.includes(block.key);
  const title = html`<${Title} block=${block} />`;
  return html`<section class=${isOpen ? "block open" : "block"}>
    <h3>
      ${isLarge.value
        ? html`<button class="plain" aria-expanded=${String(isOpen)} onClick=${() => toggle(block.key)}>
            <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span> ${title}
          </button>`
        : title}
      <span class="figures">${figures(stats)}</span>
    </h3>
    ${isOpen
      ? html`<div class="scroll">
          <table role="grid" aria-label=${`GPUs of ${block.label} ${block.range}`}>
            <${Rows} nodes=${block.nodes} />
          </table>
        </div>`
      : html`<${Bar} stats=${stats} />`}
  </section>`;
}

function Pointed() {
  const key = pointed.value;
  const isNode = key.startsWith("node ");
  const view = viewOf(isNode ? key.slice(5) : nodeOfDevice(key))?.value;
  const found = view?.devices.find(({ device }) => device.key === key);
  return html`<div class="pointed" id="pointed">
    ${view && isNode
      ? html`<${NodeFacts} ...${view} />`
      : found
        ? html`<${CellFacts} node=${view.node} found=${found} />`
        : html`<p class="quiet">
            Point at a GPU, or reach it with Tab and the arrow keys: this line says what it is and who holds it, and its
            whole gang lights up. Enter opens the pod.
          </p>`}
  </div>`;
}

const Legend = () => html`<ul class="legend">
  <li><i class="slice bound hue-1 shade-0">A</i> held, letter and colour of the queue</li>
  <li><i class="slice reserved hue-1 shade-0">A</i> reserved</li>
  <li><i class="slice leaving hue-1 shade-0">A</i> leaving</li>
  <li><i class="slice hue-foreign">·</i> not managed</li>
  <li><i class="slice free"></i> free</li>
  <li><i class="slice free crossed">✕</i> unhealthy</li>
  <li><i class="bracketed"></i> joined by NVLink</li>
</ul>`;

function Note() {
  const { reporting, nodes } = agents.value;
  if (nodes === 0) {
    return html`<p class="empty">
      No node with GPUs is known. A node counts when it has the allocatable resource <code>nvidia.com/gpu</code>, or
      ResourceSlices of a GPU driver: <code>kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu</code>
    </p>`;
  }
  if (reporting > 0) return null;
  return html`<p class="note">
    No agent reports: devices are anonymous, their health is not known, and memory is not measured. Set
    <code>agent.enabled=true</code> in the chart to see which GPU is which.
  </p>`;
}

export function Cluster() {
  const region = useRef();
  const all = blocks.value;
  const drawn = useGradual(all.length, A_BLOCK);
  useLayoutEffect(() => settleTabStop(region.current));
  const point = (event) => {
    const cell = event.target.closest?.("[data-cell]");
    if (!cell) return;
    pointed.value = cell.dataset.cell;
    lightGang(region.current, gangsOf(cell, event.target));
    if (event.type === "focusin") settleTabStop(region.current, cell);
  };
  const leave = () => lightGang(region.current, []);
  const onKeyDown = (event) => {
    const cell = event.target.closest?.("[data-cell]");
    if (!cell) return;
    if (event.key === "Enter") document.querySelector("#pointed a")?.click();
    else if (!moveByKey(region.current, cell, event)) return;
    event.preventDefault();
  };
  return html`<section class="region cluster" id="cluster" aria-labelledby="cluster-title">
    <h2 id="cluster-title" tabindex="-1">Cluster <small>${gpuText(devicesInAll.value * 1000)} on ${count(agents.value.nodes, "node")}</small></h2>
    <${Legend} /><${Note} />
    ${isLarge.value && html`<p class="note">More than ${MOST_CELLS.toLocaleString("en")} GPUs: open a block to see each of them.</p>`}
    <${Pointed} />
    <div class="blocks" ref=${region} onMouseOver=${point} onMouseLeave=${leave} onFocusIn=${point} onFocusOut=${leave}
      onClick=${(event) => event.target.closest?.("[data-cell]")?.focus()} onKeyDown=${onKeyDown}>
      ${all.slice(0, drawn).map((block) => html`<${Block} key=${block.key} block=${block} />`)}
    </div>
  </section>`;
}

/** The gang of the slice under the pointer, or all that hold the focused cell. */
function gangsOf(cell, target) {
  const slice = target.closest("[data-gang]");
  return slice ? [slice.dataset.gang] : [...cell.querySelectorAll("[data-gang]")].map((each) => each.dataset.gang);
}
