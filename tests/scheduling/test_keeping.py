"""Room for the rest of a partially bound gang is kept for a while, and never at the cost of fairness."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.decision import Action, Plan
from app.model.names import GroupKey
from app.model.node import Node
from app.model.podgroup import FOREVER_S, PodGroup
from app.model.queue import Queue
from app.model.reason import Reason, Refusal
from app.model.resources import GPU
from app.model.snapshot import Snapshot
from app.scheduling.explain.unsatisfiable import judged
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.policy import MOST_KEPT_S, Policy
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.quota import QueueLedger
from tests import given

NOW = 1000.0
ONLY_ALLOCATE = Policy(actions=(Action.ALLOCATE,))


def partially_bound(
    size: int, *, bound: Sequence[str] = ("a",), gpus: int = 1, queue: str = "t", **more: Any
) -> PodGroup:
    """Build a gang of `size` pods, with pods bound on the nodes `bound`."""
    running = [
        given.placed(given.pod(f"bound-{index}", gpus=gpus, gang="torn", queue=queue), node)
        for index, node in enumerate(bound)
    ]
    rest = [given.pod(f"rest-{index}", gpus=gpus, gang="torn", queue=queue) for index in range(size - len(bound))]
    return given.group(*rest, running=running, min_member=size, **more)


def waiting(number: int, queue: str, *, gpus: int = 1, **more: Any) -> list[PodGroup]:
    pods = (given.pod(f"{queue}-{index}", gpus=gpus, queue=queue) for index in range(number))
    return [given.group(pod, created_at=float(index), **more) for index, pod in enumerate(pods)]


def running(node: str, queue: str, *, gpus: int = 1) -> PodGroup:
    pod = given.pod(f"runs-on-{node}-{queue}", gpus=gpus, queue=queue)
    return given.group(running=[given.placed(pod, node)], preemptible=False)


def started(found: Plan) -> list[GroupKey]:
    return [start.group for start in found.starts]


def both(snapshot: Snapshot, *, now: float = NOW) -> list[Plan]:
    """Plan as the search does, and as the webhooks do."""
    return [plan(snapshot, ONLY_ALLOCATE, now=now), plan_some(snapshot, snapshot.groups, now=now)]


def test_a_gang_that_never_fits_does_not_block_the_deserved_share_of_another_queue() -> None:
    nodes = [given.node(f"n{index:02}") for index in range(20)]
    queues = [given.queue("t"), given.queue("owner", deserved=160)]
    gang = partially_bound(400, bound=["n00"], created_at=-1.0, stale_grace_s=FOREVER_S)
    owed = waiting(32, "owner", gpus=4)

    for found in both(given.snapshot(nodes, queues, [gang, *owed])):
        assert sorted(started(found)) == sorted(group.key for group in owed)
        assert found.kept_for == frozenset()


QUEUES = [given.queue("t", deserved=4), given.queue("firm"), given.queue("other"), given.queue("owed", deserved=4)]
NODES = [given.node("a", gpus=4), given.node("b", gpus=4)]


def crowded(gang: PodGroup, *more: PodGroup, queues: list[Queue] | None = None) -> Snapshot:
    """Build a cluster with one free GPU; a queue that deserves nothing holds and keeps four."""
    rest = [running("a", "firm", gpus=3 - len(gang.placed) + 1), running("b", "firm", gpus=3)]
    return given.snapshot(NODES, queues or QUEUES, [gang, *rest, *more])


def test_room_for_the_rest_of_a_gang_is_kept_from_queues_that_hold_their_deserved_share() -> None:
    gang, others = partially_bound(3), waiting(2, "other")

    for found in both(crowded(gang, *others)):
        assert (found.starts, found.kept_for) == ((), frozenset({gang.key}))
        assert all("1 PodGroup ahead of it takes the room" in found.refusals[other.key].sentence for other in others)


def test_a_gang_without_pods_that_can_start_keeps_no_room_and_does_not_fail_the_plan() -> None:
    refusal = Refusal(reason=Reason.NOT_CONSIDERED, sentence="The scheduler does not consider pod rest-0.")
    gang, others = replace(partially_bound(2), pending=(), refusal=refusal), waiting(1, "other")

    for found in both(crowded(gang, *others)):
        assert (started(found), found.kept_for) == ([others[0].key], frozenset())
        assert found.refusals[gang.key] == refusal


def test_a_queue_below_its_deserved_share_gets_the_room_kept_for_a_gang_of_another_queue() -> None:
    gang, owed = partially_bound(3), waiting(2, "owed")

    for found in both(crowded(gang, *owed, *waiting(2, "other"))):
        assert started(found) == [owed[0].key]
        assert "1 PodGroup ahead of it takes" in found.refusals[owed[1].key].sentence


def test_a_queue_below_its_deserved_share_gets_kept_room_whatever_the_priority_of_the_gang() -> None:
    gang, owed = partially_bound(3, priority=90), waiting(1, "owed")

    for found in both(crowded(gang, *owed)):
        assert started(found) == [owed[0].key]


def test_a_search_for_a_queue_below_its_deserved_share_counts_room_kept_for_another() -> None:
    gang = partially_bound(3)
    owed = given.group(given.pod("owed", gpus=2, queue="owed"))
    rest = [running("a", "firm", gpus=3), running("b", "firm", gpus=2)]
    victim = given.group(running=[given.placed(given.pod("victim", queue="other"), "b")])

    found = plan(given.snapshot(NODES, QUEUES, [gang, *rest, victim, owed]), now=NOW)

    assert [each.group for each in found.evictions] == [victim.key]
    assert started(found) == [owed.key]


def test_room_is_kept_for_a_gang_without_room_now_after_a_failed_search() -> None:
    gang = partially_bound(2)
    full = [running("a", "firm", gpus=3), running("b", "firm", gpus=4)]
    snapshot = given.snapshot(NODES, QUEUES, [gang, *full])

    short, searching = both(snapshot)[1], plan(snapshot, now=NOW)

    assert searching.evictions == ()
    assert searching.kept_for == short.kept_for == frozenset({gang.key})


def test_the_rest_of_a_gang_starts_before_every_queue_within_its_deserved_share() -> None:
    gang, urgent = partially_bound(3), waiting(1, "other", gpus=4, priority=100)
    queues = [given.queue("t", deserved=4), replace(given.queue("other"), priority=200)]
    snapshot = given.snapshot([given.node("a", gpus=5)], queues, [gang, *urgent])

    assert [started(found) for found in both(snapshot)] == [[gang.key], [gang.key]]


@pytest.mark.parametrize(
    ("torn_for_s", "more"),
    [(10.0, {}), (1800.0, {"stale_grace_s": FOREVER_S})],
    ids=["a moment ago", "long ago and never stale"],
)
def test_the_rest_of_a_gang_does_not_take_the_deserved_share_of_another_queue(
    torn_for_s: float, more: dict[str, Any]
) -> None:
    gang = partially_bound(2, gpus=4, torn_since=NOW - torn_for_s, started_at=0.0, **more)
    owed = [replace(group, created_at=NOW - 100.0) for group in waiting(1, "owed", gpus=4)]
    queues = [given.queue("t", deserved=0), given.queue("owed", deserved=8)]
    snapshot = given.snapshot([given.node("a", gpus=8)], queues, [gang, *owed])

    for found in (plan(snapshot, now=NOW), plan_some(snapshot, snapshot.groups, now=NOW)):
        assert (started(found), found.evictions) == ([owed[0].key], ())


def test_the_rest_of_a_gang_starts_in_its_turn_where_room_was_kept_for_it() -> None:
    gang, owed, others = partially_bound(2, gpus=2), waiting(1, "owed", gpus=2), waiting(2, "other")
    queues = [given.queue("t"), given.queue("owed", deserved=2), replace(given.queue("other"), priority=200)]
    snapshot = given.snapshot(NODES, queues, [gang, *owed, *others])

    for found in both(snapshot, now=1.0):
        assert set(started(found)) == {group.key for group in (gang, *owed, *others)}
        assert found.kept_for == frozenset()


def test_no_more_room_is_kept_than_the_fair_share_of_the_queue_allows() -> None:
    gang, rest = partially_bound(4), [running("a", "t", gpus=2), running("a", "firm")]
    queues = [given.queue("t", deserved=4, weight=0), given.queue("firm"), given.queue("other")]
    snapshot = given.snapshot([given.node("a", gpus=6)], queues, [gang, *rest, *waiting(2, "other")])

    for found in both(snapshot):
        assert (len(found.starts), found.kept_for) == (1, frozenset({gang.key}))


@pytest.mark.parametrize(
    "gang",
    [
        partially_bound(6),  # 6 GPUs of a fair share of 4
        partially_bound(9),  # more than the cluster
        partially_bound(3, queue="owed-nothing"),
    ],
    ids=["beyond its fair share", "larger than the cluster", "no share"],
)
def test_no_room_is_kept_for_a_gang_that_would_exceed_the_fair_share_when_complete(gang: PodGroup) -> None:
    queues = [*QUEUES, given.queue("owed-nothing", weight=0)]

    for found in both(crowded(gang, *waiting(1, "other"), queues=queues)):
        assert found.kept_for == frozenset()
        assert len(found.starts) == 1


@pytest.mark.parametrize(
    ("gang", "kept_for_s"),
    [
        (partially_bound(3), 60.0),
        (partially_bound(3, stale_grace_s=FOREVER_S), 60.0),
        (partially_bound(3, stale_grace_s=10.0), 10.0),
        (partially_bound(3, stale_grace_s=5000.0), 60.0),
    ],
    ids=["default", "never stale", "a shorter grace", "a longer grace"],
)
def test_room_is_kept_no_longer_than_the_grace_period_of_the_settings(gang: PodGroup, kept_for_s: float) -> None:
    snapshot = crowded(replace(gang, torn_since=NOW - kept_for_s), *waiting(1, "other"))

    assert [bool(found.kept_for) for found in both(snapshot, now=NOW - 0.1)] == [True, True]
    assert [bool(found.kept_for) for found in both(snapshot, now=NOW)] == [False, False]
    assert [len(found.starts) for found in both(snapshot, now=NOW)] == [1, 1]


def test_room_is_kept_for_at_most_ten_minutes_whatever_the_settings() -> None:
    policy = Policy(stale_grace_s=1e9)

    assert policy.keeps_room_for(replace(partially_bound(3), torn_since=0.0), MOST_KEPT_S - 1)
    assert not policy.keeps_room_for(replace(partially_bound(3), torn_since=0.0), MOST_KEPT_S)


gpus = st.integers(1, 3)


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Draw a small full cluster with a partially bound gang and other pending groups."""
    nodes: list[Node] = [given.node(f"n{index}", gpus=draw(st.integers(2, 6))) for index in range(draw(gpus))]
    names = ["t", "u", "v"]
    deserved = [draw(st.integers(3, 9)), draw(st.integers(0, 4)), draw(st.integers(0, 4))]
    queues = [given.queue(name, deserved=each) for name, each in zip(names, deserved, strict=True)]
    gang = partially_bound(draw(st.integers(2, 4)), bound=["n0"], gpus=draw(gpus), queue="t")
    groups, left = [gang], [node.allocatable.gpu_milli // 1000 for node in nodes]
    left[0] -= gang.placed[0].pod.request.gpu_milli // 1000
    for number, node in enumerate(nodes):
        size = draw(st.integers(0, max(left[number], 0)))
        if size:
            groups.append(running(node.name, draw(st.sampled_from(names)), gpus=size))
    for name in names:
        groups += waiting(draw(gpus), name, gpus=draw(gpus))
    return given.snapshot(nodes, queues, groups)


@settings(max_examples=400)
@for_all(clusters())
def test_no_room_is_kept_beyond_the_fair_share_or_ahead_of_a_queue_below_its_deserved_share(snapshot: Snapshot) -> None:
    found = plan(snapshot, ONLY_ALLOCATE, now=NOW)
    shares, after = fair_shares(judged(snapshot)), carried_out(snapshot, found)
    accounts = QueueLedger(after).accounts

    for key in found.kept_for:
        gang = snapshot.groups[key]
        each, fair = gang.pending[0].request.gpu_milli, shares[gang.queue].fair_share.gpu_milli
        assert each * gang.min_member <= fair
        assert QueueLedger(snapshot).accounts[gang.queue].allocated[GPU] + each <= fair
        for other in after.groups.values():
            account = accounts[other.queue]
            if other.queue != gang.queue and account.allocated[GPU] < account.deserved[GPU]:
                # Nodes that are withheld from borrowers belong to another rule.
                alone = plan_some(after, [other.key], ONLY_ALLOCATE, now=NOW, withheld=found.withheld)
                assert not alone.starts, (other, found)


def carried_out(snapshot: Snapshot, found: Plan) -> Snapshot:
    """Return the cluster in which the started pods run."""
    nodes = {one.pod: one.node for start in found.starts for one in start.placements}
    groups = []
    for group in {**snapshot.running, **snapshot.groups}.values():
        come = tuple(given.placed(pod, nodes[pod.uid]) for pod in group.pending if pod.uid in nodes)
        wait = tuple(pod for pod in group.pending if pod.uid not in nodes)
        groups.append(replace(group, placed=(*group.placed, *come), pending=wait))
    return given.snapshot(snapshot.nodes.nodes, snapshot.queues.values(), groups)


def test_many_generated_clusters_keep_room() -> None:
    kept = 0

    @settings(max_examples=300, database=None)
    @for_all(clusters())
    def count(snapshot: Snapshot) -> None:
        nonlocal kept
        kept += bool(plan(snapshot, ONLY_ALLOCATE, now=NOW).kept_for)

    count()
    assert kept >= 15  # one in twenty
