// The help: every key, and how to switch the keys off.
import { html, signal } from "./ui.js";

const KEY = "leeboard-keys";

/** Whether single letters are shortcuts. Who speaks to the computer switches them off. */
export const areKeysOn = signal(localStorage.getItem(KEY) !== "off");

const KEYS = [
  ["?", "this help"],
  ["/", "filter what waits"],
  ["j k", "next and previous row of what waits, or of the queues"],
  ["Enter", "open the row, or the pod of a GPU"],
  ["g c", "go to the cluster; arrow keys move from GPU to GPU"],
  ["g q", "go to the queues"],
  ["g w", "go to what waits"],
  ["g h", "back to the first page"],
  ["r", "show the changes now; try the server again"],
  ["m", "stop or start reading changes out"],
  ["Esc", "close, or go back"],
];

export const openHelp = () => document.getElementById("help").showModal();

function turn(event) {
  areKeysOn.value = event.currentTarget.checked;
  localStorage.setItem(KEY, areKeysOn.value ? "on" : "off");
}

export const Help = () => html`<dialog id="help" aria-labelledby="help-title">
  <h2 id="help-title">Keys</h2>
  <dl class="keys">
    ${KEYS.map(([keys, what]) => html`<div><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${what}</dd></div>`)}
  </dl>
  <p><label><input type="checkbox" checked=${areKeysOn.value} onChange=${turn} /> Letters are shortcuts</label></p>
  <p class="quiet">This page reads and never writes. It asks only this server. The same answers in a terminal: <code>leeboard queues</code>,
    <code>leeboard gpus</code>, <code>leeboard why NAMESPACE/NAME</code>.</p>
  <form method="dialog"><button>Close</button></form>
</dialog>`;
