"""Lost watch events are found and repaired, and nothing that the watch shows is undone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from copy import deepcopy
from typing import Any, TypeVar

import pytest

from app.control.informers import audit
from app.control.informers.audit import WATCH_LAG_S, Audit
from app.control.informers.audited import AuditedResource
from app.model.names import PodUid
from app.model.seam import (
    Depth,
    ForbiddenError,
    Listed,
    RawObject,
    Resource,
    RestoredError,
    UnavailableError,
    WatchEvent,
)
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Job, Quota
from tests.control.test_podgrouper import JOBS, KINDS, PYTORCH, create_owner, reference, workers
from tests.control.wired import FickleCluster, World, furnished, living, passes

T = TypeVar("T")

EVERY_S = 60.0
ROUND_S = EVERY_S + 2 * WATCH_LAG_S


class LossyCluster(FickleCluster):
    """Loses the events of some kinds when the test tells it to."""

    def __init__(self) -> None:
        super().__init__()
        self.losing: frozenset[Resource | str] = frozenset()
        self.audited: list[tuple[Resource, str]] = []
        """What was listed: the kind and the name."""
        self.meanwhile: Callable[[], None] | None = None
        """Changes of pods, shown by the watch, between a list and its arrival; once."""
        self.meanwhile_of = ""
        """In the list of pods of this name; empty for the list of all."""
        self.happened = 0

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        return self._lossy(resource, super().watch(resource, keep))

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        return self._lossy(path, super().follow(path, keep, depth=depth))

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        await self._begin(path)
        return await super().list_objects(path, keep, depth=depth)

    async def _lossy(
        self, resource: Resource | str, events: AsyncIterator[WatchEvent[T]]
    ) -> AsyncIterator[WatchEvent[T]]:
        async for event in events:
            if isinstance(event, Listed) or resource not in self.losing:
                yield event

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        self.audited.append((resource, name))
        await self._begin("listed")
        stored = await super().listed(resource, deepcopy, depth=depth, namespace=namespace, name=name)
        if resource is Resource.PODS and name == self.meanwhile_of and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
            self.happened += 1
            await passes(0.1)
        return list(map(keep, stored))

    async def lose(self, act: Callable[[], Any], *resources: Resource | str) -> None:
        """Hide from the watch what this does to pods, or to these kinds."""
        self.losing = frozenset(resources or [Resource.PODS])
        act()
        await passes(0.1)
        self.losing = frozenset()


def audit_of(world: World, cluster: LossyCluster, *, interval_s: float) -> Audit:
    owners = world.grouper.owner_watch
    return Audit(world.feed, owners, world.freshness, cluster, world.metrics, interval_s=interval_s)


@asynccontextmanager
async def audited(*nodes: str, interval_s: float = EVERY_S) -> AsyncIterator[tuple[World, LossyCluster]]:
    cluster = LossyCluster()
    furnished(*nodes, gpus=4, cluster=cluster)
    async with living(cluster=cluster) as world:
        running = asyncio.create_task(audit_of(world, cluster, interval_s=interval_s).run())
        try:
            yield world, cluster
            assert running.done() is (not interval_s)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def drift(world: World) -> dict[tuple[str, str], float]:
    samples = [one for family in world.metrics.registry.collect() for one in family.samples]
    found = [one for one in samples if one.name == "leeboard_audit_drift_total"]
    return {(one.labels["resource"], one.labels["drift"]): one.value for one in found}


def bound(name: str, node: str = "a") -> RawObject:
    pod = manifests.pod(Job(name=name, queue="q", gpus=3))
    return pod | {"spec": pod["spec"] | {"nodeName": node}, "status": {"phase": "Running"}}


UNBOUND = manifests.pod(Job(name="p", queue="none", gpus=3))
Change = Callable[[World, RawObject], object]


@pytest.mark.parametrize(
    ("pod", "change", "before", "after", "found"),
    [
        (bound("p"), lambda world, pod: world.delete(pod), 1, 4, {("pods", "gone"): 1}),
        (bound("p"), lambda world, pod: world.patch(pod, status={"phase": "Succeeded"}), 1, 4, {("pods", "gone"): 1}),
        (None, lambda world, _: world.cluster.create(Resource.PODS, bound("p")), 4, 1, {("pods", "missed"): 1}),
        (UNBOUND, lambda world, pod: world.patch(pod, spec={"nodeName": "a"}), 4, 1, {("pods", "stale"): 1}),
    ],
    ids=["gone", "finished", "come", "bound"],
)
async def test_the_gpu_of_a_pod_whose_deletion_was_missed_is_free_after_the_audit(
    pod: RawObject | None, change: Change, before: int, after: int, found: dict[tuple[str, str], int]
) -> None:
    async with audited("a") as (world, cluster):
        made = {} if pod is None else cluster.create(Resource.PODS, pod)
        await passes(1)
        await cluster.lose(lambda: change(world, made))
        unseen = world.free_gpus()

        await passes(ROUND_S)

        assert (unseen, world.free_gpus()) == ({"a": before}, {"a": after})
        assert drift(world) == found


@pytest.mark.parametrize("reads", [1, 2])
async def test_a_missed_restore_of_the_store_ends_the_service(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    cluster = LossyCluster()
    furnished("a", gpus=4, cluster=cluster)
    async with living(cluster=cluster) as world:
        cluster.create(Resource.PODS, bound("p"))
        await passes(1)
        listed, past = cluster.listed, list[int]()

        async def restored(resource: Resource, keep: Callable[[RawObject], T], **more: Any) -> list[T]:
            found = await listed(resource, deepcopy, **more)
            past.append(len(found))
            older = [raw | {"metadata": raw["metadata"] | {"resourceVersion": "1"}} for raw in found]
            return list(map(keep, older if len(past) <= reads else found))

        monkeypatch.setattr(cluster, "listed", restored)
        pods = AuditedResource(world.feed, cluster, Resource.PODS)
        look = audit_of(world, cluster, interval_s=EVERY_S).look(pods)
        # A single old answer may be that of an API server that lags.
        with pytest.raises(RestoredError) if reads > 1 else nullcontext():
            await look

        assert drift(world) == {}


async def test_a_pod_recreated_under_its_name_without_an_event_is_another_pod() -> None:
    async with audited("a", "b") as (world, cluster):
        pod = cluster.create(Resource.PODS, bound("p"))
        await passes(1)

        def recreate() -> None:
            world.delete(pod)
            cluster.create(Resource.PODS, bound("p", "b"))

        await cluster.lose(recreate)
        await passes(ROUND_S)

        assert world.free_gpus() == {"a": 4, "b": 1}
        assert drift(world) == {("pods", "gone"): 1, ("pods", "missed"): 1}


async def test_nodes_queues_and_podgroups_are_repaired_too() -> None:
    async with audited("a", "b") as (world, cluster):
        (a, _) = cluster.objects(Resource.NODES)

        def change() -> None:
            cluster.delete(Ref.of(Resource.NODES, a))
            cluster.create(Resource.NODES, manifests.node("c", gpus=4, cpu=64, labels={}))
            cluster.create(Resource.QUEUES, manifests.queue("r", None, Quota(gpus=0)))
            cluster.create(Resource.POD_GROUPS, manifests.pod_group(Job(name="g", queue="q", group="g"), min_member=2))

        await cluster.lose(change, Resource.NODES, Resource.QUEUES, Resource.POD_GROUPS)
        await passes(2 * ROUND_S)

        assert world.free_gpus() == {"b": 4, "c": 4}
        assert sorted(world.cache.queues.tree()) == ["q", "r"]
        assert [spec.min_member for spec in world.cache.groups.specs.all()] == [2]
        assert drift(world) == dict.fromkeys(
            [("nodes", "missed"), ("nodes", "gone"), ("queues", "missed"), ("pod_groups", "missed")], 1
        )


async def test_events_that_are_still_in_flight_are_not_drift() -> None:
    async with audited("a") as (world, cluster):
        pod = cluster.create(Resource.PODS, bound("p"))
        await passes(EVERY_S - 1)
        cluster.hide(Resource.PODS)
        world.delete(pod)
        cluster.create(Resource.PODS, bound("q"))
        await passes(1 + WATCH_LAG_S / 2)
        cluster.show(Resource.PODS)
        await passes(ROUND_S)

        assert drift(world) == {}
        assert {name for _, name in cluster.audited} == {""}


async def test_an_event_that_arrives_after_its_repair_changes_nothing() -> None:
    async with audited("a") as (world, cluster):
        pod = cluster.create(Resource.PODS, manifests.pod(Job(name="p", queue="none", gpus=3)))
        await passes(1)
        await cluster.lose(lambda: world.patch(pod, spec={"nodeName": "a"}))
        await passes(ROUND_S)

        # The earlier state, from a watch that lags.
        late = world.feed._keep(Resource.PODS, pod)
        assert late is not None
        assert world.feed._is_old(Resource.PODS, late)
        assert world.cache.pods.get(PodUid(pod["metadata"]["uid"])).node == "a"  # type: ignore[union-attr] # it is known


async def test_changes_of_pods_during_the_list_are_not_undone() -> None:
    async with audited("a", "b", "c") as (world, cluster):
        waiting = cluster.create(Resource.PODS, manifests.pod(Job(name="waits", queue="none", gpus=2)))
        going = cluster.create(Resource.PODS, bound("goes", "b"))
        await passes(1)

        def meanwhile() -> None:
            world.patch(waiting, spec={"nodeName": "a"})
            world.delete(going)
            cluster.create(Resource.PODS, bound("comes", "c"))

        cluster.meanwhile = meanwhile
        await passes(EVERY_S)
        before = world.free_gpus()
        await passes(2 * WATCH_LAG_S)

        assert before == world.free_gpus() == {"a": 2, "b": 4, "c": 1}
        assert (cluster.happened, drift(world)) == (1, {})
        assert {name for _, name in cluster.audited} == {""}


async def test_a_pod_that_was_created_and_deleted_during_the_list_is_not_restored() -> None:
    async with audited("a") as (world, cluster):
        await passes(1)
        cluster.hide(Resource.PODS)
        pod = cluster.create(Resource.PODS, bound("p"))

        def meanwhile() -> None:
            cluster.show(Resource.PODS)
            world.delete(pod)

        cluster.meanwhile, cluster.meanwhile_of = meanwhile, pod["metadata"]["name"]
        await passes(ROUND_S)

        assert (cluster.happened, world.free_gpus(), drift(world)) == (1, {"a": 4}, {})


async def test_many_created_and_deleted_pods_do_not_hide_a_lost_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_SUSPECTS", 2)
    async with audited("a") as (world, cluster):
        for number in range(5):
            cluster.create(Resource.PODS, manifests.pod(Job(name=f"a{number}", queue="none")))
        await passes(1)
        await cluster.lose(lambda: cluster.create(Resource.PODS, bound("p")))

        def meanwhile() -> None:
            for raw in cluster.objects(Resource.PODS):
                if raw["metadata"]["name"].startswith("a"):
                    world.delete(raw)

        cluster.meanwhile = meanwhile
        await passes(ROUND_S)

        assert (cluster.happened, world.free_gpus()) == (1, {"a": 1})


async def test_an_audit_without_drift_costs_one_list_per_kind() -> None:
    async with audited("a") as (world, cluster):
        for number in range(300):
            cluster.create(Resource.PODS, manifests.pod(Job(name=f"p{number}", queue="none")))
        await passes(ROUND_S)

        assert cluster.audited == [(resource, "") for resource in Resource]
        assert drift(world) == {}


# Objects that own pods


def trains(cluster: LossyCluster, name: str, *, suspend: bool) -> RawObject:
    """Create a PyTorchJob of two workers and return the owner reference of its pods."""
    spec = {"runPolicy": {"suspend": suspend}, "pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
    job = create_owner(cluster, PYTORCH, name, labels={"kai.scheduler/queue": "q"}, spec=spec)
    return reference(job, PYTORCH)


def resume(cluster: LossyCluster, name: str) -> None:
    cluster.patch(Ref(resource=PYTORCH, namespace="q", name=name), {"spec": {"runPolicy": {"suspend": False}}})


def with_owner_kinds(cluster: LossyCluster) -> None:
    for path, (api_version, kind) in KINDS.items():
        cluster.serve(api_version, kind, path)


async def test_the_pods_of_a_job_whose_resume_was_missed_start_after_the_audit() -> None:
    async with audited("a") as (world, cluster):
        with_owner_kinds(cluster)
        workers(cluster, trains(cluster, "train", suspend=True), 0, 1)
        await passes(5)
        assert cluster.releases == []
        await cluster.lose(lambda: resume(cluster, "train"), PYTORCH)

        await passes(2 * ROUND_S)

        assert sorted(cluster.releases) == ["worker-0-0", "worker-1-0"]
        assert drift(world) == {("PyTorchJob.kubeflow.org/v1", "stale"): 1}


async def test_an_owner_whose_creation_or_deletion_was_missed_is_repaired_once() -> None:
    async with audited("a") as (world, cluster):
        with_owner_kinds(cluster)
        workers(cluster, trains(cluster, "train", suspend=True), 0, 1)
        trains(cluster, "gone", suspend=True)
        await passes(5)

        def change() -> None:
            cluster.delete(Ref(resource=PYTORCH, namespace="q", name="gone"))
            trains(cluster, "came", suspend=True)

        await cluster.lose(change, PYTORCH)
        await passes(3 * ROUND_S)

        assert world.grouper.workload("q", "gone") is None
        assert world.grouper.workload("q", "came") is not None
        kind = "PyTorchJob.kubeflow.org/v1"
        assert drift(world) == {(kind, "gone"): 1, (kind, "missed"): 1}


async def test_an_owner_kind_that_may_no_longer_be_listed_does_not_stop_the_audit_of_others() -> None:
    async with audited("a") as (world, cluster):
        with_owner_kinds(cluster)
        jobs = create_owner(cluster, JOBS, "job")
        workers(cluster, reference(jobs, JOBS), 2)
        workers(cluster, trains(cluster, "train", suspend=True), 0, 1)
        await passes(5)
        cluster.errors[JOBS] += [ForbiddenError("403")] * 1000
        await cluster.lose(lambda: resume(cluster, "train"), PYTORCH)

        await passes(2 * ROUND_S)

        assert drift(world) == {("PyTorchJob.kubeflow.org/v1", "stale"): 1}


async def test_a_kind_that_cannot_be_listed_is_audited_in_the_next_round() -> None:
    async with audited("a") as (world, cluster):
        pod = cluster.create(Resource.PODS, bound("p"))
        await passes(1)
        await cluster.lose(lambda: world.delete(pod))
        cluster.errors["listed"] += [UnavailableError("503")] * len(Resource)

        await passes(ROUND_S)
        before = world.free_gpus()
        await passes(ROUND_S)

        assert (before, world.free_gpus()) == ({"a": 1}, {"a": 4})


@pytest.mark.parametrize(("interval_s", "lists"), [(0.0, 0), (EVERY_S, len(Resource))])
async def test_the_audit_can_be_switched_off(interval_s: float, lists: int) -> None:
    async with audited("a", interval_s=interval_s) as (_, cluster):
        await passes(ROUND_S)

        assert len(cluster.audited) == lists
