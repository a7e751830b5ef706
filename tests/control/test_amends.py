"""The last conditions of a kube-scheduler that is gone, and which replica corrects them."""

import asyncio

from app.control.report.corrections import AFTER_S
from app.model.reason import UNREADY, Reason, phrase
from app.model.seam import RawObject, Resource
from tests.control.wired import World, living, not_scheduled, passes


def told_unready(world: World, pod: RawObject) -> None:
    """Let a kube-scheduler write that Leeboard could not answer."""
    condition = not_scheduled("SchedulerError", f"extender: {UNREADY}")
    world.patch(pod, status={"conditions": [condition, {"type": "Other", "status": "True"}]})


def said(world: World, pod: RawObject) -> list[str]:
    """Return the messages in the conditions of the pod."""
    (found,) = (one for one in world.cluster.objects(Resource.PODS) if one["metadata"]["uid"] == pod["metadata"]["uid"])
    return sorted(one.get("message", one["type"]) for one in found["status"]["conditions"])


async def test_the_last_conditions_of_a_kube_scheduler_that_is_gone_are_corrected() -> None:
    async with living("a") as world:
        pod = world.pod("large", gpus=2)
        await passes(1)
        told_unready(world, pod)

        await passes(AFTER_S - 1)
        before = said(world, pod)
        await passes(3)

        assert before == ["Other", f"extender: {UNREADY}"]
        assert said(world, pod) == [phrase(Reason.NO_NODE_FITS), "Other"]


async def test_the_condition_of_a_parked_pod_changes_from_being_decided_to_the_decision() -> None:
    async with living("a") as world:
        pod = world.pod("large", gpus=2)
        await passes(1)
        world.refuse(pod, f"0/1 nodes are available: 1 {phrase(Reason.DECIDING)}.")

        await passes(AFTER_S + 3)

        assert said(world, pod) == [phrase(Reason.NO_NODE_FITS)]


async def test_a_pod_whose_condition_is_updated_in_time_is_not_corrected() -> None:
    async with living("a") as world:
        pod = world.pod("large", gpus=2)
        await passes(1)
        told_unready(world, pod)
        await passes(2)
        world.refuse(pod, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")

        await passes(AFTER_S + 3)

        assert said(world, pod) == ["0/1 nodes are available: 1 Insufficient nvidia.com/gpu."]


async def test_the_condition_of_a_pod_with_a_reservation_is_not_corrected() -> None:
    async with living("a") as world:
        promised, bound = world.pod("promised"), world.runs("bound", "a", gpus=0)
        await passes(1)
        for pod in (promised, bound):
            told_unready(world, pod)

        await passes(AFTER_S + 3)

        assert [said(world, pod)[-1] for pod in (promised, bound)] == [f"extender: {UNREADY}"] * 2


async def test_the_condition_of_a_pod_with_terminating_victims_says_so() -> None:
    async with living("a") as world:
        world.runs("victim", "a")
        await passes(1)
        world.cluster.takes_s["evict"] = 60
        urgent = world.pod("urgent", priority_class="build-preemptible")
        await passes(1)
        told_unready(world, urgent)

        await passes(AFTER_S + 3)

        assert said(world, urgent) == [phrase(Reason.WAITING_FOR_VICTIMS), "Other"]


async def test_conditions_of_pods_of_other_schedulers_are_not_corrected() -> None:
    async with living("a") as world:
        made = world.asked("other")
        pod = world.cluster.create(Resource.PODS, made | {"spec": made["spec"] | {"schedulerName": "other"}})
        await passes(1)
        told_unready(world, pod)

        await passes(AFTER_S + 3)

        assert said(world, pod)[-1] == f"extender: {UNREADY}"


async def test_a_replica_that_does_not_decide_corrects_nothing() -> None:
    async with living("a", scheduler_lease="ns/lease") as world:
        pod = world.pod("large", gpus=2)
        await passes(1)
        told_unready(world, pod)

        await passes(AFTER_S + 3)

        assert said(world, pod)[-1] == f"extender: {UNREADY}"


async def test_thousands_of_conditions_that_cannot_be_corrected_yet_delay_nothing_else() -> None:
    async with living("a", scheduler_lease="ns/lease") as world:
        for number in range(1_000):
            told_unready(world, world.pod(f"large-{number}", gpus=2))
        await passes(AFTER_S + 3)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        await world.corrections.amend()
        beside.cancel()

        assert turns >= 4
