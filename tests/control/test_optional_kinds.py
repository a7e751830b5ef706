"""A kind that cannot be watched delays only the pods that need it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest

from app.cluster import decode
from app.cluster.groups.membership import UNLISTED_GPUS
from app.control.groups.owner_watch import OTHERS_GO_ON_AFTER_S
from app.control.informers import feed
from app.control.leadership.freshness import LOSSES_UNTIL_OPTIONAL, OPTIONAL, OPTIONAL_WITHIN_S
from app.model.marks import GATE
from app.model.names import GroupKey
from app.model.question import Failed, Fits, Refused
from app.model.reason import UNREADY, Reason
from app.model.seam import Depth, Lost, RawObject, Resource, WatchEvent
from app.simulation.objects import Ref
from tests.control.test_podgrouper import KINDS, PYTORCH, owned, training, workers
from tests.control.wired import FickleCluster, World, furnished, gated, lets_in, living, passes

T = TypeVar("T")

PAUSE_S = 1.0


class PartialCluster(FickleCluster):
    """Cannot show some kinds, by their path, until it is repaired."""

    def __init__(self, *hidden: str, denied: bool = False) -> None:
        super().__init__()
        self.hidden = set(hidden)
        self.denied = denied
        self.repaired = asyncio.Event()

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        return self._when_repaired(resource.value, super().watch(resource, keep))

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        return self._when_repaired(path, super().follow(path, keep, depth=depth))

    async def _when_repaired(self, path: str, events: AsyncIterator[WatchEvent[T]]) -> AsyncIterator[WatchEvent[T]]:
        while path in self.hidden and not self.repaired.is_set():
            yield Lost("500 conversion webhook failed", denied=self.denied)
            await asyncio.sleep(PAUSE_S)
        async for event in events:
            yield event


class SlowCluster(PartialCluster):
    """Accepts the first list of some kinds and never answers."""

    async def _when_repaired(self, path: str, events: AsyncIterator[WatchEvent[T]]) -> AsyncIterator[WatchEvent[T]]:
        while path in self.hidden and not self.repaired.is_set():
            await asyncio.sleep(30)
            yield Lost("timed out")
        async for event in events:
            yield event


def cluster_without(*hidden: str, denied: bool = False) -> FickleCluster:
    cluster = PartialCluster(*hidden, denied=denied)
    for path, (api_version, kind) in KINDS.items():
        cluster.serve(api_version, kind, path)
    return furnished("a", "b", "c", cluster=cluster)


def repair(world: World) -> None:
    assert isinstance(world.cluster, PartialCluster)
    world.cluster.repaired.set()


def sentences(world: World) -> list[str]:
    return [refusal.sentence for _, refusal in world.inspect.waiting() if refusal is not None]


def degraded(world: World) -> dict[str, str]:
    return {check.name: check.degraded for check in world.freshness.checks() if check.degraded}


@pytest.mark.parametrize("denied", [False, True])
@pytest.mark.parametrize("resource", sorted(OPTIONAL, key=repr), ids=repr)
async def test_pods_that_do_not_need_a_kind_start_while_it_cannot_be_watched(
    resource: Resource, *, denied: bool
) -> None:
    async with living(cluster=cluster_without(resource.value, denied=denied)) as world:
        pod = world.pod("one")
        await passes(LOSSES_UNTIL_OPTIONAL * PAUSE_S)

        assert isinstance(await world.filter(pod, "a", "b"), Fits)
        assert degraded(world) == {f"watch-{resource!r}": "500 conversion webhook failed"}
        assert world.inspect.is_ready()


async def test_an_unanswered_list_of_topologies_delays_other_pods_for_seconds_only() -> None:
    cluster = SlowCluster(Resource.TOPOLOGIES.value)
    async with living(cluster=furnished("a", "b", "c", cluster=cluster)) as world:
        gang = world.gang("gang", size=1)
        world.keep_in_a_rack("gang")
        await passes(0.5)

        assert world.now() < OPTIONAL_WITHIN_S + 1
        assert isinstance(await world.filter(world.pod("one"), "a", "b"), Fits)
        assert not isinstance(await world.filter(gang[0], "a", "b", "c"), Fits)
        assert degraded(world) == {"watch-topologies": "not listed yet"}


@pytest.mark.parametrize(
    "ask",
    [{"gpus": 1}, {"gpus": 0, "part": {"gpu-fraction": "0.5"}}, {"gpus": 0, "part": {"gpu-memory": "4000"}}],
)
async def test_an_unanswered_list_of_gpu_nodes_delays_only_pods_with_gpus(ask: dict[str, Any]) -> None:
    cluster = SlowCluster(Resource.GPU_NODES.value)
    async with living(cluster=furnished("a", cluster=cluster)) as world:
        with_gpus = world.pod("gpu", gates=[GATE], **ask)
        alone = world.pod("one", gpus=0)
        await passes(0.5)

        assert world.now() < OPTIONAL_WITHIN_S + 1
        assert isinstance(await world.filter(alone, "a"), Fits)
        assert sentences(world) == [UNLISTED_GPUS]
        assert lets_in(world.fast_path, world.asked("next", gpus=0))
        assert not lets_in(world.fast_path, world.asked("next", **ask))
        assert degraded(world) == {"watch-gpu_nodes": "not listed yet"}

        await passes(60)
        assert cluster.releases == []
        assert sentences(world) == [UNLISTED_GPUS]
        # An unhealthy GPU would look free.
        assert await world.filter(with_gpus, "a") == Refused(Reason.DECIDING)

        repair(world)
        await passes(30)
        assert UNLISTED_GPUS not in sentences(world)


async def test_pods_with_gpus_start_while_the_list_of_gpu_nodes_fails_repeatedly() -> None:
    cluster = SlowCluster(Resource.GPU_NODES.value)
    async with living(cluster=furnished("a", cluster=cluster)) as world:
        world.pod("gpu", gates=[GATE])
        await passes(60)
        assert cluster.releases == []
        await passes(30)
        assert cluster.releases == ["gpu-0"]


async def test_many_pods_with_gpus_are_judged_in_steps_once_the_gpus_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "PAUSE_EVERY", 2)
    cluster = SlowCluster(Resource.GPU_NODES.value)
    async with living(cluster=furnished("a", cluster=cluster)) as world:
        for number in range(5):
            world.pod(f"p{number}", gates=[GATE])
        await passes(1)
        touched = list[int]()
        told = dict[GroupKey, None]()
        world.cache.groups.touched.tell(told)

        def count_told() -> None:
            touched.append(len(told))
            told.clear()

        monkeypatch.setattr(world.cache.groups, "form", count_told)
        repair(world)
        await passes(30)

        assert touched[:2] == [2, 2]
        assert len(sentences(world)) == 4
        assert cluster.releases == ["p0-0"]


async def test_an_unanswered_list_of_owners_delays_other_pods_for_seconds_only() -> None:
    cluster = SlowCluster(PYTORCH)
    for path, (api_version, kind) in KINDS.items():
        cluster.serve(api_version, kind, path)
    furnished("a", "b", "c", cluster=cluster)
    (worker, *_) = workers(cluster, training(cluster, workers=2), 0, 1)
    async with living(cluster=cluster) as world:
        alone = world.pod("alone", gates=[GATE])
        await passes(OTHERS_GO_ON_AFTER_S + 1)

        assert world.cluster.releases == [alone["metadata"]["name"]]
        assert degraded(world) == {
            "owners": "pods with these owners wait: PyTorchJob.kubeflow.org/v1: the API server has not answered yet"
        }
        cluster.repaired.set()
        await passes(60)
        assert worker["metadata"]["name"] in world.cluster.releases
        assert degraded(world) == {}


@pytest.mark.parametrize("resource", sorted(set(Resource) - OPTIONAL, key=repr), ids=repr)
async def test_no_pod_starts_while_a_required_kind_cannot_be_watched(resource: Resource) -> None:
    world = World(cluster_without(resource.value))
    running = [asyncio.create_task(part.run()) for part in world.running]
    await passes(60)

    assert await world.filter(world.pod("one"), "a", "b") == Failed(UNREADY)
    assert not world.inspect.is_ready()

    repair(world)
    await passes(2)
    assert world.inspect.is_ready()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_a_gang_with_a_topology_waits_for_topologies_and_says_so() -> None:
    async with living(cluster=cluster_without(Resource.TOPOLOGIES.value)) as world:
        gang = world.gang("gang", size=1)
        world.keep_in_a_rack("gang")
        world.rack("r1", "d")
        await passes(5)
        refused = await world.filter(gang[0], "a", "b", "c", "d")
        said = sentences(world)

        repair(world)
        await passes(5)

        assert not isinstance(refused, Fits)
        assert said == ["Topology t cannot be used: Leeboard cannot list Topologies now; its /readyz says why"]
        assert isinstance(await world.filter(gang[0], "a", "b", "c", "d"), Fits)
        assert degraded(world) == {}


async def test_only_pods_with_owners_of_a_kind_that_cannot_be_listed_wait() -> None:
    cluster = cluster_without(PYTORCH)
    workers(cluster, training(cluster, workers=2), 0, 1)
    async with living(cluster=cluster) as world:
        await passes(LOSSES_UNTIL_OPTIONAL * PAUSE_S)
        alone = world.pod("alone", gates=[GATE])
        await passes(2)
        released, said, checks = list(world.cluster.releases), sentences(world), degraded(world)

        repair(world)
        await passes(5)

        assert released == [alone["metadata"]["name"]]
        assert (
            said
            == [
                "Its owner PyTorchJob train is not known: Leeboard cannot list this kind now, and its /readyz says why."
            ]
            * 2
        )
        assert checks == {
            "owners": "pods with these owners wait: PyTorchJob.kubeflow.org/v1: 500 conversion webhook failed"
        }
        assert sorted(world.cluster.releases) == ["alone-0", "worker-0-0", "worker-1-0"]
        assert degraded(world) == {}


async def test_pods_of_an_owner_that_makes_the_decoder_fail_stay_pending_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, broken = decode.owner, [True]

    def owner(raw: Any, **more: Any) -> Any:
        return 1 // 0 if broken[0] else whole(raw, **more)

    # No object is known that makes decoding an owner fail, so the failure is injected here.
    monkeypatch.setattr(decode, "owner", owner)
    cluster = cluster_without()
    by = training(cluster, workers=2)
    workers(cluster, by, 0, 1)
    async with living(cluster=cluster) as world:
        await passes(5)
        released, said = list(world.cluster.releases), sentences(world)

        broken[0] = False
        (job,) = world.cluster.objects(PYTORCH)
        world.cluster.patch(Ref.of(PYTORCH, job), {"metadata": {"labels": {"x": "y"}}})
        await passes(5)

        assert released == []
        assert (
            said == ["Its owner PyTorchJob train cannot be read by this version of Leeboard, whose log says why."] * 2
        )
        assert sorted(world.cluster.releases) == ["worker-0-0", "worker-1-0"]


async def test_a_gang_whose_owner_may_not_be_read_after_a_restart_stays_pending_and_says_so() -> None:
    cluster = cluster_without(PYTORCH, denied=True)
    assert isinstance(cluster, PartialCluster)
    cluster.repaired.set()
    by = training(cluster, workers=4)
    create_workers(cluster, by, 0, 1, 2)
    async with living(cluster=cluster):
        await passes(5)
    cluster.repaired.clear()
    async with living(cluster=cluster) as world:
        await passes(5)
        alone = world.pod("alone", gates=[GATE])
        await passes(2)
        released, said = list(cluster.releases), sentences(world)

        repair(world)
        create_workers(cluster, by, 3)
        world.nodes("d", "e")
        await passes(30)

        assert released == [alone["metadata"]["name"]]
        assert set(said) == {
            (
                "Its owner PyTorchJob train, which has a PodGroup, cannot be read any more: let Leeboard list this kind"
                " again; `leeboard doctor` names the right."
            )
        }
        assert (len(said), len(cluster.releases)) == (3, 5)


def create_workers(cluster: FickleCluster, by: RawObject, *numbers: int) -> None:
    """Create workers that name their queue themselves, so that nothing else keeps each of them from starting alone."""
    labels = {"training.kubeflow.org/replica-type": "worker", "kai.scheduler/queue": "q"}
    for number in numbers:
        cluster.create(Resource.PODS, gated(owned(f"worker-{number}", by, labels=labels), [GATE]))


async def test_a_podgroup_seen_after_its_owner_was_refused_keeps_its_pods_together() -> None:
    cluster = cluster_without(PYTORCH, Resource.POD_GROUPS.value, denied=True)
    assert isinstance(cluster, PartialCluster)
    cluster.repaired.set()
    create_workers(cluster, training(cluster, workers=4), 0, 1, 2)
    async with living(cluster=cluster):
        await passes(5)
    cluster.repaired.clear()
    world = World(cluster)
    running = [asyncio.create_task(part.run()) for part in world.running]
    await passes(5)
    cluster.hidden.discard(Resource.POD_GROUPS.value)
    await passes(5)

    assert (world.inspect.is_ready(), cluster.releases, len(sentences(world))) == (True, [], 3)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
