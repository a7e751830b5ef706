// The colours: as the system has them, or as the reader chose.
import { effect, signal } from "./ui.js";

const KEY = "leeboard-colours";
const THEMES = ["auto", "light", "dark"];

const kept = localStorage.getItem(KEY);
export const theme = signal(THEMES.includes(kept) ? kept : "auto");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(KEY, theme.value);
});

export const nextTheme = () => (theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]);
