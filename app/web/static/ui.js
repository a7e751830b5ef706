// The libraries under the names that the page uses. A component that reads a signal draws again only when that signal
// or one of its properties has changed; the library of signals does that.
import { h, render } from "./vendor/preact/preact.mjs";
import htm from "./vendor/htm/htm.mjs";

export const html = htm.bind(h);
export { render };
export { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact/hooks.mjs";
export { batch, computed, effect, signal } from "./vendor/signals/signals.mjs";
