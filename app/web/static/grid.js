// The cells as one stop of the Tab key, moved in by arrow keys; and the light on the members of a gang.

let stop = null;

/** Make exactly one cell reachable by Tab: the given one, else the last one if it is still there, else the first. */
export function settleTabStop(region, cell = null) {
  if (!region) return;
  const next = cell ?? (stop?.isConnected ? stop : region.querySelector("[data-cell]"));
  if (stop !== next && stop) stop.tabIndex = -1;
  if (next) next.tabIndex = 0;
  stop = next;
}

/** Move the focus for an arrow key; say whether the key was one. */
export function moveByKey(region, cell, event) {
  const rows = [...region.querySelectorAll("tr.node")];
  const row = cell.closest("tr");
  const [at, column] = [rows.indexOf(row), [...row.cells].indexOf(cell)];
  const steps = {
    ArrowLeft: [at, column - 1],
    ArrowRight: [at, column + 1],
    ArrowUp: [at - 1, column],
    ArrowDown: [at + 1, column],
    Home: [event.ctrlKey ? 0 : at, 0],
    End: [event.ctrlKey ? rows.length - 1 : at, Infinity],
    PageUp: [Math.max(0, at - 8), column],
    PageDown: [Math.min(rows.length - 1, at + 8), column],
  };
  if (!(event.key in steps)) return false;
  const [toRow, toColumn] = steps[event.key];
  const cells = rows[toRow]?.cells;
  const target = cells?.[Math.max(0, Math.min(toColumn, cells.length - 1))];
  target?.focus();
  target?.scrollIntoView({ block: "nearest", inline: "nearest" });
  return true;
}

/** Light every slice of these gangs. The attributes are ours: drawing a cell again leaves them. */
export function lightGang(region, gangs) {
  if (!region) return;
  const wanted = new Set(gangs);
  for (const lit of region.querySelectorAll("[data-lit]")) if (!wanted.has(lit.dataset.gang)) delete lit.dataset.lit;
  region.toggleAttribute("data-lighting", wanted.size > 0);
  for (const gang of wanted) {
    for (const slice of region.querySelectorAll(`[data-gang="${CSS.escape(gang)}"]`)) slice.dataset.lit = "";
  }
}
