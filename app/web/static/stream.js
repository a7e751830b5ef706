// Reads the event stream by fetch, because EventSource cannot send a token; connects again when it breaks.
import { batch, signal } from "./ui.js";
import { serverNow, setClock } from "./format.js";
import { applyDelta, applyState, facts } from "./store.js";
import { askedFor, get, onToken, sentenceOf } from "./token.js";

const STREAM = "api/v1/stream";
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
/** The server sends a comment every 15 s. A connection that is silent for longer than two of them is dead. */
const SILENCE_MS = 40_000;

/** `is`: connecting, live or lost. `since`: when it was lost, by the server's clock. */
export const connection = signal({ is: "connecting", since: null, sentence: "", retryAt: 0 });
/** When the last byte came, by our clock. */
export let heardAt = 0;

let lastEventId = "";
let wake = () => {};

/** Try again now rather than at the end of the pause. */
export const retryNow = () => wake();

export async function follow() {
  onToken(retryNow);
  window.addEventListener("online", retryNow);
  document.addEventListener("visibilitychange", () => document.hidden || retryNow());
  for (let failures = 0; ; failures += 1) {
    const before = lastEventId;
    const { sentence, pauseMs } = await readOnce();
    if (lastEventId !== before) failures = 0;
    const backOff = Math.min(FIRST_PAUSE_MS * 2 ** failures, LONGEST_PAUSE_MS) * (0.75 + Math.random() / 2);
    await pause(Math.max(backOff, pauseMs), sentence);
  }
}

async function pause(ms, sentence) {
  const { is, since } = connection.value;
  connection.value = { is: "lost", since: is === "lost" ? since : serverNow(), sentence, retryAt: Date.now() + ms };
  await new Promise((resolve) => {
    wake = resolve;
    // With no token there is nothing to try.
    if (askedFor.value === null) setTimeout(resolve, ms);
  });
  wake = () => {};
}

/** Read one connection to its end; say why it ended, and how long the server asks to wait. */
async function readOnce() {
  const stop = new AbortController();
  const watchdog = setInterval(() => Date.now() - heardAt > SILENCE_MS && stop.abort(), 5000);
  heardAt = Date.now();
  try {
    const headers = { Accept: "text/event-stream", ...(lastEventId && { "Last-Event-ID": lastEventId }) };
    const answer = await get(STREAM, { headers, signal: stop.signal });
    if (!answer.ok) {
      const asked = Number(answer.headers.get("Retry-After")) || (answer.status < 500 ? 10 : 0);
      return { sentence: answer.status === 401 ? "it needs a token" : await sentenceOf(answer), pauseMs: asked * 1000 };
    }
    await readEvents(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    return { sentence: "the server has ended the connection", pauseMs: 0 };
  } catch (error) {
    if (error instanceof TypeError || error.name === "AbortError") {
      return { sentence: stop.signal.aborted ? "the server is silent" : "the server does not answer", pauseMs: 0 };
    }
    // What we cannot read, we ask for as a whole again.
    lastEventId = "";
    console.error(error);
    return { sentence: `the page cannot read the answer: ${error.message}`, pauseMs: 5000 };
  } finally {
    clearInterval(watchdog);
    stop.abort();
  }
}

async function readEvents(reader) {
  let unread = "";
  let searched = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heardAt = Date.now();
    unread += value;
    let start = 0;
    for (let end; (end = unread.indexOf("\n\n", Math.max(start, searched))) >= 0; start = end + 2) {
      try {
        onEvent(unread.slice(start, end));
      } catch (cause) {
        // A TypeError of ours is no fault of the network.
        throw new Error(cause.message, { cause });
      }
    }
    unread = unread.slice(start);
    // The two line feeds may come in two parts.
    searched = Math.max(0, unread.length - 1);
  }
}

function onEvent(text) {
  let [id, kind, body] = ["", "", ""];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) body += line.slice(5);
    else if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("event:")) kind = line.slice(6).trim();
  }
  if (!body) return;
  const read = JSON.parse(body);
  batch(() => {
    if (kind === "state") applyState(read);
    else if (kind === "delta" && facts.value) applyDelta(read);
    if (read.time) setClock(read.time);
    if (connection.value.is !== "live") connection.value = { is: "live", since: null, sentence: "", retryAt: 0 };
  });
  lastEventId = id || lastEventId;
}
