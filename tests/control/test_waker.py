import pytest
from structlog.testing import capture_logs

from app.control.cycle.waker import RETRY, WINDOW
from app.control.writers.in_flight import ASKED_WITHIN_S
from app.model.names import NodeName, PodUid
from app.model.seam import ConflictError, KubeError, RawObject, RejectedError, Resource, UnavailableError
from tests.control.wired import World, living, passes, ref

FOR_EVER = 1e9


def promise(world: World, pod: RawObject, node: str) -> None:
    world.cache.promises.make(ref(pod).uid, NodeName(node), expires_at=FOR_EVER)


def park(world: World, pod: RawObject) -> None:
    world.waker.park(ref(pod).uid)


def wake(world: World, pod: RawObject, node: str) -> None:
    """Reserve as a plan does."""
    promise(world, pod, node)
    world.waker.wake(ref(pod).uid)


async def waiting_pod(world: World) -> RawObject:
    """Create a pod that fits on no node, so that only the test decides about it."""
    pod = world.pod("one", gpus=8)
    await passes(1)
    return pod


async def test_a_parked_pod_gets_one_patch_with_its_new_reserved_node() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)

        wake(world, pod, "a")
        wake(world, pod, "a")
        await passes(1)

        assert world.cluster.nominations == [("one-0", "a")]
        assert world.count("wakes") == 1


async def test_a_pod_that_kube_scheduler_has_not_filtered_yet_gets_no_patch() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)

        wake(world, pod, "a")
        await passes(1)

        assert world.cluster.nominations == []


async def test_a_pod_that_was_filtered_before_its_patch_was_written_gets_none() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)

        wake(world, pod, "a")
        world.waker.forget(ref(pod).uid)
        await passes(1)

        assert world.cluster.nominations == []


async def test_a_pod_whose_reservation_changes_before_its_patch_is_written_is_woken_with_the_new_one() -> None:
    async with living("a", "b") as world:
        pod = await waiting_pod(world)
        park(world, pod)

        wake(world, pod, "a")
        wake(world, pod, "b")
        await passes(1)

        assert world.cluster.nominations == [("one-0", "b")]


async def test_a_pod_whose_reservation_ends_before_its_patch_is_written_is_woken_with_the_next() -> None:
    async with living("a", "b") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        wake(world, pod, "a")
        world.cache.promises.drop(ref(pod).uid)
        await passes(1)
        assert world.cluster.nominations == []

        wake(world, pod, "b")
        await passes(1)

        assert world.cluster.nominations == [("one-0", "b")]


async def test_a_pod_that_is_refused_again_during_its_patch_stays_parked() -> None:
    async with living("a", "b") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.cluster.takes_s["nominate"] = 1
        wake(world, pod, "a")
        await passes(0.5)

        park(world, pod)
        await passes(1)
        wake(world, pod, "b")
        await passes(1.5)

        assert world.cluster.nominations == [("one-0", "a"), ("one-0", "b")]


async def test_a_nomination_is_removed_with_the_reservation() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        world.patch(pod, status={"nominatedNodeName": "a"})
        await passes(1)

        world.waker.revoke(ref(pod).uid)
        await passes(1)

        assert world.cluster.nominations == [("one-0", None)]
        assert world.count("wakes") == 0


async def test_no_nomination_is_removed_from_a_pod_without_one_or_with_another_reservation() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        world.waker.revoke(ref(pod).uid)
        world.patch(pod, status={"nominatedNodeName": "a"})
        await passes(1)

        world.waker.revoke(ref(pod).uid)
        promise(world, pod, "a")
        await passes(1)

        assert world.cluster.nominations == []


async def test_a_pod_that_is_deleted_before_its_patch_is_written_gets_none() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)

        wake(world, pod, "a")
        world.cache.delete_pod(ref(pod).uid)
        await passes(1)

        assert world.cluster.nominations == []


async def test_a_bound_pod_or_one_without_a_reservation_is_not_woken() -> None:
    async with living("a") as world:
        bound, waits = await waiting_pod(world), world.pod("waits", gpus=8)
        world.patch(bound, spec={"nodeName": "a"}, status={"nominatedNodeName": "a"})
        await passes(1)

        for pod in (bound, waits):
            park(world, pod)
            world.waker.wake(ref(pod).uid)
            world.waker.revoke(ref(pod).uid)
        await passes(1)

        assert world.cluster.nominations == []


async def test_a_pod_whose_deletion_was_missed_is_patched_once() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.cluster.hide(Resource.PODS)
        world.delete(pod)

        wake(world, pod, "a")
        await passes(10)

        assert len(world.cluster.nominations) == 1


@pytest.mark.parametrize(
    ("error", "pause_s"), [(UnavailableError("429", retry_after_s=7), 7), (RejectedError("422"), 1)], ids=repr
)
async def test_a_patch_that_fails_is_written_again_after_a_pause(error: KubeError, pause_s: float) -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.cluster.errors["nominate"] += [error]

        wake(world, pod, "a")
        await passes(pause_s - 0.1)
        assert len(world.cluster.nominations) == 1
        await passes(0.2)

        assert len(world.cluster.nominations) == 2
        await passes(10)
        assert len(world.cluster.nominations) == 2


@pytest.mark.parametrize(
    ("error", "warned"), [(ConflictError("bound meanwhile"), []), (RejectedError("422"), ["nomination not written"])]
)
async def test_only_failures_that_are_no_race_are_logged_as_warnings(error: KubeError, warned: list[str]) -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.cluster.errors["nominate"] += [error]

        with capture_logs() as logs:
            wake(world, pod, "a")
            await passes(0.5)

    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == warned


async def test_a_failed_patch_is_not_repeated_with_a_node_that_is_no_longer_reserved() -> None:
    async with living("a", "b") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.cluster.errors["nominate"] += [UnavailableError("503")]
        wake(world, pod, "a")
        await passes(0.5)

        promise(world, pod, "b")
        await passes(1)

        assert world.cluster.nominations == [("one-0", "a"), ("one-0", "b")]


async def test_a_pod_that_could_not_be_woken_is_woken_with_its_next_reservation() -> None:
    async with living("a", "b") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.cluster.errors["nominate"] += [UnavailableError("503")] * len([*RETRY.pauses()])
        wake(world, pod, "a")
        await passes(10)
        assert len(world.cluster.nominations) == len([*RETRY.pauses()])

        wake(world, pod, "b")
        await passes(1)

        assert world.cluster.nominations[len([*RETRY.pauses()]) :] == [("one-0", "b")]


async def test_pods_are_woken_no_faster_than_kube_scheduler_filters() -> None:
    async with living("a", gpus=2 * WINDOW) as world:
        pods = [world.pod(f"p{number}", gpus=8) for number in range(WINDOW + 2)]
        await passes(1)
        for pod in pods:
            park(world, pod)
            wake(world, pod, "a")
        await passes(0.5)
        assert len(world.cluster.nominations) == WINDOW

        world.waker.forget(ref(pods[0]).uid)
        await passes(0.5)
        assert len(world.cluster.nominations) == WINDOW + 1

        await passes(ASKED_WITHIN_S + 1)
        assert len(world.cluster.nominations) == WINDOW + 2


async def test_deleted_parked_pods_are_forgotten() -> None:
    async with living("a") as world:
        pod = await waiting_pod(world)
        park(world, pod)
        world.waker.park(PodUid("never-seen"))

        world.waker.forget_gone()

        assert [uid in world.waker._parked for uid in (ref(pod).uid, PodUid("never-seen"))] == [True, False]
