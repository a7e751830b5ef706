// One node as a row, one GPU as a cell; and what a cell says in words.
import { html } from "./ui.js";
import { isSick, takesWork, usedOf } from "./blocks.js";
import { gpus, memory, Name, whyHref, Age } from "./format.js";
import { lookOf } from "./looks.js";
import { viewOf } from "./store.js";

const NODE_STATES = {
  cordoned: "cordoned",
  notReady: "not ready",
  contested: "contested",
};
const AGENT_STATES = { stale: "agent stale", none: "no agent" };
const SHARE_STATES = { reserved: "reserved", leaving: "leaving", foreign: "not managed by Leeboard" };

const HIDDEN = "a pod in a namespace that you may not see";

export const podOf = (share) => (share.pod ? `${share.namespace}/${share.pod}` : HIDDEN);

/** The gang of a share: its pods light together. A hidden pod lights alone. */
export const gangOf = (share) => (share.pod ? `${share.namespace}/${share.group || share.pod}` : share.key);

const amountOf = (share) => (share.milli === 1000 ? "" : ` ${gpus(share.milli)} of it`);

function shareText(share) {
  const state = SHARE_STATES[share.state] ? `${SHARE_STATES[share.state]}, ` : "";
  return `${state}${share.queue ? `queue ${share.queue}, ` : ""}${podOf(share)}${amountOf(share)}`;
}

export function badges(node) {
  return [NODE_STATES[node.state], AGENT_STATES[node.agent]].filter(Boolean);
}

export function cellText(node, { device, shares }) {
  const free = 1000 - usedOf(shares);
  return [
    `GPU ${device.index} of ${node.key}`,
    device.profile && `MIG ${device.profile}`,
    isSick(device) && "unhealthy",
    ...shares.map(shareText),
    free > 0 && (free === 1000 ? "free" : `${gpus(free)} free`),
    free > 0 && !takesWork(node) && `but the node is ${NODE_STATES[node.state] ?? node.state}`,
    device.clique !== null && `NVLink clique ${device.clique}`,
  ]
    .filter(Boolean)
    .join("; ");
}

/** Where a bracket of a clique begins and ends: only between neighbours. */
function bracketOf(devices, i) {
  const clique = devices[i].device.clique;
  if (clique === null) return "";
  const joins = (other) => other?.device.clique === clique;
  const [left, right] = [joins(devices[i - 1]), joins(devices[i + 1])];
  if (!left && !right) return "";
  return left && right ? "clique" : left ? "clique clique-end" : "clique clique-start";
}

function Slice({ share }) {
  const { tag, classes } = lookOf(share.queue);
  const shown = share.state === "foreign" ? "hue-foreign" : classes;
  return html`<i class="slice ${share.state} ${shown}" style=${{ flexGrow: share.milli }} data-gang=${gangOf(share)}
    data-tag=${share.state === "foreign" ? "·" : tag}></i>`;
}

function Cell({ node, devices, i }) {
  const { device, shares } = devices[i];
  const free = 1000 - usedOf(shares);
  const classes = ["gpu", isSick(device) ? "sick" : "", device.health === "unknown" ? "unknown" : "", bracketOf(devices, i)];
  return html`<td
    role="gridcell"
    class=${classes.join(" ")}
    tabindex="-1"
    data-cell=${device.key}
    aria-label=${cellText(node, devices[i])}
  >
    <div class="device" aria-hidden="true">
      ${shares.map((share) => html`<${Slice} key=${share.key} share=${share} />`)}
      ${free > 0 && html`<i class="slice free" style=${{ flexGrow: free }}></i>`}
      ${device.profile && html`<b class="profile" data-profile=${device.profile.includes(",") ? "MIG" : device.profile.split(".")[0]}></b>`} ${isSick(device) && html`<b class="cross" data-tag="✕"></b>`}
    </div>
  </td>`;
}

export function NodeRow({ name }) {
  const view = viewOf(name)?.value;
  if (!view) return null;
  const { node, devices } = view;
  const marks = badges(node);
  return html`<tr class=${`node ${node.state}`} role="row">
    <th role="rowheader" scope="row" tabindex="-1" data-cell=${`node ${node.key}`}>
      <${Name} text=${node.key} /> ${marks.map((mark) => html`<span class="mark">${mark}</span> `)}
    </th>
    ${devices.map(({ device }, i) => html`<${Cell} key=${device.key} node=${node} devices=${devices} i=${i} />`)}
    ${devices.length === 0 && html`<td role="gridcell" class="quiet">no GPU</td>`}
  </tr>`;
}

/** What is said of the cell under the pointer or the focus. */
export function CellFacts({ node, found }) {
  const { device, shares } = found;
  const free = 1000 - usedOf(shares);
  const used = device.usedMib === null ? "memory in use not measured" : `${memory(device.usedMib)} in use`;
  return html`<p>
      <b>GPU ${device.index}</b> of <${Name} text=${node.key} />, ${device.model || "model not known"}, ${memory(device.memoryMib)},
      ${" "}${used}${device.profile && `, MIG ${device.profile.replaceAll(",", ", ")}`}${device.clique !== null && `, NVLink clique ${device.clique}`}${isSick(device) && html`, <strong>unhealthy</strong>`}${device.health === "unknown" && ", health not known (no agent)"}.
      ${free > 0 && ` ${gpus(free)} free${takesWork(node) ? "" : `, but the node is ${NODE_STATES[node.state] ?? node.state}`}.`}
    </p>
    <ul>
      ${shares.map(
        (share) => html`<li>
          ${gpus(share.milli)} GPU ${SHARE_STATES[share.state] ? `${SHARE_STATES[share.state]} ` : ""}by${" "}
          ${share.pod ? html`<a href=${whyHref(share.namespace, share.pod)}><${Name} text=${podOf(share)} /></a>` : HIDDEN}
          ${share.group && share.group !== share.pod && html`, gang <a href=${whyHref(share.namespace, share.group)}><${Name} text=${share.group} /></a>`}
          ${share.queue && html`, queue <${Name} text=${share.queue} />`}${share.since && html`, since <${Age} since=${share.since} />`}
        </li>`,
      )}
    </ul>`;
}

export function NodeFacts({ node, devices }) {
  const marks = badges(node);
  return html`<p>
    <b><${Name} text=${node.key} /></b>, ${devices.length} × ${node.model || "GPU"}, ${gpus(node.freeMilli)} free${node.domain && html`, in <${Name} text=${node.domain} />`}${node.by === "claims" && ", GPUs by ResourceClaims"}${marks.length > 0 && `, ${marks.join(", ")}`}.
    ${node.reason && ` ${node.reason}`}
  </p>`;
}
