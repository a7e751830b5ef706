import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from app.control.informers.feed import PAUSE_EVERY
from app.control.leadership.freshness import STALE_AFTER_S
from app.model.dra import ClaimKey
from app.model.names import NATIVE_API, GroupKey, PodUid
from app.model.pod import Pod
from app.model.reason import Reason, phrase
from app.model.seam import Changed, Deleted, Listed, Lost, Progress, RawObject, Resource, RestoredError, WatchEvent
from app.model.topology import Topology
from app.simulation import manifests
from app.simulation.cluster import SimulatedCluster
from app.simulation.manifests import Job, Quota
from tests.cluster.dra_objects import claimable
from tests.control.grouped import Fed, Looks
from tests.control.wired import passes

DEVICES = claimable("d")

T = TypeVar("T")


class Script(SimulatedCluster):
    """Shows the events that the test gives."""

    def __init__(self) -> None:
        super().__init__()
        self.to_show: dict[Resource, asyncio.Queue[WatchEvent[RawObject]]] = {one: asyncio.Queue() for one in Resource}

    async def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        while True:
            match await self.to_show[resource].get():
                case Listed(items, restored):
                    yield Listed([keep(item) for item in items], restored=restored)
                case Changed(item):
                    yield Changed(keep(item))
                case Deleted(item):
                    yield Deleted(keep(item))
                case other:
                    yield other


class Counted(asyncio.Event):
    """Counts how often it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def set(self) -> None:
        self.times += 1
        super().set()


class Scripted(Fed):
    """A feed with the events of the test, the cache that it fills, and what it has reported to others."""

    def __init__(self) -> None:
        self.script = Script()
        self.parked: list[PodUid] = []
        self.looked_at: list[str] = []
        self.counted = Counted()
        look = Looks(lambda raw: self.looked_at.append(raw["metadata"]["name"]))
        super().__init__(self.script, learners=(look,), observers=(self,), changed=self.counted)

    def note_pod(self, pod: Pod, *, before: Pod | None) -> None:
        if before is None and pod.said.by_us:
            self.parked.append(pod.uid)

    async def show(self, resource: Resource, *events: WatchEvent[RawObject]) -> None:
        for event in events:
            self.script.to_show[resource].put_nowait(event)
        await passes(0.01)

    async def list_all(self, **items: RawObject) -> None:
        """List every kind: one object of the given kinds, and none of the others."""
        for resource in Resource:
            item = items.get(repr(resource))
            await self.show(resource, Listed([] if item is None else [item]))

    def pods(self) -> set[str]:
        return {pod.name for pod in self.cache.pods.all()}

    def invalid(self, resource: Resource) -> float | None:
        return self.metrics.registry.get_sample_value("leeboard_invalid_objects", {"resource": repr(resource)})


@asynccontextmanager
async def fed() -> AsyncIterator[Scripted]:
    world = Scripted()
    running = asyncio.create_task(world.run())
    try:
        yield world
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def pod(name: str, *, uid: str = "", **more: object) -> RawObject:
    item = manifests.pod(Job(name=name, queue="q"))
    return item | {"metadata": item["metadata"] | {"uid": uid or f"uid-{name}"}} | more


def identified(item: RawObject) -> RawObject:
    return item | {"metadata": item["metadata"] | {"uid": "u"}}


def refused(message: str) -> RawObject:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [condition]}


NODE = identified(manifests.node("a", gpus=1, cpu=1, labels={}))
QUEUE = identified(manifests.queue("q", None, Quota(gpus=1)))
CLASS = identified(manifests.priority_class("train"))
GPU_NODE: RawObject = {"metadata": {"name": "a", "uid": "g"}, "status": {"devices": [{"uuid": "GPU-1"}]}}
TOPOLOGY: RawObject = {"metadata": {"name": "t", "uid": "u"}, "spec": {"levels": [{"nodeLabel": "rack"}]}}
GANG = Job(name="gang", queue="q", group="gang", native_group="gang")
GROUP = identified(manifests.pod_group(GANG, min_member=2))
NATIVE_GROUP = identified(manifests.native_pod_group(GANG, min_count=3))


# Contents


async def test_every_kind_enters_and_leaves_the_cache() -> None:
    async with fed() as world:
        await world.list_all(
            nodes=NODE,
            queues=QUEUE,
            priority_classes=CLASS | {"value": 7},
            pod_groups=GROUP,
            native_pod_groups=NATIVE_GROUP,
            pods=pod("one"),
            topologies=TOPOLOGY,
            gpu_nodes=GPU_NODE,
            **{repr(resource): item for resource, item in DEVICES.items()},
        )
        (group,) = world.cache.groups.waiting().values()
        assert (set(world.cache.snapshots.table().index), set(world.cache.queues.tree()), group.priority) == (
            {"a"},
            {"q"},
            7,
        )
        assert world.cache.groups.progress.min_member(GroupKey("q", "gang")) == 2
        assert world.cache.snapshot().topologies == {"t": Topology(name="t", levels=("rack",))}
        assert set(world.cache.gpus.agents.all()) == {"a"}

        assert not world.cache.claims.pools.is_empty()
        assert world.cache.claims.claim(ClaimKey("default", "c")) is not None
        assert world.cache.groups.progress.min_member(GroupKey("q", "gang", NATIVE_API)) == 3
        items = (NODE, pod("one"), CLASS, QUEUE, GROUP, NATIVE_GROUP, TOPOLOGY, GPU_NODE, *DEVICES.values())
        for resource, item in zip(Resource, items, strict=True):
            await world.show(resource, Deleted(item))
        assert (set(world.cache.snapshots.table().index), set(world.cache.queues.tree()), world.pods()) == (
            set(),
            set(),
            set(),
        )
        assert world.cache.groups.progress.min_member(GroupKey("q", "gang")) == 1
        assert world.cache.groups.specs.get(GroupKey("q", "gang", NATIVE_API)) is None
        assert world.cache.snapshot().topologies == {}
        assert not world.cache.gpus.agents.all()
        assert world.cache.claims.pools.is_empty()
        assert world.cache.claims.claim(ClaimKey("default", "c")) is None


async def test_the_start_time_of_a_pod_is_updated_though_nothing_else_changes() -> None:
    async with fed() as world:
        bound = pod("one")
        bound["spec"] = bound["spec"] | {"nodeName": "a"}
        await world.show(Resource.PODS, Listed([bound]))
        await world.show(Resource.PODS, Changed(bound | {"status": {"startTime": "1970-01-01T00:01:40Z"}}))

        assert [group.started_at for group in world.cache.snapshot().running.values()] == [100.0]


async def test_objects_missing_from_a_new_list_are_removed() -> None:
    async with fed() as world:
        await world.show(Resource.PODS, Listed([pod("one"), pod("two")]), Changed(pod("three")))
        assert world.pods() == {"one-0", "two-0", "three-0"}

        await world.show(Resource.PODS, Lost("compacted"), Listed([pod("two"), pod("four")]))

        assert world.pods() == {"two-0", "four-0"}


async def test_a_pod_recreated_under_its_name_survives_the_deletion_of_the_earlier_one() -> None:
    async with fed() as world:
        await world.show(Resource.PODS, Listed([pod("one", uid="earlier")]), Changed(pod("one", uid="later")))

        await world.show(Resource.PODS, Deleted(pod("one", uid="earlier")))

        assert [one.uid for one in world.cache.pods.all()] == ["later"]


async def test_each_event_is_reported_and_each_object_is_read() -> None:
    async with fed() as world:
        await world.show(Resource.PODS, Listed([pod("one"), pod("two")]), Changed(pod("one")), Progress(), Lost("why"))

        assert world.looked_at == ["one-0", "two-0", "one-0"]
        assert world.counted.times == 4


async def test_a_long_list_yields_to_other_tasks() -> None:
    async with fed() as world:
        world.script.to_show[Resource.PODS].put_nowait(Listed([pod(f"p{number}") for number in range(3 * PAUSE_EVERY)]))
        seen = set()
        for _ in range(20):
            await asyncio.sleep(0)
            seen.add(len(world.pods()))

        assert seen == {0, PAUSE_EVERY, 2 * PAUSE_EVERY, 3 * PAUSE_EVERY}


async def test_a_pod_that_leeboard_refused_before_it_started_counts_as_parked() -> None:
    async with fed() as world:
        ours, theirs = refused(f"0/3 nodes are available: {phrase(Reason.OVER_LIMIT)}."), refused("Insufficient cpu")

        await world.show(Resource.PODS, Listed([pod("ours", status=ours), pod("theirs", status=theirs), pod("new")]))
        await world.show(Resource.PODS, Changed(pod("ours", status=ours)), Changed(pod("new", status=ours)))

        assert world.parked == ["uid-ours"]


# Unreadable objects


async def test_an_object_with_a_problem_is_counted_until_it_is_repaired_or_deleted() -> None:
    async with fed() as world:
        odd = QUEUE | {"spec": {"resources": "many"}}
        counts = []
        for event in (Listed([odd]), Changed(odd), Changed(QUEUE), Changed(odd), Deleted(odd)):
            await world.show(Resource.QUEUES, event)
            counts.append(world.invalid(Resource.QUEUES))
        await world.show(Resource.QUEUES, Listed([odd]), Listed([]))

        assert [*counts, world.invalid(Resource.QUEUES)] == [1, 1, 0, 1, 0, 0]


async def test_an_object_without_a_name_is_left_out() -> None:
    async with fed() as world:
        await world.show(Resource.PODS, Listed([{}, {"metadata": {"name": "x"}}, pod("one")]), Changed({}), Deleted({}))

        assert world.pods() == {"one-0"}


# How fresh the cache is


async def test_the_cache_is_ready_when_every_kind_was_listed() -> None:
    async with fed() as world:
        synced = asyncio.create_task(world.freshness.synced())
        for resource in Resource:
            assert (world.freshness.failure(), synced.done()) == ("not listed yet", False)
            await world.show(resource, Listed([]))

        assert (world.freshness.failure(), synced.done()) == ("", True)


async def test_a_lost_watch_is_trusted_again_after_its_next_event() -> None:
    async with fed() as world:
        await world.list_all()

        await world.show(Resource.NODES, Lost("connection reset"))
        lost = world.freshness.failure()
        await world.show(Resource.NODES, Progress())

        assert (lost, world.freshness.failure()) == ("connection reset", "")
        assert [check.name for check in world.freshness.checks() if not check.passed] == []


async def test_a_restored_store_ends_the_service_with_a_message() -> None:
    script = Scripted()
    running = asyncio.create_task(script.feed.run())
    await script.list_all()

    await script.show(Resource.TOPOLOGIES, Listed([], restored=True))

    with pytest.raises(ExceptionGroup) as ended:
        await running
    (cause,) = ended.value.exceptions
    assert isinstance(cause, RestoredError)
    assert "restored from a backup" in str(cause)


async def test_the_reason_of_a_failed_first_list_is_reported() -> None:
    async with fed() as world:
        await world.show(Resource.NODES, Lost("forbidden"))

        assert world.freshness.failure() == "forbidden"


async def test_a_silent_watch_is_not_trusted_until_its_next_event() -> None:
    async with fed() as world:
        await world.list_all()
        await passes(STALE_AFTER_S + 1)
        for resource in set(Resource) - {Resource.PODS}:
            await world.show(resource, Progress())

        silent = {check.name: check.failure for check in world.freshness.checks() if check.failure}
        await world.show(Resource.PODS, Progress())

        assert silent == {"watch-pods": "silent for 91 s"}
        assert world.freshness.failure() == ""


# Waiting for a pod


async def test_a_known_pod_is_returned_at_once_and_an_unknown_one_is_waited_for() -> None:
    async with fed() as world:
        asked = [asyncio.create_task(world.arrivals.pod(PodUid("uid-one"), within_s=5)) for _ in range(3)]
        await passes(1)
        await world.show(Resource.PODS, Listed([pod("one")]))
        asked.append(asyncio.create_task(world.arrivals.pod(PodUid("uid-one"), within_s=5)))
        await passes(0)

        assert [one.done() for one in asked] == [True] * 4
        assert {one.result() is not None for one in asked} == {True}


async def test_other_waiters_get_a_pod_for_which_one_waiter_gave_up() -> None:
    async with fed() as world:
        impatient, patient = (
            asyncio.create_task(world.arrivals.pod(PodUid("uid-one"), within_s=within_s)) for within_s in (1, 60)
        )
        await passes(2)

        await world.show(Resource.PODS, Listed([pod("one")]))

        assert impatient.result() is None
        assert patient.done()
