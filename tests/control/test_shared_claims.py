"""Pods that share claims, from their plan to their places: what frees the devices, and when others get them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.cluster.ledger.reservations import ReservationState
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Quota
from tests.cluster.dra_objects import DRIVER, claim, device_class, gpu, request, resource_slice
from tests.control.wired import FickleCluster, World, living, passes

CLASS = "gpu.example.com"
DEVICES = [f"gpu-{number}" for number in range(4)]


@asynccontextmanager
async def four_gpus() -> AsyncIterator[World]:
    """Run Leeboard on one node whose four GPUs only claims can get; half is deserved by queue `q`, half by `r`."""
    cluster = FickleCluster()
    for name in ("q", "r"):
        cluster.create(Resource.QUEUES, manifests.queue(name, None, Quota(gpus=2)))
    cluster.create(Resource.NODES, manifests.node("n", gpus=0, cpu=64, labels={}))
    cluster.create(Resource.DEVICE_CLASSES, device_class(CLASS, f"device.driver == '{DRIVER}'"))
    cluster.create(Resource.RESOURCE_SLICES, resource_slice("n", [gpu(name) for name in DEVICES]))
    async with living(cluster=cluster, patience_s=0) as world:
        yield world


def shared(world: World, name: str, gpus: int, *, queue: str, on: str = "") -> RawObject:
    made = claim(
        name,
        request(CLASS, count=gpus),
        labels={"kai.scheduler/queue": queue},
        namespace=queue,
        on=on,
        devices=DEVICES[:gpus],
    )
    return world.cluster.create(Resource.RESOURCE_CLAIMS, made)


def using(pod: RawObject, *claims: str, on: str = "") -> RawObject:
    named = [{"name": name, "resourceClaimName": name} for name in claims]
    spec = pod["spec"] | {"resourceClaims": named} | ({"nodeName": on} if on else {})
    return pod | {"spec": spec} | ({"status": {"phase": "Running"}} if on else {})


def uses(world: World, name: str, *claims: str, queue: str = "q", on: str = "") -> RawObject:
    asked = world.asked(name, gpus=0, queue=queue)
    return world.cluster.create(Resource.PODS, using(asked, *claims, on=on))


def held(world: World, *queues: str) -> Sequence[int]:
    usage = world.cache.snapshot().usage
    return [sum(each.allocated.gpu_milli for name, each in usage.items() if name == queue) // 1000 for queue in queues]


async def test_devices_of_a_shared_claim_are_reclaimed_with_its_last_pod_and_used_when_it_is_released() -> None:
    async with four_gpus() as world:
        lent = shared(world, "lent", 4, queue="r", on="n")
        victims = [uses(world, name, "lent", queue="r", on="n") for name in ("one", "two")]
        await passes(60)
        shared(world, "mine", 2, queue="q")
        asks = uses(world, "asks", "mine")
        await passes(5)
        assert sorted(world.cluster.evictions) == ["one-0", "two-0"]
        assert (world.promised(asks), held(world, "q", "r")) == ("n", [2, 4])
        for pod in victims:
            world.delete(pod)
        await passes(5)
        assert held(world, "q", "r") == [2, 0]
        waits = world.held(asks)

        world.cluster.delete(Ref.of(Resource.RESOURCE_CLAIMS, lent))
        await passes(5)

        assert waits is not None
        assert waits.state is ReservationState.AWAITING
        assert await world.choose(asks, "n") == "n"


async def test_pods_that_share_a_claim_start_one_after_the_other_on_its_node() -> None:
    async with four_gpus() as world:
        shared(world, "ring", 4, queue="q")
        first, second = uses(world, "first", "ring"), uses(world, "second", "ring")
        await passes(2)
        assert [await world.choose(pod, "n") for pod in (first, second)] == ["n", "n"]
        assert (held(world, "q"), world.free_gpus()) == ([4], {"n": 0})

        for pod in (second, first):
            assert await world.bind(pod, "n") == ""
        world.delete(first)
        await passes(2)

        assert (held(world, "q"), world.free_gpus()) == ([4], {"n": 0})
        world.delete(second)
        await passes(2)
        assert (held(world, "q"), world.free_gpus()) == ([0], {"n": 4})


async def test_restart_finds_the_same_books() -> None:
    async with four_gpus() as world:
        shared(world, "ring", 2, queue="q", on="n")
        for name in ("first", "second"):
            uses(world, name, "ring", on="n")
        uses(world, "third", "ring")
        await passes(2)
        before = held(world, "q"), world.free_gpus(), dict(world.cache.snapshot().claim_users)

        async with living(cluster=world.cluster) as again:
            await passes(2)

            assert (held(again, "q"), again.free_gpus(), dict(again.cache.snapshot().claim_users)) == before
            assert before[:2] == ([2], {"n": 2})
