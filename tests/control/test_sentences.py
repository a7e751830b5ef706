"""Each reason in each of its variants, read as a user reads it in `kubectl describe`."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.cluster.decode import pod as decoded
from app.cluster.groups.groups import Members, form, overlooked
from app.cluster.groups.membership import UNLISTED_GPUS
from app.cluster.groups.terms import GroupTerms
from app.control.journal import waits
from app.control.journal.waits import Wait
from app.control.writers.unwritten import unwritten
from app.kube.client import NOTE_BYTES
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node, Taint
from app.model.pod import Constraint, Pod, SchedulerMessage, Sharing
from app.model.podgroup import GroupSpec, PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import PHRASES, Reason, Refusal, phrase
from app.model.seam import KubeError, NotSentError, OutcomeUnknownError, UnavailableError, WebhookFailedError
from app.model.sentence import EVERYTHING, told
from app.model.topology import Topology
from app.scheduling.planner.planner import plan
from app.scheduling.preemption import ageing, lending
from tests import given
from tests.control.wired import living, passes

Names = Callable[[str], str]
"""Makes the name of an object."""

ORDINARY = 250
"""The most characters of a sentence with ordinary names: three lines of a terminal."""

MATTER = 40
"""The characters at the beginning, without hostile names, that an event must show: its note is cut."""

BANNED = re.compile(
    r"""\b(whom|whoever|lest|anew|nobody|those\ who|roster|promised?|promises|room\ kept|held\ for|claimed
    |parked|stalled|setback|awaiting|Held|Awaiting|Promised|Binding|Releasing|dissolve[ds]?|torn|owed
    |the\ scheduler|not\ ready\ pods|e\.g\.|etc|please|sorry|unfortunately)\b|\(s\)""",
    re.VERBOSE,
)
"""Old words, words of Leeboard's own code, states, and words that say nothing."""

ONE_OF_MANY = re.compile(
    r"(?<![\d.-])1 (pods|GPUs|nodes|cores|PodGroups|domains|others)\b(?! (that|of))|\b[02-9] (pod|node|GPU|core)\b"
)

VAGUE = {"Waiting", "Currently", "Because", "If", "Note", "Error", "There", "Failed", "Cannot"}
"""Words with which no sentence says what is the matter."""

AN_ERROR = '403 pods "p" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4'


def ordinary(name: str) -> str:
    return name


def hostile(name: str) -> str:
    return name + "x" * (253 - len(name))


@pytest.mark.parametrize("names", [ordinary, hostile])
async def test_each_reason_says_what_is_the_matter_in_a_plain_sentence(names: Names) -> None:
    found = [*of_quota(names), *of_groups(names), *of_room(names), *of_topologies(names), *of_waits(names)]
    found += [one async for one in of_attempts(names)]

    assert {one.reason for one in found} == set(Reason)
    assert [problem for one in found for problem in problems(told(one.sentence, EVERYTHING), names)] == []


def problems(sentence: str, names: Names) -> Iterator[str]:
    """Yield what is wrong with a sentence."""
    if not re.fullmatch(r"[A-Z0-9].*[.?]", sentence) or re.search(r"  |\.\.|[{}]|\bNone\b|[:;,][.;,:]", sentence):
        yield f"no sentence: {sentence}"
    if sentence.partition(" ")[0] in VAGUE:
        yield f"does not begin with what is the matter: {sentence}"
    if found := BANNED.search(sentence) or ONE_OF_MANY.search(sentence):
        yield f"{found[0]}: {sentence}"
    if names is ordinary and len(sentence) > ORDINARY:
        yield f"{len(sentence)} characters: {sentence}"
    note = f"PodGroup {hostile('gang')}: {sentence}".encode()[:NOTE_BYTES].decode()
    if _without_names(sentence)[:MATTER] not in _without_names(note):
        yield f"an event does not say what is the matter: {note}"


def _without_names(text: str) -> str:
    return re.sub("x{5,}", "", text)


@pytest.mark.parametrize("reason", Reason)
def test_each_phrase_survives_the_message_of_kube_scheduler(reason: Reason) -> None:
    """kube-scheduler joins causes by commas and counts; `decode` must find the other causes in its message again."""
    foreign = "node(s) had untolerated taint {dedicated: team}"
    message = f"0/3 nodes are available: 1 {foreign}, 2 {phrase(reason)}. preemption: 0/3 nodes are available."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {}, "status": {"conditions": [condition]}}

    said = decoded(raw, profiles=frozenset()).said

    assert (said.by_us, said.by_scheduler, said.because) == (True, False, foreign)
    assert not re.search(r"\d|[,;:.]", PHRASES[reason])
    assert BANNED.search(PHRASES[reason]) is None


# The refusals ---------------------------------------------------------------------------------------------------------


def refused(*groups: PodGroup, nodes: list[Node], **more: object) -> Refusal:
    """Return why the first of the groups waits, in a cluster with small queues."""
    queues = [given.queue(one.queue, deserved=2) for one in {one.queue: one for one in groups}.values()]
    return plan(given.snapshot(nodes, queues, groups, **more)).refusals[groups[0].key]


def of_quota(names: Names) -> Iterator[Refusal]:
    top, leaf, bad, full = map(names, ("top", "leaf", "bad", "full"))
    queues = [given.queue(top, deserved=4), given.queue(leaf, top, deserved=2, limit=4)]
    queues += [given.queue(bad, names("gone")), given.queue(full, deserved=2, limit=3)]
    node = given.node("a", gpus=8)
    running = given.group(running=[given.placed(given.pod("r", gpus=3, queue=full), "a")], preemptible=False)

    def why(queue: str, gpus: int, **more: object) -> Refusal:
        group = given.group(given.pod("w", gpus=gpus, queue=queue), **more)  # type: ignore[arg-type] # free-form
        return plan(given.snapshot([node], queues, [group, running])).refusals[group.key]

    yield from (why(queue, 1) for queue in (names("laef"), names("other"), top, bad, full))
    yield from (why(leaf, 5), why(leaf, 3, preemptible=False), why(full, 1, preemptible=False))


def of_groups(names: Names) -> Iterator[Refusal]:
    name, queue = names("gang"), names("q")
    one, two = (given.pod(names(each), gang=name, queue=queue) for each in ("one", "two"))
    spec = GroupSpec(key=one.group, uid="u", min_member=2)
    two_sets = (PodSet(name=names("leader"), min_member=1), PodSet(name=names("workers"), min_member=2))
    parts = replace(spec, min_member=3, root=SubGroup(pod_sets=two_sets))
    on = GroupTerms(queue=QueueName(queue), priority=50, preemptible=True)

    def why(*pods: Pod, spec: GroupSpec | None = spec, **more: object) -> Refusal:
        members = Members(**{"pods": pods, "places": {}, "stuck": (), **more})  # type: ignore[arg-type] # free-form
        found = form(one.group, spec, members, on).refusal
        assert found is not None
        return found

    unread = "label runai/queue is 7; write a text"
    yield from (why(one), why(one, replace(two, gated=True)), why(replace(one, gated=True)))
    yield why(replace(one, gated=True), spec=replace(spec, min_member=1))
    yield from (why(one, spec=parts), why(replace(one, subgroup=names("leader")), spec=parts))
    yield why(replace(one, subgroup=names("leadr")), spec=parts)
    yield from (why(replace(one, problem=unread)), why(one, two, stuck={one.uid}))
    yield why(replace(one, said=SchedulerMessage(because="volume node affinity conflict")), two, stuck={one.uid})
    yield from (why(one, spec=None), why(one, spec=replace(spec, problem="spec.minMember is 0; write 1 or more")))
    yield why(one, spec=replace(spec, suspended=f"Job {names('train')} is suspended (spec.suspend is true)."))
    yield why(replace(one, ungrouped=f"Its owner Job {names('train')} is still being read."), two)
    yield why(one, two, gpus_unknown=UNLISTED_GPUS)
    for lacking in (replace(one, lacks_claim=names("claim")), one):
        found = overlooked(lacking, is_overlooked=True)
        assert found is not None
        yield found


def of_room(names: Names) -> Iterator[Refusal]:
    queue, other = names("q"), names("r")

    def pod(name: str, gpus: int = 1, queue: str = queue, gang: str = "", **more: Any) -> Pod:
        return given.pod(names(name), gpus=gpus, queue=queue, gang=gang and names(gang), **more)

    def gang(*sizes: int) -> PodGroup:
        return given.group(*(pod(f"w{index}", gpus, gang="w") for index, gpus in enumerate(sizes)))

    small, a, b = given.node(names("a"), gpus=2), NodeName(names("a")), given.node(names("b"), gpus=2)
    on_a = given.group(running=[given.placed(pod("x", queue=other), a)])
    mine = given.group(running=[given.placed(pod(f"x{i}", gang="x"), a) for i in "12"], min_member=1)
    half = replace(pod("half", 0), sharing=Sharing(portion_ppm=500_000))
    bad = given.node(names("c"), taints=(Taint(names("dedicated")),))
    yield refused(given.group(pod("w", 9)), nodes=[small])
    yield refused(given.group(pod("w", 2)), on_a, nodes=[small])
    yield refused(given.group(pod("w", 2)), on_a, nodes=[small, bad])
    yield refused(given.group(pod("w", 2)), mine, nodes=[small])
    yield refused(given.group(pod("w")), nodes=[])
    yield refused(given.group(half), nodes=[replace(small, shares_devices=False)])
    yield refused(given.group(half), given.group(running=[given.placed(pod("x", 2), a)]), nodes=[small])
    yield refused(given.group(pod("w", constraint=Constraint(node_selector=(("zone", "east"),)))), nodes=[small])
    yield from (refused(gang(*sizes), nodes=[small, b]) for sizes in ((1,) * 5, (2, 2, 2)))
    yield from (refused(gang(*sizes), on_a, nodes=[small, b]) for sizes in ((1,) * 4, (1, 2, 1)))
    asks = replace(pod("w"), said=SchedulerMessage(by_scheduler=True, because="volume node affinity conflict"))
    yield refused(given.group(asks), nodes=[small], refused={asks.uid: frozenset({a})})
    yield from (ageing.refusal(gang(1)), lending.refusal(gang(1)))


def of_topologies(names: Names) -> Iterator[Refusal]:
    topologies = {names("dc"): Topology(name=names("dc"), levels=(names("zone"), names("rack")))}
    group = given.group(*(given.pod(names(f"w{index}"), gang=names("w"), gpus=2) for index in range(3)))
    racks = [
        given.node(names(f"n{rack}"), gpus=2, labels={names("zone"): "z", names("rack"): names(rack)}) for rack in "ab"
    ]

    def why(topology: str, *, required: str = "", nodes: list[Node] = racks) -> Refusal:
        constraint = TopologyConstraint(names(topology), required=required and names(required))
        root = SubGroup(topology=constraint, pod_sets=group.tree.pod_sets)
        return refused(replace(group, root=root), nodes=nodes, topologies=topologies)

    yield from (why("cd", required="rack"), why("moon", required="rack"), why("dc"), why("dc", required="row"))
    yield from (why("dc", required="rack"), why("dc", required="zone"), why("dc", required="rack", nodes=racks[:1]))
    yield why("dc", required="rack", nodes=[given.node(names("n"))])


def of_waits(names: Names) -> Iterator[Refusal]:
    for nodes in ("a", "ab", "abcde"):
        wait = Wait(
            group=GroupKey("q", names("gang")),
            pods=tuple(PodUid(node) for node in nodes),
            nodes=frozenset(NodeName(names(node)) for node in nodes),
            victims=(),
            freed=frozenset(),
            since=0.0,
            began="2026-01-31T12:00:00Z",
            relief=0,
        )
        yield from (
            waits.for_devices(wait, obstacle) for obstacle in ("", f"its reservation pod has ended: {AN_ERROR}")
        )


async def of_attempts(names: Names) -> AsyncIterator[Refusal]:
    """Yield the refusals after failed attempts, and while victims leave."""
    errors: list[KubeError] = [KubeError(AN_ERROR), NotSentError(AN_ERROR), WebhookFailedError(AN_ERROR)]
    errors += [UnavailableError(AN_ERROR), OutcomeUnknownError(AN_ERROR)]
    async with living("a", gpus=2) as world:
        for number in range(2):
            world.runs(names(f"old{number}")[:250], "a")
        await passes(1)
        world.pod("new", gpus=2, priority_class="build-preemptible")
        waiting = world.pod("other", gpus=9)
        await passes(3)
        yield from_one(world.planning.attempts.stalled())
        key = GroupKey("q", waiting["metadata"]["uid"])
        for error in errors:
            world.planning.attempts.dissolve(key, unwritten("the binding", error))
            found = world.cache.groups.waiting()[key].refusal
            assert found is not None
            yield found


def from_one(refusals: Mapping[GroupKey, Refusal]) -> Refusal:
    """Return the only refusal."""
    (found,) = refusals.values()
    return found
