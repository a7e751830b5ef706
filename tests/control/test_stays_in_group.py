"""A bound pod stays in its PodGroup, whatever is written on it and its owners, also after a restart."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.model.marks import GATE
from app.model.names import GroupKey, PodUid
from app.model.seam import RawObject, Resource
from app.simulation.objects import Ref
from tests.control.test_podgrouper import (
    JOBS,
    PYTORCH,
    create_owner,
    equipped,
    listing_owners_late,
    owned,
    pod_groups,
    reference,
    seen,
    training,
    workers,
)
from tests.control.wired import World, gated, living, passes

SETS = "apis/apps/v1/statefulsets"
SKIPS = {"kai.scheduler/skip-podgrouper": "true"}


def paying(world: World) -> dict[str, int]:
    """Return the GPUs that each queue is charged for."""
    return {
        name: used.allocated.gpu_milli // 1000
        for name, used in world.cache.charges.usage().items()
        if used.allocated.pods
    }


async def start(world: World, *pods: RawObject) -> None:
    await passes(3)
    await asyncio.gather(*(world.bind(pod, world.promised(pod) or "") for pod in pods))
    await passes(1)


async def lone_pod_beside_a_gang_of_another_queue(world: World) -> tuple[RawObject, RawObject]:
    """Start a Job's pod in queue `q`, and a gang of two in queue `r`; return the pod and the owner of the gang."""
    world.queue("r", gpus=2)
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
    theirs = create_owner(world.cluster, PYTORCH, "theirs", labels={"kai.scheduler/queue": "r"}, spec=spec)
    gang = workers(world.cluster, reference(theirs, PYTORCH), 0, 1)
    job = create_owner(world.cluster, JOBS, "mine", labels={"kai.scheduler/queue": "q"}, spec={})
    alone = world.cluster.create(Resource.PODS, gated(owned("mine", reference(job, JOBS)), [GATE]))
    await start(world, alone, *gang)
    return alone, reference(theirs, PYTORCH)


def on_pod(change: Callable[[RawObject], RawObject]) -> Callable[[World, RawObject, RawObject], None]:
    return lambda world, pod, theirs: world.patch(pod, metadata=change(theirs))


def above(world: World, _: RawObject, theirs: RawObject) -> None:
    change = {"metadata": {"ownerReferences": [theirs]}}
    world.cluster.patch(Ref(resource=JOBS, namespace="q", name="mine"), change)


EDITS: Mapping[str, Callable[[World, RawObject, RawObject], None]] = {
    "owner of the pod": on_pod(lambda theirs: {"ownerReferences": [theirs]}),
    "owner of its owner": above,
    "no owner": on_pod(lambda _: {"ownerReferences": None}),
    "Spark": on_pod(lambda _: {"labels": {"spark-app-name": "x", "spark-app-selector": "x"}}),
    "skipped": on_pod(lambda _: {"annotations": SKIPS}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_no_change_of_owners_moves_a_running_pod_to_the_podgroup_of_another_queue(
    edit: Callable[[World, RawObject, RawObject], None],
) -> None:
    cluster = equipped("a", "b", "c")
    async with living(cluster=cluster) as world:
        pod, theirs = await lone_pod_beside_a_gang_of_another_queue(world)
        before = paying(world)
        edit(world, pod, theirs)
        await passes(2)
        after, kept = paying(world), set(sayings(world))
    async with living(cluster=cluster) as world:
        await passes(5)

        assert before == after == paying(world) == {"q": 1, "r": 2}
        assert seen(world, "mine").group == GroupKey("q", pod["metadata"]["uid"])
        assert kept == set(sayings(world))


def sayings(world: World) -> Mapping[GroupKey, object]:
    grouper: Any = world.grouper
    kept: Mapping[GroupKey, object] = grouper._sayings._kept
    return kept


async def test_a_pod_bound_before_its_podgroup_is_written_is_in_it_after_a_restart() -> None:
    cluster = equipped("a", "b")
    by = reference(create_owner(cluster, SETS, "serve", labels={"kai.scheduler/queue": "q"}), SETS)
    async with living(cluster=cluster) as world:
        await start(world, cluster.create(Resource.PODS, gated(owned("serve-0", by), [GATE])))
        without_object = not pod_groups(world)
    async with living(cluster=cluster) as world:
        await start(world, cluster.create(Resource.PODS, gated(owned("serve-1", by), [GATE])))

        assert without_object
        assert {seen(world, f"serve-{number}").group.name for number in (0, 1)} == set(pod_groups(world))


async def test_a_running_member_is_in_its_sub_group_after_a_restart_though_its_owner_is_listed_late() -> None:
    cluster, slow = equipped("a", "b"), asyncio.Event()
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}}
    by = reference(create_owner(cluster, PYTORCH, "train", labels={"kai.scheduler/queue": "q"}, spec=spec), PYTORCH)
    roles = ("master", "worker")
    async with living(cluster=cluster) as world:
        pods = [owned(role, by, labels={"training.kubeflow.org/replica-type": role}) for role in roles]
        await start(world, *(cluster.create(Resource.PODS, gated(raw, [GATE])) for raw in pods))
        bound = [seen(world, role).node is not None for role in roles]
    listing_owners_late(cluster, slow)
    async with living(cluster=cluster) as world:
        await passes(3)
        early = [seen(world, role).group.name for role in roles]
        slow.set()
        await passes(3)

        assert (bound, early) == ([True, True], [f"pg-train-{by['uid']}"] * 2)
        assert [seen(world, role).subgroup for role in roles] == ["master", "worker"]
        assert not world.cache.groups.progress.owes(seen(world, "worker").group)


async def test_pods_bound_by_an_older_release_follow_their_owners() -> None:
    cluster = equipped("a", "b")
    by = training(cluster, workers=2)
    raw = owned("old", None)
    raw["spec"] |= {"nodeName": "a"}
    raw["status"] = {"phase": "Running"}
    cluster.create(Resource.PODS, raw)
    async with living(cluster=cluster) as world:
        await passes(2)
        pod = next(pod for pod in world.cache.pods.all() if pod.name.startswith("old"))
        (stored,) = (each for each in cluster.objects(Resource.PODS) if each["metadata"]["uid"] == pod.uid)
        world.patch(stored, metadata={"ownerReferences": [by]})
        await passes(2)

        assert world.cache.pods.get(PodUid(pod.uid)) is not None
        assert seen(world, "old").group == GroupKey("q", f"pg-train-{by['uid']}")
