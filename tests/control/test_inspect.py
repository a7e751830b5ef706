import pytest

from app.control.leadership.freshness import OPTIONAL
from app.control.report.inspect import KnownPod
from app.model.names import GroupKey, QueueName
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from tests.control.wired import World, furnished, living, passes


def known(world: World, pod: RawObject) -> KnownPod:
    found = world.inspect.pod("q", pod["metadata"]["name"])
    assert found is not None
    return found


async def test_a_pod_is_shown_in_every_state_from_gated_to_finished() -> None:
    async with living(gpus=1) as world:
        pod, states = world.pod("one"), []
        await passes(1)
        states.append(known(world, pod).state)
        world.nodes("a")
        await passes(1)
        states.append(known(world, pod).state)
        world.cluster.hide(Resource.PODS)
        await world.bind(pod, "a")
        states.append(known(world, pod).state)
        world.cluster.show(Resource.PODS)
        await passes(1)
        states.append(known(world, pod).state)
        world.patch(pod, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        await passes(1)
        states.append(known(world, pod).state)
        world.delete(pod)
        await passes(1)

        assert states == ["Held", "Promised", "Binding", "Bound", "Releasing"]
        assert world.inspect.pod("q", "one-0") is None


async def test_a_gated_pod_says_why_it_is_pending() -> None:
    async with living("a") as world:
        pod = world.pod("large", gpus=8)
        await passes(1)

        refusal = known(world, pod).refusal

        assert refusal is not None
        assert refusal.reason is Reason.NO_NODE_FITS


async def test_an_unreadable_pod_says_what_its_owner_must_change() -> None:
    async with living("a") as world:
        pod = world.pod("odd")
        world.patch(pod, metadata={"annotations": {"mps": "true"}})
        await passes(1)

        refusal = known(world, pod).refusal

        assert refusal is not None
        assert refusal.reason is Reason.INVALID_REQUEST
        assert refusal.sentence.endswith("add annotation gpu-fraction or gpu-memory, or remove mps.")


async def test_only_pending_podgroups_are_listed_with_their_refusal() -> None:
    async with living("a") as world:
        world.pod("runs")
        world.gang("gang", size=2)
        await passes(1)

        waiting = world.inspect.waiting_by_key()

        assert list(waiting) == [GroupKey("q", "gang")]
        assert [refusal.reason for _, refusal in world.inspect.waiting() if refusal] == [Reason.GANG_DOES_NOT_FIT]


async def test_reservations_are_counted_by_their_state() -> None:
    async with living("a", gpus=3) as world:
        pods = [world.pod(f"p{number}") for number in range(3)]
        await passes(1)
        world.cluster.hide(Resource.PODS)
        await world.bind(pods[0], "a")

        assert world.inspect.promises() == {"Promised": 2, "Binding": 1}


async def test_queues_are_listed_with_their_shares() -> None:
    async with living("a", gpus=4) as world:
        world.queue("guaranteed", gpus=3)
        world.pod("one")
        await passes(1)

        shares = world.inspect.queues()()

        assert shares[QueueName("q")].allocated.gpu_milli == 1000
        assert shares[QueueName("guaranteed")].deserved.gpu_milli == 3000


async def test_queues_are_listed_with_their_children_and_their_errors() -> None:
    async with living("a", gpus=4) as world:
        world.queue("top", gpus=3)
        world.queue("leaf", parent="top")
        world.queue("orphan", parent="gone")
        for number in range(2):
            world.pod(f"p{number}", queue="leaf", gpus=3)
        await passes(1)

        stands = {stand.queue.name: stand for stand in world.inspect.queue_stands()()}

        numbers = {
            name: (one.allocated.gpu_milli, one.requested.gpu_milli, one.waiting) for name, one in stands.items()
        }
        assert numbers == {"leaf": (3000, 6000, 1), "orphan": (0, 0, 0), "q": (0, 0, 0), "top": (3000, 6000, 1)}
        assert stands[QueueName("orphan")].fair_share is None
        assert "parent queue gone does not exist" in stands[QueueName("orphan")].queue.problem


@pytest.mark.parametrize("resource", Resource)
async def test_readiness_needs_every_watch(resource: Resource) -> None:
    async with living("a") as world:
        assert all(check.passed for check in world.inspect.checks())
        world.cluster.hide(resource)
        await passes(120)

        checks = world.inspect.checks()
        assert [check.name for check in checks if check.failure or check.degraded] == [f"watch-{resource!r}"]
        assert all(check.passed for check in checks) is (resource in OPTIONAL)


async def test_nothing_is_ready_before_it_was_listed() -> None:
    world = World(furnished())

    watches = [check for check in world.inspect.checks() if check.name.startswith("watch-")]
    assert {check.failure for check in watches} == {"not listed yet"}


async def test_a_running_pod_with_a_new_queue_label_stays_in_the_queue_that_is_charged() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        await world.bind(pod, await world.choose(pod, "a"))
        await passes(1)

        world.patch(pod, metadata={"labels": {"kai.scheduler/queue": "ghost"}})
        await passes(1)

        assert known(world, pod).pod.queue == "q"
        assert {name: one.allocated.gpu_milli for name, one in world.cache.charges.usage().items()} == {"q": 1000}
