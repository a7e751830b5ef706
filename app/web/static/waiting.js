// What waits, in the order of the plan. Under the pointer or the focus the rows stand still.
import { computed, effect, html, signal, useEffect } from "./ui.js";
import { Age, count, gpuText, Name, whyHref } from "./format.js";
import { Explanation } from "./explanation.js";
import { useGradual } from "./gradual.js";
import { looks, Swatch } from "./looks.js";
import { filter, narrow } from "./route.js";
import { leftOut, waiting } from "./store.js";

const AT_ONCE = 100;
/** The cost of drawing a row, in cells of the cluster. */
const A_ROW = 12;
const HIDDEN = "in another namespace";

const shownRows = signal([]);
const isStill = signal(false);
const opened = signal("");
const most = signal(AT_ONCE);

/** How many rows have come, gone, or changed their place or words since the rows stand still. */
const changes = computed(() => {
  if (!isStill.value) return 0;
  const before = new Map(shownRows.value.map((row) => [row.key, row]));
  let found = 0;
  for (const row of waiting.value) {
    const old = before.get(row.key);
    found += !old || old.position !== row.position || old.sentence !== row.sentence || old.pods !== row.pods;
    before.delete(row.key);
  }
  return found + before.size;
});

effect(() => {
  if (!isStill.value) shownRows.value = waiting.value;
});

/** Show the rows as they are now. */
export const catchUp = () => (shownRows.value = waiting.value);

const matching = computed(() => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return shownRows.value;
  return shownRows.value.filter((row) => {
    const text = `${row.namespace}/${row.name} ${row.queue} ${row.reason} ${row.sentence}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
});

export function wants(row) {
  const pods = row.minimum > 1 && row.minimum < row.pods ? `${row.pods} pods (at least ${row.minimum})` : count(row.pods, "pod");
  return `${gpuText(row.gpuMilli)} in ${pods}`;
}

// On a narrow screen a row is a card; the roles keep it a row for a screen reader.
function Row({ row }) {
  looks.value;
  const isOpen = opened.value === row.key;
  const id = `more-${row.key}`;
  const name = row.name
    ? html`<a href=${whyHref(row.namespace, row.name)}><${Name} text=${`${row.namespace}/${row.name}`} /></a>`
    : html`<span class="quiet">${HIDDEN}</span>`;
  return html`<tr class="waits" role="row" data-row=${row.key}>
      <td class="number" role="cell">
        ${row.name
          ? html`<button class="plain" data-go aria-expanded=${String(isOpen)} aria-controls=${isOpen ? id : null} aria-label=${`Position ${row.position}: more on ${row.namespace}/${row.name}`}
              onClick=${() => (opened.value = isOpen ? "" : row.key)}><span aria-hidden="true">${isOpen ? "▾" : "▸"}</span> ${row.position}</button>`
          : html`<span data-go tabindex="-1">${row.position}</span>`}
      </td>
      <th scope="row" role="rowheader">${name}</th>
      <td role="cell">${row.queue ? html`<${Swatch} queue=${row.queue} /> <${Name} text=${row.queue} />` : "–"}</td>
      <td role="cell">${wants(row)}</td>
      <td class="sentence" role="cell"><bdi>${row.sentence}</bdi></td>
      <td class="number" role="cell"><${Age} since=${row.since} /></td>
    </tr>
    ${isOpen &&
    html`<tr class="more" role="row" id=${id}>
      <td colspan="6" role="cell"><${Explanation} namespace=${row.namespace} name=${row.name} isShort=${true} /></td>
    </tr>`}`;
}

const Empty = () =>
  html`<p class="empty">
    ${filter.value
      ? html`${leftOut.value ? `None of the first ${shownRows.value.length} PodGroups that wait` : "Nothing that waits"} matches “<bdi>${filter.value}</bdi>”. <button onClick=${() => narrow("")}>Show all</button>`
      : "Nothing waits: every PodGroup has what it asks for. A pod appears here when it asks for more than is free, or than its queue may hold."}
  </p>`;

export function Waiting() {
  const rows = matching.value;
  const inAll = shownRows.value.length;
  const isEmpty = rows.length === 0;
  const drawn = useGradual(Math.min(rows.length, most.value), A_ROW);
  // A list that goes away under the pointer or the focus sends no event of it.
  useEffect(() => () => (isStill.value = false), [isEmpty]);
  const hold = () => (isStill.value = true);
  const release = (event) => {
    const list = event.currentTarget;
    if (list.contains(event.relatedTarget)) return;
    if (event.type === "mouseleave" ? list.contains(document.activeElement) : list.matches(":hover")) return;
    isStill.value = false;
  };
  return html`<section class="region waiting" id="waiting" aria-labelledby="waiting-title">
    <h2 id="waiting-title" tabindex="-1">Waiting <small>${count(inAll + leftOut.value, "PodGroup")}${leftOut.value > 0 && `, the first ${inAll}`} in the order of the plan</small></h2>
    <p class="row tools">
      <label for="filter">Filter</label>
      <input id="filter" type="search" placeholder="namespace, name, queue or reason" value=${filter.value}
        onInput=${(event) => narrow(event.currentTarget.value)} />
      ${filter.value && html`<span role="status">${rows.length} of ${inAll}</span>`}
      <button class="chip" hidden=${!changes.value} onClick=${catchUp}>${count(changes.value, "change")}, press r</button>
    </p>
    ${isEmpty
      ? html`<${Empty} />`
      : html`<div class="scroll" onMouseEnter=${hold} onMouseLeave=${release} onFocusIn=${hold} onFocusOut=${release}>
          <table role="table">
            <thead role="rowgroup">
              <tr role="row">
                <th scope="col" role="columnheader" class="number">Position</th><th scope="col" role="columnheader">PodGroup</th><th scope="col" role="columnheader">Queue</th>
                <th scope="col" role="columnheader">Wants</th><th scope="col" role="columnheader">Why it waits</th><th scope="col" role="columnheader" class="number">For</th>
              </tr>
            </thead>
            <tbody role="rowgroup">
              ${rows.slice(0, drawn).map((row) => html`<${Row} key=${row.key} row=${row} />`)}
            </tbody>
          </table>
        </div>`}
    ${rows.length > most.value &&
    html`<button onClick=${() => (most.value += AT_ONCE)}>Show ${Math.min(AT_ONCE, rows.length - most.value)} more of ${rows.length}</button>`}
  </section>`;
}
