"""Every cause for which a pod is pending, as its owner reads it: in the event, and in the status of the PodGroup."""

import asyncio

import pytest

from app.control.report.events import EVENTS_PER_ROUND
from app.model.marks import GATE
from app.model.reason import Reason, Refusal
from app.model.seam import (
    ForbiddenError,
    KubeError,
    OutcomeUnknownError,
    RawObject,
    RejectedError,
    Resource,
    UnavailableError,
)
from app.simulation import manifests
from app.simulation.manifests import Quota
from tests.control.gpu_machines import SharingCluster, machines, sharer
from tests.control.wired import World, living, passes

SETTLED_S = 3.0
"""After this time all events and statuses have been written."""

POLICY = "admission webhook validate.example.com denied the request: no team label"


def why(world: World, pod: RawObject) -> Refusal:
    """Return why a pod is pending."""
    found = world.inspect.pod("q", pod["metadata"]["name"])
    assert found is not None
    assert found.refusal is not None
    return found.refusal


def status(world: World) -> RawObject:
    """Return the status of the PodGroup `gang`."""
    (found,) = (one for one in world.cluster.objects(Resource.POD_GROUPS) if one["metadata"]["name"] == "gang")
    return dict(found.get("status", {}))


def reasons(world: World) -> list[RawObject]:
    """Return the reasons in the status of the PodGroup `gang`."""
    return [reason for one in status(world)["schedulingConditions"] for reason in one["reasons"]]


def reasons_left(world: World) -> list[RawObject]:
    """Return the conditions of the PodGroup `gang`, none once it runs."""
    return list(status(world)["schedulingConditions"])


# Quota


async def test_the_status_of_a_gang_above_the_limit_of_its_queue_has_the_numbers_of_the_queue() -> None:
    async with living("a", gpus=8) as world:
        queue = manifests.queue("small", None, Quota(gpus=0))
        queue["spec"]["resources"]["gpu"]["limit"] = 1
        world.cluster.create(Resource.QUEUES, queue)
        world.gang("gang", size=2, queue="small")
        await passes(SETTLED_S)

        (group,) = world.cluster.objects(Resource.POD_GROUPS)
        ((reason,),) = (one["reasons"] for one in group["status"]["schedulingConditions"])

        assert (reason["reason"], reason["message"].partition(".")[0]) == (
            "OverLimit",
            "It needs 2 GPUs to start, and the limit of queue small is 1 GPU; ask for less",
        )
        details = reason["details"]["queueDetails"]
        assert details["name"] == "small"
        assert details["queueResourceLimits"]["nvidia.com/gpu"] == "1"
        assert details["queueAllocatedResources"]["nvidia.com/gpu"] == "0"
        assert details["podGroupRequestedResources"]["nvidia.com/gpu"] == "2"


async def test_numbers_that_change_while_the_reason_stays_are_updated_without_another_event() -> None:
    async with living("a") as world:
        world.gang("gang", size=4)
        await passes(SETTLED_S)
        (before,) = reasons(world)

        world.nodes("b")
        await passes(SETTLED_S)
        (after,) = reasons(world)

        assert [one["message"].partition(";")[0] for one in (before, after)] == [
            "Even empty, all nodes together hold at most 1 of 4 pods that start together.",
            "Even empty, all nodes together hold at most 2 of 4 pods that start together.",
        ]
        pods = [f"gang-{number}" for number in range(4)]
        assert world.cluster.told == [(name, "GangDoesNotFit") for name in ("gang", *pods)]


# Owners


async def test_a_gang_of_gated_pods_with_missing_members_says_how_many() -> None:
    async with living("a", gpus=8) as world:
        world.gang("gang", size=4, min_member=5, gates=[GATE])
        await passes(SETTLED_S)

        assert [one["message"] for one in reasons(world)] == [
            "The gang is incomplete: 4 of 5 pods exist; the controller of these pods has to create the rest."
        ]
        pods = [f"gang-{number}" for number in range(4)]
        told = [(name, "NotReady") for name in ("gang", *pods)]
        assert (status(world)["phase"], world.cluster.told) == ("Pending", told)


async def test_a_gang_that_runs_says_so() -> None:
    async with living("a", "b") as world:
        pods = world.gang("gang", size=2)
        await passes(1)
        for pod, node in zip(pods, [await world.choose(pod, "a", "b") for pod in pods], strict=True):
            world.binding(pod, node)
        await passes(SETTLED_S)

        assert (status(world)["phase"], status(world)["schedulingConditions"]) == ("Running", [])


# The filters of kube-scheduler


async def test_a_single_pod_refused_by_the_filters_of_kube_scheduler_gives_their_message() -> None:
    async with living("a") as world:
        pod = world.pod("zoned")
        await passes(1)

        world.refuse(pod, "0/1 nodes are available: 1 node(s) had volume node affinity conflict.")
        await passes(SETTLED_S)

        assert why(world, pod) == Refusal(
            reason=Reason.REFUSED_BY_SCHEDULER,
            sentence=(
                "The filters of kube-scheduler accept pod zoned-0 on no node: "
                "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
            ),
            details={"pod": "zoned-0"},
        )
        assert world.cluster.told == [("zoned-0", "RefusedByScheduler")]


async def test_a_pod_beyond_the_minimum_that_the_filters_refuse_says_so_while_the_others_run() -> None:
    async with living("a", "b") as world:
        first, second = world.gang("gang", size=2, min_member=1)
        await passes(1)
        await world.bind(first, await world.choose(first, "a", "b"))

        world.refuse(second, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
        await passes(SETTLED_S)

        assert why(world, second).sentence == (
            "The filters of kube-scheduler accept it on no node: "
            "0/2 nodes are available: 2 node(s) had volume node affinity conflict."
        )


async def test_a_pod_whose_only_nodes_kube_scheduler_does_not_offer_is_refused_by_its_filters() -> None:
    async with living("a", "b") as world:
        world.runs("other", "b")
        pod = world.pod("zoned")
        await passes(1)
        await world.filter(pod, "b")  # It refuses a, where there is room.
        message = "0/2 nodes are available: 1 Leeboard(DECIDING): x, 1 node(s) had volume node affinity conflict."
        world.refuse(pod, message)
        await passes(1)

        assert why(world, pod).sentence == (
            "No node has room: 1 of 2 nodes has too few GPUs (requested 1, at most 0 free), "
            "1 is refused by the filters of kube-scheduler: node(s) had volume node affinity conflict; "
            "no pod is evicted for it because pods of its own queue have the same or a higher priority."
        )


# Victims


async def test_a_gang_with_terminating_victims_says_how_many_where_and_since_when() -> None:
    async with living("a", "b") as world:
        victims = {node: world.runs(f"on-{node}", node) for node in "ab"}
        await passes(1)
        world.gang("gang", size=2, priority_class="build-preemptible")
        await passes(SETTLED_S)
        (first,) = reasons(world)
        world.delete(victims["a"])
        await passes(SETTLED_S)
        (second,) = reasons(world)

        assert first["reason"] == "WaitingForVictims"
        since = first["message"].partition(" since ")[2].rstrip(".")
        assert since.startswith("1970-01-01T00:00:0")
        assert [one["message"] for one in (first, second)] == [
            f"{left} not ended yet ({names}); the room on nodes a, b is reserved for it since {since}."
            for left, names in (
                ("2 of 2 pods that have to leave for it have", "q/on-a-0, q/on-b-0"),
                ("1 of 2 pods that have to leave for it has", "q/on-b-0"),
            )
        ]
        assert ("gang", "WaitingForVictims") in world.cluster.told


# Binding


@pytest.mark.parametrize("error", [RejectedError(POLICY), ForbiddenError(POLICY)], ids=repr)
async def test_a_rejected_binding_is_reported_once_and_stays_reported_while_it_is_retried(error: KubeError) -> None:
    async with living("a") as world:
        world.cluster.errors["bind"] += [error] * 1000
        pod = world.pod("one")
        said = set[str]()
        for _ in range(3):
            await passes(1)
            await world.bind(pod, await world.choose(pod, "a"))
            await passes(0.5)
            said.add(why(world, pod).sentence)
            await passes(20)
            said.add(why(world, pod).sentence)

        cause = f"The API server refuses the binding: {POLICY}"
        assert said == {
            *(f"{cause}; Leeboard tries again in {delay_s} s." for delay_s in (2, 4, 8)),
            f"{cause}; Leeboard is trying again.",
        }
        assert world.cluster.told == [("one-0", "BackingOff")]
        assert POLICY in world.cluster.events[0].note


@pytest.mark.parametrize(
    ("error", "culprit"),
    [
        (ForbiddenError(POLICY), "The API server refuses"),
        (UnavailableError(POLICY), "The API server could not take"),
        (OutcomeUnknownError(POLICY), "The API server did not confirm"),
    ],
    ids=repr,
)
async def test_the_failure_of_a_binding_is_reported_during_the_first_retry(error: KubeError, culprit: str) -> None:
    async with living("a") as world:
        world.cluster.errors["bind"] += [error] * 3
        (pod,) = world.gang("gang", size=1)
        await passes(SETTLED_S)
        writes = len(world.cluster.statuses)
        binding = asyncio.create_task(world.bind(pod, "a"))
        await passes(0.2)
        cause = f"{culprit} the binding: {POLICY}; Leeboard is trying again."
        assert why(world, pod) == Refusal(reason=Reason.BACKING_OFF, sentence=cause)
        await passes(2.5)

        assert not binding.done()
        assert [(one["reason"], one["message"]) for one in reasons(world)] == [("BackingOff", cause)]
        # However many tries: one write, and one event for each object.
        assert [name for name, _ in world.cluster.statuses[writes:]].count("gang") == 1
        assert world.cluster.told == [("gang", "BackingOff"), ("gang-0", "BackingOff")]

        await binding
        await passes(SETTLED_S)
        assert (world.bound(), world.planning.attempts.stalled(), reasons_left(world)) == ({"gang-0": "a"}, {}, [])
        assert len(world.cluster.told) == 2


async def test_a_cause_that_has_ended_is_no_longer_reported() -> None:
    async with living("a") as world:
        world.cluster.errors["bind"] += [RejectedError(POLICY)]
        pod = world.pod("one")
        await passes(1)
        await world.bind(pod, "a")
        await passes(SETTLED_S)
        assert "refuses the binding" in why(world, pod).sentence

        await world.bind(pod, await world.choose(pod, "a"))
        await passes(1)

        assert (world.bound(), world.planning.attempts.stalled()) == ({"one-0": "a"}, {})


# Shared GPUs


async def test_a_pod_whose_reservation_pod_cannot_be_written_gives_the_message_of_the_api_server() -> None:
    async with machines("a", device_ttl_s=10) as (world, _):
        assert isinstance(world.cluster, SharingCluster)
        world.cluster.errors["create_pod"] += [ForbiddenError("exceeded quota: gpu-pods")] * 1000
        pod = sharer(world, "pod")
        await passes(5)
        waits = why(world, pod)
        await passes(6.8)

        said = "its reservation pod cannot be written: exceeded quota: gpu-pods"
        assert waits.reason is Reason.WAITING_FOR_DEVICES
        assert f": {said}; it has waited since " in waits.sentence
        assert why(world, pod).sentence == (
            f"The shared GPU was not ready in time: {said}; Leeboard tries again in 2 s."
        )


async def test_a_pod_whose_reservation_pod_the_node_rejects_gives_the_message_of_the_node() -> None:
    async with machines("a", device_ttl_s=10) as (world, (a,)):
        a.admits = False
        pod = sharer(world, "pod")
        await passes(9)

        assert "has ended: Unexpected; " in why(world, pod).sentence


async def test_a_pod_whose_reservation_pod_is_not_scheduled_gives_the_message_of_kube_scheduler() -> None:
    async with machines("a", device_ttl_s=10) as (world, (a,)):
        # The earlier cause has ended.
        world.cluster.errors["create_pod"].append(UnavailableError("busy", retry_after_s=1.0))
        a.binds_reservations = False
        pod = sharer(world, "pod")
        await passes(6)
        (reservation,) = a.reservations()
        world.refuse(reservation, "0/1 nodes are available: 1 node(s) had untolerated taint.")
        await passes(2)

        said = "finds no place: 0/1 nodes are available: 1 node(s) had untolerated taint"
        assert said in why(world, pod).sentence


# Many pods


async def test_a_thousand_pending_pods_give_one_event_each_and_no_more_while_nothing_changes() -> None:
    async with living("a") as world:
        for number in range(1000):
            world.pod(f"p{number}", gpus=8)

        await passes(1000 / EVENTS_PER_ROUND * 1.5)
        told = list(world.cluster.told)
        await passes(300)

        assert sorted(told) == sorted((f"p{number}-0", "NoNodeFits") for number in range(1000))
        assert world.cluster.told == told
