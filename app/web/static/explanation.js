// What is known of one pod or PodGroup: why it waits, its members, what it waits for, and the decisions about it.
import { effect, html, signal, useEffect, useState } from "./ui.js";
import { Age, clock, count, dateAndTime, gpus, Name, NOT_KNOWN, queueHref, whyHref } from "./format.js";
import { looks, Swatch } from "./looks.js";
import { get, sentenceOf } from "./token.js";

const AGAIN_MS = 10_000;

/** Grows when the reader asks for fresh answers. */
export const asked = signal(0);
export const askAgain = () => (asked.value += 1);

/** Fetch again while it is shown: at once when asked, else every ten seconds. */
function useAnswer(path) {
  const [answer, setAnswer] = useState({ found: null, sentence: "" });
  useEffect(() => {
    const gone = new AbortController();
    const ask = async () => {
      try {
        const reply = await get(path, { signal: gone.signal, tries: 4 });
        const next = reply.ok ? { found: await reply.json(), sentence: "" } : { found: null, sentence: await sentenceOf(reply) };
        if (!gone.signal.aborted) setAnswer(next);
      } catch {
        if (!gone.signal.aborted) setAnswer(({ found }) => ({ found, sentence: "the server does not answer" }));
      }
    };
    const timer = setInterval(() => document.hidden || ask(), AGAIN_MS);
    const stop = effect(() => {
      asked.value;
      ask();
    });
    return () => (clearInterval(timer), stop(), gone.abort());
  }, [path]);
  return answer;
}

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

function Place({ position }) {
  const { aheadInQueue, firstAhead, ahead, atLeast } = position;
  if (aheadInQueue === 0 && ahead === 0) return "the next of all";
  const first = firstAhead.map((name, i) => html`${i > 0 && ", "}<${Name} text=${name} />`);
  return html`${aheadInQueue} ahead in its queue${firstAhead.length > 0 && html` (${first})`}, ${atLeast ? "at least " : ""}${ahead} in all`;
}

function Facts({ found }) {
  const numbers = found.queueNumbers;
  const pods = Object.entries(found.podsByState).map(([state, many]) => `${many} ${state}`);
  return html`<dl class="facts">
    <${Fact} name="State">${found.state}</${Fact}>
    ${found.queue !== null && html`<${Fact} name="Queue"><${Swatch} queue=${found.queue} /> <a href=${queueHref(found.queue)}><${Name} text=${found.queue} /></a></${Fact}>`}
    ${numbers && html`<${Fact} name="The queue's GPUs">holds ${gpus(numbers.allocated.gpuMilli)}, deserves ${numbers.deserved.gpuMilli === null ? "any number" : gpus(numbers.deserved.gpuMilli)}, fair share ${numbers.fairShare ? gpus(numbers.fairShare.gpuMilli) : NOT_KNOWN}, ${numbers.limit.gpuMilli === null ? "no limit" : `limit ${gpus(numbers.limit.gpuMilli)}`}</${Fact}>`}
    ${found.position && html`<${Fact} name="Turn"><${Place} position=${found.position} /></${Fact}>`}
    ${pods.length > 0 && html`<${Fact} name="Pods">${pods.join(", ")}${found.minMember > 1 && `; at least ${found.minMember} start together`}</${Fact}>`}
    ${found.priority !== null && html`<${Fact} name="Priority">${found.priority}${found.preemptible !== null && (found.preemptible ? ", may be preempted" : ", not preemptible")}</${Fact}>`}
    ${found.podGroup && found.podGroup !== found.name && html`<${Fact} name="PodGroup"><a href=${whyHref(found.namespace, found.podGroup)}><${Name} text=${found.podGroup} /></a></${Fact}>`}
    ${found.node && html`<${Fact} name="Node"><${Name} text=${found.node} /></${Fact}>`}
    ${found.since && html`<${Fact} name="Runs for"><${Age} since=${found.since} /></${Fact}>`}
    ${found.autoscaler && html`<${Fact} name="Autoscaler">${found.autoscaler}</${Fact}>`}
  </dl>`;
}

const Members = ({ found }) =>
  found.members.length > 0 &&
  html`<section>
    <h3>Members</h3>
    <ul class="members">
      ${found.members.map(
        ({ name, state, node }) => html`<li>
          <a href=${whyHref(found.namespace, name)}><${Name} text=${name} /></a> <span class="mark">${state}</span>${node && html` on <${Name} text=${node} />`}
        </li>`,
      )}
    </ul>
  </section>`;

const Leaving = ({ found }) =>
  found.waitsFor.length > 0 &&
  html`<section>
    <h3>Victims: pods that it waits for</h3>
    <ul>
      ${found.waitsFor.map(
        ({ namespace, name, node, since }) => html`<li>
          ${name ? html`<${Name} text=${`${namespace}/${name}`} />` : "a pod in another namespace"} on <${Name} text=${node} />, ${since ? html`evicted <${Age} since=${since} /> ago` : "leaving"}
        </li>`,
      )}
    </ul>
  </section>`;

const Decisions = ({ found, most }) =>
  html`<section>
    <h3>Decisions <small>newest first</small></h3>
    ${found.decisions.length === 0 && html`<p class="quiet">None that is remembered. Decisions are kept in memory and begin with the service.</p>`}
    <ol class="decisions">
      ${found.decisions.slice(0, most).map(
        ({ at, outcome, cause, sentence, onBehalfOf, pods, podCount }) => html`<li>
          <time datetime=${at} title=${dateAndTime(at)}>${clock(at)}</time>${" "}
          <span class="mark">${outcome}${cause && ` (${cause})`}</span> <bdi>${sentence}</bdi>${onBehalfOf && html` For <${Name} text=${onBehalfOf} />.`}
          ${pods.length > 0 && html`<span class="quiet"> ${count(podCount, "pod")}: ${pods.map(({ name, node }, i) => html`${i > 0 && ", "}<${Name} text=${name} />${node && html` on <${Name} text=${node} />`}`)}${podCount > pods.length && ", …"}</span>`}
        </li>`,
      )}
    </ol>
    ${found.decisions.length > most && html`<a href=${whyHref(found.namespace, found.name)}>All ${found.decisions.length} decisions</a>`}
  </section>`;

/** The answer of /api/v1/why; a short one within a list, a whole one on its page. */
export function Explanation({ namespace, name, isShort = false }) {
  looks.value;
  const { found, sentence } = useAnswer(`api/v1/why/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
  if (!found) return html`<p role="status">${sentence || "Asking …"}</p>`;
  return html`<div class="explanation">
    ${sentence && html`<p class="note">Not fresh: ${sentence}.</p>`}
    <p class="why"><strong>${found.why.reason}</strong> <bdi>${found.why.sentence}</bdi></p>
    <${Facts} found=${found} /> <${Leaving} found=${found} /> <${Members} found=${found} />
    <${Decisions} found=${found} most=${isShort ? 3 : 200} />
    ${isShort && html`<p><a href=${whyHref(namespace, name)}>Its page, to link to</a></p>`}
    <p class="quiet">The same in a terminal: <code>leeboard why ${namespace}/${name}</code></p>
  </div>`;
}
