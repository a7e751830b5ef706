// How a queue looks: a hue, a shade and one or two letters. Colour never stands alone.
import { html, signal } from "./ui.js";

const HUES = 8;
const SHADES = 4;
const NO_QUEUE = { tag: "–", classes: "hue-none" };

/** The look of each queue by name. */
export const looks = signal(new Map());

export const lookOf = (queue) => looks.value.get(queue) ?? NO_QUEUE;

/** Return the looks of these queues; the same Map when no queue has come or gone. */
export function lookFrom(queues, shares, before) {
  const parents = new Map();
  for (const { key, parent } of queues.values()) if (key) parents.set(key, parent);
  // Who may not list queues sees their names in the shares.
  for (const { queue } of shares.values()) if (queue && !parents.has(queue)) parents.set(queue, "");
  const isSame = parents.size === before.size && [...parents].every(([name, parent]) => before.get(name)?.parent === parent);
  return isSame ? before : drawn(parents);
}

function drawn(parents) {
  const children = new Map();
  for (const [name, parent] of parents) {
    const above = parents.has(parent) && parent !== name ? parent : "";
    children.set(above, [...(children.get(above) ?? []), name]);
  }
  for (const names of children.values()) names.sort();
  let tops = children.get("") ?? [];
  // A single root says nothing about whose a GPU is, so its children get the hues.
  while (tops.length === 1 && children.has(tops[0])) tops = children.get(tops[0]);
  const [found, tags] = [new Map(), new Set()];
  const give = (name, hue, shade) => {
    if (found.has(name)) return;
    const classes = `hue-${hue % HUES} shade-${shade % SHADES}`;
    found.set(name, { parent: parents.get(name), tag: tagOf(name, tags), classes });
  };
  tops.forEach((top, hue) => {
    const below = [top];
    for (let shade = 0; shade < below.length; shade += 1) {
      give(below[shade], hue, shade);
      if (shade < parents.size) below.push(...(children.get(below[shade]) ?? []));
    }
  });
  // Queues above the tops, and those whose parents form a circle.
  for (const name of [...parents.keys()].sort()) give(name, HUES - 1, 0);
  return found;
}

function tagOf(name, taken) {
  const letters = [...name.replace(/[^\p{L}\p{N}]/gu, "")];
  const first = (letters[0] ?? "?").toUpperCase();
  const choices = [first, ...letters.slice(1).map((each) => first + each)];
  for (let number = 2; number < 100; number += 1) choices.push(`${first}${number}`);
  const tag = choices.find((each) => !taken.has(each)) ?? first;
  taken.add(tag);
  return tag;
}

/** The square of a queue, as in the cluster. */
export const Swatch = ({ queue }) => {
  const { tag, classes } = lookOf(queue);
  return html`<span class="swatch ${classes}" aria-hidden="true">${tag}</span> `;
};
