"""PodGroups when owners are created late, deleted early, created again, or changed during other operations."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from app.control.groups.owner_kinds import MOST_KINDS
from app.control.groups.podgroup_writer import WRITERS
from app.model.marks import GATE
from app.model.names import GroupKey, PodUid
from app.model.seam import Depth, Lost, OutcomeUnknownError, Progress, RawObject, RejectedError, Resource
from app.simulation.objects import Ref
from tests.control.test_podgrouper import (
    PYTORCH,
    create_owner,
    equipped,
    name_of,
    owned,
    pod_groups,
    reference,
    seen,
    training,
    workers,
)
from tests.control.wired import World, gated, living, passes

LWS = "apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
NAMED = "apis/scheduling.x-k8s.io/v1alpha1/podgroups"
SPARK = {"spark-app-name": "app"}


async def test_a_pod_whose_eviction_failed_stays_although_its_owner_changed_meanwhile() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster, workers=1)
        (raw,) = workers(world.cluster, by, 0, gates=())
        world.patch(raw, spec={"nodeName": "a"}, status={"phase": "Running"})
        await passes(3)
        uid = PodUid(raw["metadata"]["uid"])
        world.cache.mark_leaving(uid)
        world.cluster.patch(Ref(resource=PYTORCH, namespace="q", name="train"), {"metadata": {"labels": {"x": "y"}}})
        await passes(1)
        leaving = seen(world, "worker-0").deleting
        world.cache.unmark_leaving(uid)

        assert (leaving, seen(world, "worker-0").deleting) == (True, False)


async def test_the_first_worker_of_a_ready_leader_is_grouped_with_it() -> None:
    cluster = equipped("a", "b")
    cluster.serve("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", LWS)
    async with living(cluster=cluster) as world:
        spec = {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"size": 2}}
        made = create_owner(cluster, LWS, "lws", labels={"kai.scheduler/queue": "q"}, spec=spec)
        by: RawObject = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "lws"}
        by |= {"uid": made["metadata"]["uid"], "controller": True}
        prefix = "leaderworkerset.sigs.k8s.io"
        for index in ("0", "1"):
            labels = {f"{prefix}/group-index": "0", f"{prefix}/worker-index": index}
            cluster.create(Resource.PODS, gated(owned(f"lws-{index}", by, labels=labels), [GATE]))
            await passes(3)

        assert sorted(world.cluster.releases) == ["lws-0-0", "lws-1-0"]


async def test_pods_join_the_podgroup_that_is_created_again_under_the_name_on_their_label() -> None:
    async with living(cluster=equipped("a")) as world:
        create_owner(world.cluster, NAMED, "mine", labels={"kai.scheduler/queue": "q"}, spec={"minMember": 2})
        labels = {"scheduling.x-k8s.io/pod-group": "mine"}
        world.cluster.create(Resource.PODS, gated(owned("one", None, labels=labels), [GATE]))
        await passes(2)
        world.cluster.delete(Ref(resource=NAMED, namespace="q", name="mine"))
        await passes(1)
        create_owner(world.cluster, NAMED, "mine", labels={"kai.scheduler/queue": "q"}, spec={"minMember": 2})
        await passes(1)
        world.cluster.create(Resource.PODS, gated(owned("two", None, labels=labels), [GATE]))
        world.nodes("b")
        await passes(3)

        assert sorted(world.cluster.releases) == ["one-0", "two-0"]


async def test_pods_of_a_kind_that_is_installed_later_become_one_gang() -> None:
    async with living(cluster=equipped(served={})) as world:
        by = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "u", "controller": True}
        workers(world.cluster, by, 0, 1)
        await passes(2)
        world.cluster.serve("kubeflow.org/v1", "PyTorchJob", PYTORCH)
        metadata = {"name": "train", "namespace": "q", "uid": "u", "labels": {"kai.scheduler/queue": "q"}}
        spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
        world.cluster.create(PYTORCH, {"metadata": metadata, "spec": spec})
        await passes(40)
        world.nodes("a")
        await passes(3)

        assert world.cache.groups.progress.min_member(GroupKey("q", name_of(by))) == 2
        assert world.cluster.releases == []


async def test_pods_wait_for_an_owner_again_as_soon_as_its_kind_may_be_read_again() -> None:
    cluster = equipped("a", "b")
    follow, refused, allowed = cluster.follow, asyncio.Event(), asyncio.Event()

    async def followed(path: str, *arguments: Any, **more: Any) -> Any:
        """Follow like a watch that was refused for a while, and continued from where it was."""
        events = follow(path, *arguments, **more)
        yield await anext(events)
        if path == PYTORCH:
            await refused.wait()
            yield Lost("forbidden", denied=True)
            await allowed.wait()
            yield Progress()
        async for event in events:
            yield event

    cluster.follow = followed  # type: ignore[method-assign] # an administrator revokes our right, and grants it again
    async with living(cluster=cluster) as world:
        other = training(cluster, workers=1)
        workers(cluster, other, 9)
        await passes(1)
        refused.set()
        await passes(1)
        allowed.set()
        await passes(1)
        by = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "late", "uid": "late", "controller": True}
        workers(cluster, by, 0)
        await passes(0.3)

        assert seen(world, "worker-0").ungrouped == "Its owner PyTorchJob late is still being read."


async def test_a_pod_that_its_owner_released_is_not_remembered_below_it() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        (raw,) = workers(world.cluster, by, 0)
        await passes(2)
        world.patch(raw, metadata={"ownerReferences": None, "labels": None})
        await passes(2)
        grouper: Any = world.grouper
        below = set(grouper._lineage._lines), set(grouper._sayings._kept)

        assert below == (set(), set())


async def test_a_podgroup_whose_last_pod_moved_to_another_is_forgotten() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        (raw,) = workers(world.cluster, by, 0)
        await passes(2)
        world.patch(raw, metadata={"annotations": {"pod-group-name": "other"}})
        await passes(2)
        grouper: Any = world.grouper

        assert (set(grouper._sayings._kept), set(grouper._writer._wanted)) == (set(), set())


async def test_refused_podgroups_do_not_delay_those_of_others() -> None:
    cluster = equipped("a")
    create, refused = cluster.create_object, list[str]()

    async def picky(path: str, namespace: str, raw: RawObject) -> None:
        if raw["metadata"]["name"].startswith("Bad"):
            refused.append(raw["metadata"]["name"])
            raise RejectedError("a lowercase RFC 1123 subdomain must consist of lower case characters")
        await create(path, namespace, raw)

    cluster.create_object = picky  # type: ignore[method-assign] # the API server checks names
    async with living(cluster=cluster) as world:
        for number in range(5):
            for pod in "ab":
                labels = {**SPARK, "spark-app-selector": f"Bad_{number}", "kai.scheduler/queue": "q"}
                raw = gated(owned(f"spark-{number}-{pod}", None, labels=labels), [GATE])
                cluster.create(Resource.PODS, raw)
        await passes(2)
        by = training(cluster)
        workers(cluster, by, 0)
        await passes(3)
        tried = len(refused)
        await passes(50)

        assert set(pod_groups(world)) == {name_of(by)}
        assert (tried, len(refused)) == (5, 5)


async def test_a_user_who_edits_a_podgroup_repeatedly_does_not_cause_as_many_writes() -> None:
    cluster = equipped("a")
    amend, amended = cluster.amend_object, list[str]()

    async def noted(path: str, namespace: str, name: str, change: RawObject) -> None:
        amended.append(name)
        await amend(path, namespace, name, change)
        asyncio.get_running_loop().call_later(0.1, cluster.patch, ref, {"spec": {"minMember": 7}})

    cluster.amend_object = noted  # type: ignore[method-assign] # another controller follows right behind
    async with living(cluster=cluster) as world:
        by = training(cluster)
        ref = Ref(resource=Resource.POD_GROUPS, namespace="q", name=name_of(by))
        workers(cluster, by, 0)
        await passes(3)
        cluster.patch(ref, {"spec": {"minMember": 7}})
        await passes(30)

        assert 1 <= len(amended) <= 3
        assert world.cache.groups.progress.min_member(GroupKey("q", name_of(by))) == 3


async def test_an_owner_missed_by_many_pods_is_read_once() -> None:
    cluster = equipped("a")
    read, reads = cluster.read_object, list[str]()

    async def counted(path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        reads.append(name)
        return await read(path, namespace, name, depth=depth)

    cluster.read_object = counted  # type: ignore[method-assign] # counts what is asked
    async with living(cluster=cluster) as world:
        training(cluster)
        gone = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "gone", "uid": "g", "controller": True}
        for number in range(20):
            made = create_owner(cluster, "apis/batch/v1/jobs", f"job-{number}", ownerReferences=[gone], spec={})
            by = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number}", "uid": made["metadata"]["uid"]}
            cluster.create(Resource.PODS, gated(owned(f"of-{number}", by), [GATE]))
        await passes(4)

        assert len(world.cache.pods.all()) == 20
        assert reads == ["gone"]


async def test_the_oldest_pod_sets_queue_and_priority_of_its_podgroup_where_pods_differ() -> None:
    async with living(cluster=equipped()) as world:
        by = training(world.cluster)
        for day, name, priority in ((2, "new", "inference"), (1, "old", "build"), (3, "newest", "train")):
            raw = owned(name, by, labels={"priorityClassName": priority})
            raw["metadata"]["creationTimestamp"] = f"2026-01-0{day}T00:00:00Z"
            world.cluster.create(Resource.PODS, raw)
            await passes(1)
        key = GroupKey("q", name_of(by))
        before = world.cache.groups.terms.of(key), pod_groups(world)[key.name]["spec"]["priorityClassName"]
        ref = Ref(resource=PYTORCH, namespace="q", name="train")
        world.cluster.patch(ref, {"metadata": {"labels": {"priorityClassName": "train"}}})
        await passes(2)
        after = world.cache.groups.terms.of(key)

        assert before[0] is not None
        assert after is not None
        assert (before[0].priority, before[1], after.priority) == (100, "build", 50)


async def test_nothing_is_decided_after_a_start_while_pods_are_being_regrouped() -> None:
    cluster = equipped("a")
    first = create_owner(cluster, "apis/batch/v1/jobs", "first", spec={})
    train = training(cluster, workers=2)
    second = create_owner(cluster, "apis/batch/v1/jobs", "second", ownerReferences=[train], spec={})
    for owner, pods in ((first, 150), (second, 1)):
        by = {"apiVersion": "batch/v1", "kind": "Job", "name": owner["metadata"]["name"]}
        by |= {"uid": owner["metadata"]["uid"], "controller": True}
        for number in range(pods):
            cluster.create(Resource.PODS, gated(owned(f"{by['name']}-{number}", by), [GATE]))
    replicas = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": True}
    cluster.create(Resource.PODS, gated(owned("of-a-set", replicas), [GATE]))
    follow = cluster.follow

    async def followed(path: str, *arguments: Any, **more: Any) -> Any:
        """Show Jobs as they are, events of StatefulSets all the time, and no PyTorchJobs ever."""
        if path == PYTORCH:
            await asyncio.Event().wait()
        async for event in follow(path, *arguments, **more):
            yield event
            for _ in range(500 if path == "apis/apps/v1/statefulsets" else 0):
                await asyncio.sleep(0)
                said.add(world.freshness.failure())
                yield Progress()

    said = set[str]()
    cluster.follow = followed  # type: ignore[method-assign] # what comes first is not what is asked for last
    async with living(cluster=cluster) as world:
        await passes(3)

        assert "" not in said
        assert world.freshness.failure() == "owners of pods are not listed yet: PyTorchJob.kubeflow.org/v1"


async def test_a_change_in_the_status_of_an_owner_regroups_no_pod() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        workers(world.cluster, by, 0)
        await passes(3)
        version = world.cache.changes.version
        world.cluster.patch(Ref(resource=PYTORCH, namespace="q", name="train"), {"status": {"active": 1}})
        await passes(1)

        assert world.cache.changes.version == version


async def test_each_owner_that_does_not_exist_delays_only_its_own_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 30
    cluster = equipped("a")
    async with living(cluster=cluster) as world:
        training(cluster)
        await passes(1)
        asked = Counter[str]()
        regroup = world.grouper._regroup_pod

        def counted(uid: PodUid) -> None:
            asked[uid] += 1
            regroup(uid)

        monkeypatch.setattr(world.grouper, "_regroup_pod", counted)
        gone = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": True}
        for number in range(many):
            workers(cluster, gone | {"name": f"gone-{number}", "uid": f"gone-{number}"}, number)

        await passes(10)

        assert len(asked) == many
        # Once after the list of its kind, and once when its owner is known not to exist.
        assert max(asked.values()) <= 2


def invent(world: World, count: int) -> None:
    for number in range(count):
        by = {"apiVersion": "made.up/v1", "kind": f"Kind{number}", "name": "x", "uid": f"u-{number}"}
        world.cluster.create(Resource.PODS, gated(owned(f"invented-{number}", by), ["somebody.else/gate"]))


@pytest.mark.parametrize("between", [0, 3])
async def test_invented_kinds_do_not_keep_a_gang_from_starting(between: int) -> None:
    async with living(cluster=equipped("a")) as world:
        invent(world, MOST_KINDS + 1)
        await passes(between)
        by = training(world.cluster, workers=2)
        workers(world.cluster, by, 0, 1)
        await passes(5)

        assert seen(world, "worker-0").group == seen(world, "worker-1").group
        assert seen(world, "worker-0").names_group
        assert seen(world, f"invented-{MOST_KINDS}").ungrouped == ""


async def test_invented_kinds_do_not_keep_a_gang_apart_after_a_restart() -> None:
    cluster = equipped("a")
    async with living(cluster=cluster) as world:
        invent(world, MOST_KINDS + 1)
    by = training(cluster, workers=2)
    workers(cluster, by, 0, 1)
    async with living(cluster=cluster) as world:
        await passes(5)

        assert seen(world, "worker-0").names_group
        assert world.freshness.failure() == ""


async def test_podgroups_whose_writes_never_succeed_are_retried_less_often_and_delay_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with living(cluster=equipped("a")) as world:
        create, tries = world.cluster.create_object, Counter[str]()

        async def failing(path: str, namespace: str, raw: RawObject) -> None:
            name = raw["metadata"]["name"]
            tries[name] += 1
            if "broken" in name:
                raise OutcomeUnknownError("500 failed calling webhook")
            await create(path, namespace, raw)

        # The fake has no failures for writes that depend on the object.
        monkeypatch.setattr(world.cluster, "create_object", failing)
        for name in (*(f"broken-{number}" for number in range(2 * WRITERS)), "whole"):
            spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
            job = create_owner(world.cluster, PYTORCH, name, labels={"kai.scheduler/queue": "q"}, spec=spec)
            world.cluster.create(Resource.PODS, gated(owned(name, reference(job, PYTORCH)), [GATE]))
        await passes(3)
        assert [name.startswith("pg-whole") for name in pod_groups(world)] == [True]

        await passes(600)

        assert max(tries.values()) < 25
