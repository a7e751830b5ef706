// What is known of the cluster: the tables of the server, kept up to date by deltas, and a signal for each part that is
// drawn by itself. A delta touches only the nodes and blocks that it names.
import { computed, signal } from "./ui.js";
import { rememberQueues } from "./history.js";
import { lookFrom, looks } from "./looks.js";
import { blocksOf, statsOf } from "./blocks.js";

/** The scalar fields of the state: epoch, tick, time, stale, active, plan, summary, leftOut, incomplete. */
export const facts = signal(null);
/** The rows of queues by name, and of what waits in the order of the plan. */
export const queues = signal(new Map());
export const waiting = signal([]);
/** How many PodGroups wait behind those that are sent. */
export const leftOut = computed(() => facts.value?.leftOut ?? 0);
/** The blocks of nodes, in their order; each has a signal of its figures. */
export const blocks = signal([]);
export const devicesInAll = signal(0);
export const agents = signal({ reporting: 0, nodes: 0 });

const NO_TABLES = () => ({ nodes: new Map(), devices: new Map(), shares: new Map(), queues: new Map(), waiting: new Map() });
let columns = {};
let tables = NO_TABLES();
let devicesOf = new Map(); // the keys of a node's devices
let sharesOf = new Map(); // the keys of a device's shares
let views = new Map(); // a signal for each node
let blockOf = new Map();

/** The signal of a node: the node, and its devices in order, each with its shares. */
export const viewOf = (name) => views.get(name);
export const shares = () => tables.shares.values();
export const nodeOfDevice = (device) => tables.devices.get(device)?.node ?? device.slice(0, device.lastIndexOf("/"));

export function applyState(state) {
  const { tables: sent, ...scalars } = state;
  [tables, devicesOf, sharesOf] = [NO_TABLES(), new Map(), new Map()];
  columns = Object.fromEntries(Object.entries(sent).map(([table, { columns: named }]) => [table, named]));
  apply(Object.fromEntries(Object.entries(sent).map(([table, { rows }]) => [table, { set: rows }])), scalars, true);
}

export function applyDelta(delta) {
  const { tables: sent = {}, ...scalars } = delta;
  apply(sent, { ...facts.value, ...scalars });
}

/** Apply changes, and draw the nodes that they touch. A whole state touches also the nodes that it does not name. */
function apply(sent, scalars, isWhole = false) {
  const touched = new Set(isWhole ? views.keys() : []);
  let isMoved = isWhole;
  changed(sent.nodes, "nodes", (node, before) => {
    isMoved ||= node?.domain !== before?.domain;
    touched.add((node ?? before).key);
  });
  changed(sent.devices, "devices", (device, before) => {
    const { node, key } = device ?? before;
    isMoved ||= !device || !before;
    if (device) within(devicesOf, node).add(key);
    else devicesOf.get(node)?.delete(key);
    touched.add(node);
  });
  changed(sent.shares, "shares", (share, before) => {
    if (before) touched.add(nodeOfDevice(before.device)), sharesOf.get(before.device)?.delete(before.key);
    if (share) touched.add(nodeOfDevice(share.device)), within(sharesOf, share.device).add(share.key);
  });
  // Colours and history are made from the queues, so the queues are changed first.
  if (changed(sent.queues, "queues")) later.add(showQueues);
  facts.value = scalars;
  looks.value = lookFrom(tables.queues, tables.shares, looks.value);
  draw(touched, isMoved);
  rememberQueues(tables.queues, scalars.time);
  if (changed(sent.waiting, "waiting")) later.add(showWaiting);
  if (document.hidden) showAll();
  else requestAnimationFrame(showNext);
}

const showQueues = () => (queues.value = new Map(tables.queues));
const showWaiting = () => (waiting.value = [...tables.waiting.values()].sort((a, b) => a.position - b.position));

/** What is still to be drawn. Each has a frame of its own, so that no frame takes long. */
const later = new Set();

/** For whoever measures: one mark, of the last change that is drawn. */
function markDrawn() {
  performance.clearMarks("drawn");
  performance.mark("drawn");
}

function showAll() {
  for (const show of later) show();
  later.clear();
  markDrawn();
}

function showNext() {
  const [show] = later;
  if (!show) return markDrawn();
  later.delete(show);
  show();
  requestAnimationFrame(showNext);
}

/** Apply one table's changes; say whether there are any. `each` sees a row now and before. */
function changed(changes, table, each = () => {}) {
  if (!changes) return false;
  const [rows, named] = [tables[table], columns[table]];
  for (const key of changes.delete ?? []) {
    const before = rows.get(key);
    if (rows.delete(key)) each(undefined, before);
  }
  for (const values of changes.set ?? []) {
    const row = {};
    for (let i = 0; i < named.length; i += 1) row[named[i]] = values[i];
    const before = rows.get(row.key);
    rows.set(row.key, row);
    each(row, before);
  }
  for (const [key, position] of changes.move ?? []) rows.set(key, { ...rows.get(key), position });
  return true;
}

function within(map, key) {
  let found = map.get(key);
  if (!found) map.set(key, (found = new Set()));
  return found;
}

function draw(touched, isMoved) {
  for (const name of touched) {
    const node = tables.nodes.get(name);
    if (!node) {
      views.delete(name);
      continue;
    }
    const view = { node, devices: devices(name) };
    const drawn = views.get(name);
    if (drawn) drawn.value = view;
    else views.set(name, signal(view));
  }
  const nodes = [...tables.nodes.values()];
  if (isMoved) {
    devicesInAll.value = tables.devices.size;
    blocks.value = blocksOf(nodes, (name) => views.get(name).value.devices.length, tables.devices.size);
    blockOf = new Map(blocks.value.flatMap((block) => block.nodes.map((name) => [name, block])));
  }
  const reporting = nodes.reduce((sum, node) => sum + (node.agent !== "none"), 0);
  if (reporting !== agents.value.reporting || nodes.length !== agents.value.nodes) {
    agents.value = { reporting, nodes: nodes.length };
  }
  // The blocks as they are now: the ones before may have nodes that are gone.
  for (const block of isMoved ? blocks.value : new Set([...touched].map((name) => blockOf.get(name)))) {
    if (block) block.stats.value = statsOf(block.nodes.map((name) => views.get(name).value));
  }
}

function devices(node) {
  const found = [];
  for (const key of devicesOf.get(node) ?? []) {
    const held = [];
    for (const share of sharesOf.get(key) ?? []) held.push(tables.shares.get(share));
    if (held.length > 1) held.sort((a, b) => (a.key < b.key ? -1 : 1));
    found.push({ device: tables.devices.get(key), shares: held });
  }
  return found.sort((a, b) => a.device.index - b.device.index || (a.device.key < b.device.key ? -1 : 1));
}
