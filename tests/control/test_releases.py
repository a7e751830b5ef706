import asyncio
from collections.abc import Callable

import pytest

from app.control.cycle.releases import ALWAYS_COMPLETE_BELOW, BURST, FAILED_FOR_GOOD, REFUSED_FOR_GOOD, SPAN, WINDOW
from app.control.cycle.reserver import REFUSED_NODES_FOR_S
from app.control.writers.in_flight import ASKED_WITHIN_S, InFlightLimiter
from app.model.marks import GATE
from app.model.names import GroupKey, PodUid
from app.model.question import Refused
from app.model.reason import Reason
from app.model.seam import (
    ConflictError,
    ForbiddenError,
    KubeError,
    OutcomeUnknownError,
    RawObject,
    RejectedError,
    UnavailableError,
    WebhookFailedError,
)
from app.model.seam import Resource as Kind
from tests.control.leases import BESIDE_US, LEASE, SETTLED_S, active, elected
from tests.control.wired import FickleCluster, World, furnished, living, passes

HELD = (GATE,)
FOREIGN = "example.com/approval"
ROOMY = ("a", "b", "c")
"""Nodes of 100 GPUs each, since a node takes no more than 110 pods."""


def gates(cluster: FickleCluster, pod: RawObject) -> list[str]:
    """Return the gates of a pod in the store."""
    now = next(one for one in cluster.objects(Kind.PODS) if one["metadata"]["uid"] == pod["metadata"]["uid"])
    return [gate["name"] for gate in now["spec"].get("schedulingGates", ())]


def still_held(world: World, pods: list[RawObject]) -> int:
    return sum(bool(gates(world.cluster, pod)) for pod in pods)


# Which pods are released


async def test_a_gated_pod_whose_turn_is_reached_is_released_and_not_nominated() -> None:
    async with living("a") as world:
        pod = world.pod("one", gates=HELD)

        await passes(1)

        assert gates(world.cluster, pod) == []
        assert (world.cluster.releases, world.cluster.nominations) == (["one-0"], [])
        assert world.count("releases") == 1
        assert await world.choose(pod, "a") == "a"


def gang_in_a_rack(world: World, *, nodes: int) -> list[RawObject]:
    """Create nodes of one GPU, two in each rack, and a gated gang that fills one of the racks."""
    for number in range(nodes):
        world.rack(str(number // 2), f"n{number}")
    pods = world.gang("crew", size=2, gates=HELD)
    world.keep_in_a_rack("crew")
    return pods


async def test_a_pod_that_loses_its_reservation_while_it_is_nominated_stays_gated_without_nomination() -> None:
    async with living() as world:
        pods = gang_in_a_rack(world, nodes=ALWAYS_COMPLETE_BELOW + 2)
        world.cluster.takes_s["nominate"] = 1
        await passes(0.5)
        lost = {pod["metadata"]["name"]: str(world.promised(pod)) for pod in pods}

        for node in lost.values():
            world.delete_node(node)
        await passes(10)

        assert still_held(world, pods) == 0
        now = {pod["metadata"]["name"]: world.promised(pod) for pod in pods}
        assert world.cluster.nominations[:2] == [*lost.items()]
        # Two writers at the same moment: either may be first.
        assert sorted(world.cluster.nominations[2:4]) == [(name, None) for name in sorted(lost)]
        assert dict(world.cluster.nominations) == now


@pytest.mark.parametrize("nodes", [ALWAYS_COMPLETE_BELOW - 1, ALWAYS_COMPLETE_BELOW])
async def test_a_pod_with_a_topology_is_nominated_where_its_node_may_be_outside_the_sample(nodes: int) -> None:
    async with living() as world:
        pods = gang_in_a_rack(world, nodes=nodes)
        await passes(1)

        assert still_held(world, pods) == 0
        promised = {pod["metadata"]["name"]: world.promised(pod) for pod in pods}
        assert dict(world.cluster.nominations) == (promised if nodes == ALWAYS_COMPLETE_BELOW else {})


async def test_a_gated_pod_that_cannot_run_stays_gated_and_gets_the_reason() -> None:
    async with living("a") as world:
        pod = world.pod("one", gpus=2, gates=HELD)

        await passes(5)

        assert gates(world.cluster, pod) == [GATE]
        assert world.reason(pod) is Reason.NO_NODE_FITS
        known = world.inspect.pod("q", "one-0")
        assert known is not None
        assert (known.state, known.refusal) == ("Held", world.planning.refusals[known.pod.group])
        assert world.cluster.told == [("one-0", "NoNodeFits")]


async def test_a_pod_with_gates_of_others_is_neither_planned_nor_released() -> None:
    async with living("a") as world:
        pods = [world.pod("both", gates=(GATE, FOREIGN)), world.pod("theirs", gates=[FOREIGN])]
        await passes(5)
        assert [world.promised(pod) for pod in pods] == [None, None]

        world.patch(pods[0], spec={"schedulingGates": [{"name": GATE}]})
        await passes(1)

        assert world.cluster.releases == ["both-0"]


async def test_a_gated_gang_is_released_only_when_all_its_pods_have_reservations() -> None:
    async with living("a", gpus=2) as world:
        gang = world.gang("crew", size=3, gates=HELD)
        await passes(5)
        assert still_held(world, gang) == 3

        world.nodes("b")
        await passes(1)

        assert world.cluster.releases == ["crew-0", "crew-1", "crew-2"]


async def test_pods_are_released_in_the_order_of_the_plan() -> None:
    async with living("a", gpus=0) as world:
        world.pod("low", priority_class="train", gates=HELD)
        world.pod("high", priority_class="build-preemptible", gates=HELD)
        await passes(1)

        world.nodes("b", gpus=2)
        await passes(1)

        assert world.cluster.releases == ["high-0", "low-0"]


async def test_a_gated_pod_with_victims_is_released_when_they_are_gone() -> None:
    async with living("a") as world:
        world.queue("rich")
        runs = world.runs("old", "a", queue="rich")
        world.patch(runs, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        pod = world.pod("one", gates=HELD)
        await passes(5)
        assert (world.promised(pod), world.cluster.releases) == ("a", [])

        world.delete(runs)
        await passes(2)

        assert (world.cluster.releases, world.cluster.nominations) == (["one-0"], [])


# How fast


async def test_no_more_pods_are_released_than_kube_scheduler_filters_and_those_together() -> None:
    async with living(*ROOMY, gpus=100) as world:
        pods = [world.pod(f"p{number:02}", gates=HELD) for number in range(WINDOW + BURST + 2)]
        await passes(1)
        assert still_held(world, pods) == BURST + 2

        for pod in pods[: BURST - 1]:
            await world.filter(pod, *ROOMY)
        await passes(0.5)
        assert still_held(world, pods) == BURST + 2
        await world.filter(pods[BURST - 1], *ROOMY)
        await passes(0.5)
        assert still_held(world, pods) == 2

        await passes(ASKED_WITHIN_S + 1)
        assert still_held(world, pods) == 0


async def ask_about_the_others(world: World, pods: list[RawObject], first: RawObject) -> None:
    """Filter like a kube-scheduler that reaches the first pod after all others, until no other pod is released."""
    asked = [first]
    for _ in range(2 * len(pods) // WINDOW):
        await passes(0.05)
        for pod in pods:
            if pod not in asked and not gates(world.cluster, pod):
                asked.append(pod)
                await world.filter(pod, *ROOMY)


async def test_a_pod_that_kube_scheduler_filters_last_is_overtaken_by_a_limited_number_of_pods() -> None:
    async with living(*ROOMY, gpus=100) as world:
        pods = [world.pod(f"p{number:03}", gates=HELD) for number in range(SPAN + 10)]
        await ask_about_the_others(world, pods, pods[0])
        assert still_held(world, pods) == 10

        await world.filter(pods[0], *ROOMY)
        await passes(0.5)
        assert still_held(world, pods) == 0


def leave(world: World, pod: RawObject) -> None:
    """Delete a pod with a finalizer, like pods of Jobs."""
    world.patch(pod, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize("end", [World.refuse, World.delete, leave], ids=["refused", "deleted", "leaving"])
async def test_a_pod_that_is_no_longer_filtered_blocks_no_other_pod(end: Callable[[World, RawObject], None]) -> None:
    async with living(*ROOMY, gpus=100) as world:
        pods = [world.pod(f"p{number:03}", gates=HELD) for number in range(SPAN + 10)]
        await ask_about_the_others(world, pods, pods[0])

        end(world, pods[0])
        await passes(0.5)

        assert still_held(world, pods[1:]) == 0


async def test_a_pod_that_was_not_released_after_all_has_overtaken_no_pod() -> None:
    window = InFlightLimiter(WINDOW, span=3)
    window.send(PodUid("oldest"))
    for number in range(10):
        await window.room()
        window.send(PodUid(f"fails-{number}"))
        window.withdraw(PodUid(f"fails-{number}"))
    window.send(PodUid("second"))
    window.send(PodUid("third"))

    room = asyncio.create_task(window.room())
    await asyncio.sleep(1)
    assert not room.done()
    window.answer(PodUid("oldest"))
    await room


async def test_a_reservation_does_not_expire_while_its_pod_is_in_the_release_queue() -> None:
    async with living(*ROOMY, gpus=100, promise_ttl_s=3) as world:
        pods = [world.pod(f"p{number}", gates=HELD) for number in range(WINDOW + 1)]
        await passes(4.5)
        assert still_held(world, pods) == 1
        (last,) = (pod for pod in pods if gates(world.cluster, pod))
        assert world.promised(last) is not None

        await passes(ASKED_WITHIN_S - 4.5 + 2.5)

        assert gates(world.cluster, last) == []
        assert world.promised(last) is not None  # its time began with its release
        assert world.count("promises_expired") > 0


# When a patch fails


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [
        (UnavailableError("429", retry_after_s=7), 7),
        (ConflictError("409"), 1),
        (RejectedError("403"), 1),
        (OutcomeUnknownError("time-out"), 1),
    ],
    ids=repr,
)
async def test_a_failed_release_is_retried_after_a_pause(error: KubeError, pause_s: float) -> None:
    async with living("a") as world:
        world.cluster.errors["release"] += [error]
        pod = world.pod("one", gates=HELD)
        await passes(pause_s - 0.1)
        assert world.cluster.releases == ["one-0"]

        await passes(0.5)

        assert world.cluster.releases == ["one-0"] * 2
        assert gates(world.cluster, pod) == []


async def test_a_successful_release_whose_reply_was_lost_is_not_repeated() -> None:
    async with living("a") as world:
        world.cluster.lost_replies["release"] = 1
        world.pod("one", gates=HELD)

        await passes(10)

        assert world.cluster.releases == ["one-0"]


async def test_a_release_that_never_succeeds_loses_its_reservation_and_blocks_no_other_pod() -> None:
    async with living("a", promise_ttl_s=5) as world:
        world.cluster.errors["release"] += [OutcomeUnknownError("500")] * 1000
        pod = world.pod("one", gates=HELD)
        await passes(4)
        assert world.promised(pod) == "a"

        await passes(3)

        assert world.count("promises_expired") == 1


@pytest.mark.parametrize("error", [RejectedError("denied by a policy"), ForbiddenError("denied by a policy")], ids=repr)
async def test_a_release_that_is_refused_repeatedly_is_reported_and_its_node_is_given_to_other_pods(
    error: KubeError,
) -> None:
    async with living("a") as world:
        world.cluster.errors["release"] += [error] * REFUSED_FOR_GOOD
        pod = world.pod("one", gates=HELD)
        await passes(REFUSED_FOR_GOOD + 1)

        refusal = world.planning.refusals[GroupKey("q", pod["metadata"]["uid"])]
        assert (world.promised(pod), world.free_gpus(), refusal.reason) == (None, {"a": 1}, Reason.BACKING_OFF)
        assert refusal.sentence == (
            "The API server refuses the removal of the scheduling gate: denied by a policy; "
            "Leeboard tries again in 2 s."
        )
        await passes(5)
        assert (world.promised(pod), gates(world.cluster, pod)) == ("a", [])


@pytest.mark.parametrize(
    ("error", "culprit"),
    [
        (OutcomeUnknownError("500"), "The API server did not confirm"),
        (WebhookFailedError("500 failed calling webhook"), "An admission webhook failed on"),
        (ConflictError("409"), "The API server refuses"),
    ],
    ids=repr,
)
async def test_a_release_that_fails_for_minutes_is_reported_and_the_pod_backs_off(
    error: KubeError, culprit: str
) -> None:
    async with living("a") as world:
        world.cluster.errors["release"] += [error] * 1000
        pod = world.pod("one", gates=HELD)
        await passes(FAILED_FOR_GOOD + 1)

        refusal = world.planning.refusals[GroupKey("q", pod["metadata"]["uid"])]
        assert (world.promised(pod), world.free_gpus(), refusal.reason) == (None, {"a": 1}, Reason.BACKING_OFF)
        assert refusal.sentence.startswith(
            f"{culprit} the removal of the scheduling gate: {error}; Leeboard tries again in"
        )
        await passes(600)
        assert len(world.cluster.releases) < 100


async def test_a_release_survives_a_short_outage_of_the_api_server() -> None:
    async with living("a") as world:
        world.cluster.errors["release"] += [UnavailableError("no connection", retry_after_s=0.2)] * 50
        pod = world.pod("one", gates=HELD)

        await passes(20)

        assert (world.promised(pod), gates(world.cluster, pod)) == ("a", [])
        assert world.planning.refusals == {}


async def test_a_release_that_is_refused_for_a_moment_keeps_its_reservation() -> None:
    async with living("a") as world:
        world.cluster.errors["release"] += [ForbiddenError("403")] * (REFUSED_FOR_GOOD - 1)
        pod = world.pod("one", gates=HELD)

        await passes(5)

        assert (world.promised(pod), gates(world.cluster, pod)) == ("a", [])
        assert world.planning.attempts.stalled() == {}


async def test_the_release_of_a_pod_whose_deletion_was_missed_is_tried_once() -> None:
    async with living("a") as world:
        pod = world.pod("one", gpus=2, gates=HELD)
        await passes(1)
        world.cluster.hide(Kind.PODS)
        world.delete(pod)

        world.nodes("b", gpus=2)
        await passes(10)

        assert world.cluster.releases == ["one-0"]


# When the plan changes


async def test_a_pod_that_loses_its_reservation_before_its_release_stays_gated() -> None:
    async with living(*ROOMY, gpus=100) as world:
        pods = [world.pod(f"p{number}", gates=HELD) for number in range(WINDOW + 1)]
        await passes(1)
        (last,) = (pod for pod in pods if gates(world.cluster, pod))

        for node in ROOMY:
            world.delete_node(node)
        await passes(ASKED_WITHIN_S + 2)

        assert gates(world.cluster, last) == [GATE]


async def test_a_gang_that_loses_its_reservations_during_its_release_is_refused_and_not_bound() -> None:
    async with living("a", "b", gpus=2) as world:
        world.cluster.takes_s["release"] = 1
        world.cluster.errors["release"] += [RejectedError("422")] * 2
        gang = world.gang("crew", size=4, gates=HELD)
        await passes(1.5)
        released = [pod for pod in gang if not gates(world.cluster, pod)]
        assert len(released) == 2
        binds = [world.binding(pod, await world.choose(pod, "a", "b")) for pod in released]
        await passes(0.1)

        world.delete_node("b")
        await passes(5)

        refused = [await world.filter(pod, "a") for pod in released]
        assert refused == [Refused(Reason.GANG_DOES_NOT_FIT)] * 2
        assert world.bound() == {}
        assert still_held(world, gang) == 2
        assert all([await bind for bind in binds])  # each got the reason why it is not bound

        world.nodes("c", gpus=2)
        await passes(5)
        assert still_held(world, gang) == 0
        assert sorted(name for name, node in world.cluster.nominations if node) == sorted(
            pod["metadata"]["name"] for pod in released
        )


async def test_a_pod_that_is_refused_before_the_watch_shows_its_release_is_woken_by_nomination() -> None:
    async with living("a") as world:
        pod = world.pod("one", gates=HELD)
        await passes(0)
        world.cluster.hide(Kind.PODS)
        await passes(1)
        assert gates(world.cluster, pod) == []

        world.delete_node("a")
        await passes(1)
        assert isinstance(await world.filter(pod, "a"), Refused)
        world.nodes("b")
        await passes(1)

        assert world.cluster.nominations == [("one-0", "b")]


async def test_a_release_is_remembered_only_until_the_watch_shows_it() -> None:
    async with living("a") as world:
        world.pod("one", gates=HELD)

        await passes(REFUSED_NODES_FOR_S + 2)

        assert world.waker._releases._opened == set()


# Restart


async def test_a_restart_during_the_release_of_a_gang_loses_nothing() -> None:
    cluster = furnished("a", "b", gpus=2)
    cluster.takes_s["release"] = 1
    cluster.errors["release"] += [UnavailableError("503", retry_after_s=60)] * 2
    async with living(cluster=cluster) as world:
        gang = world.gang("crew", size=4, gates=HELD)
        await passes(1.5)
        assert still_held(world, gang) == 2

    async with living(cluster=cluster) as world:
        await passes(5)

        assert still_held(world, gang) == 0
        nodes = [await world.choose(pod, "a", "b") for pod in gang]
        binds = [world.binding(pod, node) for pod, node in zip(gang, nodes, strict=True)]
        assert await asyncio.gather(*binds) == [""] * 4
        assert len(world.bound()) == 4


# Which pods are released first


async def test_a_pod_of_higher_priority_is_released_before_pods_reserved_earlier() -> None:
    async with living(*ROOMY) as world:
        world.cluster.takes_s["release"] = 0.5
        low = [world.pod(f"low-{number}", gates=HELD) for number in range(100)]
        await passes(0.6)

        high = world.pod("high", gates=HELD, priority_class="build-preemptible")
        await passes(2)

        assert gates(world.cluster, high) == []
        assert still_held(world, low) > 0


# When another replica decides


@pytest.mark.parametrize("offset_s", [0.0, 0.1, 0.316, 0.5, 0.9])
async def test_a_replica_that_loses_its_lease_during_a_large_release_continues_to_run(offset_s: float) -> None:
    async with living(cluster=elected(gpus=100), **BESIDE_US) as world:
        await passes(SETTLED_S + offset_s)
        world.cluster.takes_s["release"] = 0.02
        pods = [world.pod(f"p{number}", gates=HELD) for number in range(100)]

        world.cluster.holders[LEASE] = "pod-b_1234"
        for _ in range(300):
            await passes(0.01)

        assert not active(world)
        assert len(world.cluster.releases) <= len(pods)
        # Every task still gets its turn: a pod created now is seen.
        later = world.pod("later", gates=HELD)
        await passes(1)
        assert world.cache.pods.get(PodUid(later["metadata"]["uid"])) is not None
