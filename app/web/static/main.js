// The page: what is drawn for each hash, and what is started once.
import { effect, html, render, useEffect } from "./ui.js";
import { Cluster } from "./cluster.js";
import { Explanation } from "./explanation.js";
import { Name, serverNow } from "./format.js";
import { Header, Spoken } from "./header.js";
import { Help } from "./help.js";
import { EVERY_MS, rememberQueues } from "./history.js";
import { onKey } from "./keys.js";
import { QueuePage } from "./queue_page.js";
import { Queues } from "./queues.js";
import { isDetail, journeys, overviewHref, route } from "./route.js";
import { facts, queues } from "./store.js";
import { connection, follow } from "./stream.js";
import { askedFor, TokenForm } from "./token.js";
import { Waiting } from "./waiting.js";

const REGIONS = ["cluster", "queues", "waiting"];

function WhyPage({ namespace, name }) {
  return html`<section class="region detail">
    <p><a href=${overviewHref()}>Overview</a></p>
    <h2 tabindex="-1" id="detail-title"><${Name} text=${`${namespace}/${name}`} /></h2>
    <${Explanation} key=${`${namespace}/${name}`} namespace=${namespace} name=${name} />
  </section>`;
}

function Main() {
  const { kind, names } = route.value;
  const journey = journeys.value;
  useEffect(() => {
    if (isDetail({ kind })) document.getElementById("detail-title")?.focus();
    else if (REGIONS.includes(kind)) document.getElementById(`${kind}-title`)?.focus();
  }, [journey]);
  if (!facts.value) return html`<${First} />`;
  if (kind === "why" && names.length === 2) return html`<${WhyPage} namespace=${names[0]} name=${names[1]} />`;
  if (kind === "queue" && names.length === 1) return html`<${QueuePage} key=${names[0]} name=${names[0]} />`;
  return html`<${Cluster} /><${Queues} /><${Waiting} />`;
}

function First() {
  const { is, sentence } = connection.value;
  if (askedFor.value !== null) return null;
  return html`<p class="first" role="status">
    ${is === "lost" ? `No answer yet: ${sentence}. Trying again.` : "Asking for the state of the cluster …"}
  </p>`;
}

const Printed = () => html`<p class="printed">${location.href} at ${facts.value?.time}</p>`;

const Page = () => html`<a class="skip" href="#/waiting">To what waits</a><${Header} /><${TokenForm} />
  <main><${Main} /></main>
  <${Printed} /><${Help} /><${Spoken} />`;

document.addEventListener("keydown", onKey);
effect(() => {
  const { kind, names } = route.value;
  document.title = isDetail({ kind }) ? `${names.join("/")} · Leeboard` : "Leeboard";
});
const place = document.getElementById("page");
place.replaceChildren();
render(html`<${Page} />`, place);
setInterval(() => connection.value.is === "live" && rememberQueues(queues.value, new Date(serverNow()).toISOString()), EVERY_MS);
follow();
