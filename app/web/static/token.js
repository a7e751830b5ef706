// The bearer token: kept for this tab only, and sent to this server only.
import { html, signal, useRef } from "./ui.js";

const KEY = "leeboard-token";
/** The API server's service proxy takes Authorization for itself, and passes the other header on. */
const isProxied = location.pathname.includes("/proxy/");

const SOON_S = 2;

/** The sentence of a 401; null while no token is asked for. */
export const askedFor = signal(null);

let tokenGiven = () => {};
export const onToken = (callback) => (tokenGiven = callback);

export function authorization() {
  const token = sessionStorage.getItem(KEY);
  if (!token) return {};
  return isProxied ? { "X-Leeboard-Token": token } : { Authorization: `Bearer ${token}` };
}

/** Fetch a path relative to the page. A 401 opens the form. */
export async function get(path, options = {}) {
  const answer = await asked(path, options);
  if (answer.status === 401) askedFor.value = await sentenceOf(answer);
  return answer;
}

/** A replica on standby asks to try again soon; another connection may lead to the one that decides. */
async function asked(path, { tries = 1, ...options }) {
  for (let left = tries - 1; ; left -= 1) {
    const answer = await fetch(path, {
      cache: "no-store",
      credentials: "same-origin",
      ...options,
      headers: { ...options.headers, ...authorization() },
    });
    const pauseS = Number(answer.headers.get("Retry-After"));
    if (left <= 0 || answer.status !== 503 || !(pauseS > 0 && pauseS <= SOON_S)) return answer;
    await new Promise((resolve) => setTimeout(resolve, 1000 * pauseS));
  }
}

/** Say what an answer that is no success says about itself. */
export async function sentenceOf(answer) {
  try {
    const { detail } = await answer.json();
    if (detail) return String(detail);
  } catch {
    // A proxy's page is no problem document.
  }
  return `the server answers ${answer.status} ${answer.statusText}`;
}

export function TokenForm() {
  const field = useRef();
  if (askedFor.value === null) return null;
  const give = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, field.current.value.trim().replace(/^Bearer\s+/i, ""));
    askedFor.value = null;
    tokenGiven();
  };
  return html`<form class="token" onSubmit=${give} aria-labelledby="token-title">
    <h2 id="token-title">Who are you?</h2>
    <p role="alert">${askedFor.value}</p>
    <label for="token">Token of a service account or of your cluster login</label>
    <p class="row">
      <input id="token" ref=${field} type="password" autocomplete="off" spellcheck=${false} required />
      <button>Show the cluster</button>
    </p>
    <p class="quiet">
      For example from <code>kubectl -n leeboard create token leeboard-reader</code>. It stays in this tab until you close
      it, and goes to this server only.
    </p>
  </form>`;
}
