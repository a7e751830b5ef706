// Blocks of nodes: one for each topology domain, and parts of a domain that is too large to be opened at once.
import { signal } from "./ui.js";

/** Beyond this many devices the blocks are bars until they are opened. */
export const MOST_CELLS = 4000;
const MOST_IN_A_PART = 512;

const byName = new Intl.Collator("en", { numeric: true }).compare;

export function blocksOf(nodes, devicesOf, devicesInAll) {
  const domains = new Map();
  for (const node of nodes) {
    if (!domains.has(node.domain)) domains.set(node.domain, []);
    domains.get(node.domain).push(node.key);
  }
  const found = [];
  for (const domain of [...domains.keys()].sort(byName)) {
    const names = domains.get(domain).sort(byName);
    for (const part of devicesInAll > MOST_CELLS ? partsOf(names, devicesOf) : [names]) {
      const isWhole = part.length === names.length;
      found.push({
        key: isWhole ? domain : `${domain} ${part[0]}`,
        label: domain || (isWhole ? "no topology" : ""),
        range: isWhole ? "" : `${part[0]} to ${part.at(-1)}`,
        nodes: part,
        stats: signal(null),
      });
    }
  }
  return found;
}

function partsOf(names, devicesOf) {
  const parts = [[]];
  let size = 0;
  for (const name of names) {
    size += devicesOf(name);
    if (size > MOST_IN_A_PART && parts.at(-1).length) {
      parts.push([]);
      size = devicesOf(name);
    }
    parts.at(-1).push(name);
  }
  return parts;
}

/** Whether new work can be placed on a node, or on a device. */
export const takesWork = (node) => node.state === "ready";
export const isSick = (device) => device.health === "unhealthy";

export const usedOf = (shares) => shares.reduce((sum, share) => sum + share.milli, 0);

/** The figures of a block in thousandths of a GPU. What is free on a node or device that takes no work is blocked. */
export function statsOf(views) {
  const stats = { devices: 0, reserved: 0, foreign: 0, free: 0, blocked: 0, sick: 0, heldBy: new Map(), held: 0 };
  for (const { node, devices } of views) {
    for (const { device, shares } of devices) {
      stats.devices += 1;
      stats.sick += isSick(device);
      for (const share of shares) {
        if (share.state === "reserved") stats.reserved += share.milli;
        else if (share.state === "foreign") stats.foreign += share.milli;
        else {
          stats.held += share.milli;
          stats.heldBy.set(share.queue, (stats.heldBy.get(share.queue) ?? 0) + share.milli);
        }
      }
      const free = Math.max(0, 1000 - usedOf(shares));
      if (takesWork(node) && !isSick(device)) stats.free += free;
      else stats.blocked += free;
    }
  }
  return stats;
}
