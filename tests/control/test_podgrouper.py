import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.model.explanation import Explanation, GroupState, Subject, Why
from app.model.marks import GATE
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod
from app.model.question import Fits
from app.model.reason import Reason
from app.model.seam import ForbiddenError, KubeError, RawObject, RejectedError, Resource, UnavailableError
from app.simulation import manifests
from app.simulation.manifests import Job
from app.simulation.objects import Ref
from tests.control.wired import FickleCluster, World, furnished, gated, lets_in, living, passes

PYTORCH = "apis/kubeflow.org/v1/pytorchjobs"
JOBS = "apis/batch/v1/jobs"
KINDS = {
    PYTORCH: ("kubeflow.org/v1", "PyTorchJob"),
    JOBS: ("batch/v1", "Job"),
    "apis/apps/v1/statefulsets": ("apps/v1", "StatefulSet"),
    "apis/apps/v1/replicasets": ("apps/v1", "ReplicaSet"),
    "apis/apps/v1/deployments": ("apps/v1", "Deployment"),
    "apis/scheduling.x-k8s.io/v1alpha1/podgroups": ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
}


def equipped(*nodes: str, served: Mapping[str, tuple[str, str]] = KINDS) -> FickleCluster:
    """Build a cluster in which these kinds are installed."""
    cluster = furnished(*nodes)
    for path, (api_version, kind) in served.items():
        cluster.serve(api_version, kind, path)
    return cluster


def create_owner(cluster: FickleCluster, path: str, name: str, **parts: Any) -> RawObject:
    """Create an object that will own pods; `parts` are its labels, annotations, owner, spec and status."""
    metadata = {key: parts.pop(key) for key in ("labels", "annotations", "ownerReferences") if key in parts}
    return cluster.create(path, {"metadata": {"name": name, "namespace": "q", **metadata}, **parts})


def reference(owner: RawObject, path: str) -> RawObject:
    api_version, kind = KINDS[path]
    name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


def owned(name: str, by: RawObject | None, *, labels: Mapping[str, str] | None = None, **more: Any) -> RawObject:
    """Build a pod that requests one GPU and names no queue; `by` is the reference to its owner."""
    raw = manifests.pod(Job(name=name, queue="q", gpus=1, cpu=0, **more))
    raw["metadata"]["labels"] = {"priorityClassName": "train", **(labels or {})}
    if by is not None:
        raw["metadata"]["ownerReferences"] = [by]
    return raw


def training(cluster: FickleCluster, *, workers: int = 3, **more: Any) -> RawObject:
    """Create a PyTorchJob with this number of workers in queue `q`; return a reference to it."""
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}, **more}
    job = create_owner(cluster, PYTORCH, "train", labels={"kai.scheduler/queue": "q"}, spec=spec)
    return reference(job, PYTORCH)


def workers(cluster: FickleCluster, by: RawObject, *numbers: int, gates: tuple[str, ...] = (GATE,)) -> list[RawObject]:
    made = (
        owned(f"worker-{number}", by, labels={"training.kubeflow.org/replica-type": "worker"}) for number in numbers
    )
    return [cluster.create(Resource.PODS, gated(raw, gates)) for raw in made]


def seen(world: World, name: str) -> Pod:
    return next(pod for pod in world.cache.pods.all() if pod.name == f"{name}-0")


def name_of(by: RawObject) -> str:
    return f"pg-{by['name']}-{by['uid']}"


def pod_groups(world: World | FickleCluster) -> dict[str, RawObject]:
    cluster = world.cluster if isinstance(world, World) else world
    return {raw["metadata"]["name"]: raw for raw in cluster.objects(Resource.POD_GROUPS)}


# Gangs


async def test_pods_of_one_job_start_together_or_not_at_all() -> None:
    async with living(cluster=equipped("a", "b")) as world:
        by = training(world.cluster)
        workers(world.cluster, by, 0, 1, 2)
        await passes(3)
        before = list(world.cluster.releases)
        world.nodes("c")
        await passes(3)

        assert (before, sorted(world.cluster.releases)) == ([], ["worker-0-0", "worker-1-0", "worker-2-0"])


async def test_a_job_waits_until_all_its_pods_are_created() -> None:
    async with living(cluster=equipped("a", "b", "c")) as world:
        by = training(world.cluster)
        workers(world.cluster, by, 0, 1)
        await passes(3)

        (_, refusal), *others = world.inspect.waiting()
        assert others == []
        assert refusal is not None
        assert refusal.reason is Reason.MEMBERS_MISSING
        assert refusal.details["minMember"] == 3


async def test_the_podgroup_shows_the_decision_and_is_deleted_with_its_owner() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster, workers=2)
        workers(world.cluster, by, 0)
        await passes(3)

        group = pod_groups(world)[name_of(by)]
        owner = {key: by[key] for key in ("apiVersion", "kind", "name", "uid")}
        assert group["metadata"]["ownerReferences"] == [owner]
        assert group["spec"]["minMember"] == 2
        assert (group["spec"]["queue"], group["spec"]["priorityClassName"]) == ("q", "train")
        assert [part["name"] for part in group["spec"]["subGroups"]] == ["worker"]


async def test_a_pod_that_is_alone_in_its_podgroup_costs_no_write() -> None:
    async with living(cluster=equipped("a")) as world:
        job = create_owner(world.cluster, JOBS, "batch", labels={"kai.scheduler/queue": "q"}, spec={"parallelism": 2})
        for index in range(2):
            world.cluster.create(Resource.PODS, gated(owned(f"batch-{index}", reference(job, JOBS)), [GATE]))
        await passes(3)

        assert pod_groups(world) == {}
        assert len(world.cluster.releases) == 1
        assert [group.queue for group, _ in world.inspect.waiting()] == ["q"]


async def test_a_second_pod_makes_leeboard_create_a_podgroup() -> None:
    async with living(cluster=equipped("a")) as world:
        owner = create_owner(world.cluster, "apis/apps/v1/statefulsets", "serve", labels={"kai.scheduler/queue": "q"})
        by = reference(owner, "apis/apps/v1/statefulsets")
        world.cluster.create(Resource.PODS, owned("serve-0", by))
        await passes(3)
        alone = set(pod_groups(world))
        world.cluster.create(Resource.PODS, owned("serve-1", by))
        await passes(3)

        assert (alone, set(pod_groups(world))) == (set(), {name_of(by)})


# Terms


async def test_a_single_pod_is_planned_on_the_terms_of_the_owner_of_its_owner() -> None:
    async with living(cluster=equipped("a")) as world:
        deployments, sets = "apis/apps/v1/deployments", "apis/apps/v1/replicasets"
        top = create_owner(world.cluster, deployments, "chat", labels={"kai.scheduler/queue": "r"})
        middle = create_owner(world.cluster, sets, "chat-1", ownerReferences=[reference(top, deployments)])
        raw = owned("chat-1-x", reference(middle, sets))
        raw["metadata"]["labels"], raw["spec"]["priorityClassName"] = {}, ""
        world.cluster.create(Resource.PODS, raw)
        await passes(3)

        on = world.cache.groups.terms.of(seen(world, "chat-1-x").group)
        assert on is not None
        assert (on.queue, on.priority, on.preemptible) == ("r", 125, False)
        assert pod_groups(world) == {}


async def test_a_change_of_an_owner_applies_to_its_pods() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster, workers=2)
        workers(world.cluster, by, 0)
        await passes(3)
        ref = Ref(resource=PYTORCH, namespace="q", name="train")
        change = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}
        world.cluster.patch(ref, {"metadata": {"labels": {"priorityClassName": "build-preemptible"}}, "spec": change})
        await passes(3)

        assert world.cluster.releases == ["worker-0-0"]
        spec = pod_groups(world)[name_of(by)]["spec"]
        assert (spec["minMember"], spec["priorityClassName"]) == (1, "build-preemptible")


async def test_a_queue_that_a_user_wrote_into_the_podgroup_stays() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        workers(world.cluster, by, 0)
        await passes(3)
        ref = Ref(resource=Resource.POD_GROUPS, namespace="q", name=name_of(by))
        world.cluster.patch(ref, {"spec": {"queue": "r", "minMember": 1}})
        await passes(3)

        spec = pod_groups(world)[name_of(by)]["spec"]
        on = world.cache.groups.terms.of(GroupKey("q", name_of(by)))
        assert (spec["queue"], spec["minMember"]) == ("r", 3)
        assert on is not None
        assert on.queue == "r"


# Missing owners


async def test_a_pod_waits_for_its_owner_and_joins_its_gang_when_the_owner_is_known() -> None:
    async with living(cluster=equipped("a", "b", "c")) as world:
        by = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "late", "controller": True}
        workers(world.cluster, by, 0)
        await passes(0.5)
        waits = seen(world, "worker-0").ungrouped, [refusal.reason for _, refusal in world.inspect.waiting() if refusal]
        spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
        metadata = {"name": "train", "namespace": "q", "uid": "late", "labels": {"kai.scheduler/queue": "q"}}
        world.cluster.create(PYTORCH, {"metadata": metadata, "spec": spec})
        await passes(0.2)
        alone = list(world.cluster.releases)
        workers(world.cluster, by, 1)
        await passes(3)

        assert waits == ("Its owner PyTorchJob train is still being read.", [Reason.OWNER_UNKNOWN])
        assert (alone, sorted(world.cluster.releases)) == ([], ["worker-0-0", "worker-1-0"])


@pytest.mark.parametrize("served", [{}, KINDS], ids=["of a kind that is not installed", "that is gone"])
async def test_a_pod_whose_owner_cannot_be_read_is_single(served: Mapping[str, tuple[str, str]]) -> None:
    async with living(cluster=equipped("a", served=served)) as world:
        by = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "u", "controller": True}
        world.cluster.create(Resource.PODS, gated(owned("worker", by, labels={"kai.scheduler/queue": "q"}), [GATE]))
        await passes(4)

        assert world.cluster.releases == ["worker-0"]


@pytest.mark.parametrize("api_version", ["v1", "scheduling.run.ai/v2alpha2", "policy/v1"])
async def test_kinds_that_are_read_for_other_purposes_own_no_pods(api_version: str) -> None:
    async with living(cluster=equipped("a")) as world:
        by = {"apiVersion": api_version, "kind": "PodGroup", "name": "x", "uid": "u", "controller": True}
        world.cluster.create(Resource.PODS, gated(owned("worker", by, labels={"kai.scheduler/queue": "q"}), [GATE]))
        await passes(1)

        assert world.cluster.releases == ["worker-0"]


async def test_pods_stay_together_when_their_owner_is_deleted_first() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster, workers=2)
        workers(world.cluster, by, 0)
        await passes(3)
        world.cluster.delete(Ref(resource=PYTORCH, namespace="q", name="train"))
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name=name_of(by)))
        await passes(10)
        workers(world.cluster, by, 1)
        await passes(3)

        assert world.cache.groups.progress.min_member(GroupKey("q", name_of(by))) == 2
        assert {pod.name for pod in world.cache.groups.pods(GroupKey("q", name_of(by)))} == {"worker-0-0", "worker-1-0"}
        assert pod_groups(world) == {}


async def test_a_podgroup_that_a_user_deletes_is_written_again() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        workers(world.cluster, by, 0)
        await passes(3)
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name=name_of(by)))
        await passes(10)

        assert set(pod_groups(world)) == {name_of(by)}


async def test_nothing_is_remembered_about_deleted_pods() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        pods = workers(world.cluster, by, 0, 1)
        await passes(3)
        for pod in pods:
            world.delete(pod)
        world.cluster.delete(Ref(resource=PYTORCH, namespace="q", name="train"))
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name=name_of(by)))
        await passes(10)

        assert world.inspect.waiting() == []
        assert world.cache.groups.specs.get(GroupKey("q", name_of(by))) is None
        grouper: Any = world.grouper
        lineage = grouper._lineage
        assert (lineage._lines, lineage._below, lineage._gone, grouper._sayings._kept) == ({}, {}, set(), {})
        assert (grouper._owners._by_uid, grouper._owners._by_name) == ({}, {})


async def test_a_podgroup_without_pods_says_that_its_owner_is_suspended_until_it_is_resumed() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        (pod,) = workers(world.cluster, by, 0)
        await passes(3)
        ref, key = Ref(resource=PYTORCH, namespace="q", name="train"), GroupKey("q", name_of(by))
        world.cluster.patch(ref, {"spec": {"runPolicy": {"suspend": True}}})
        world.delete(pod)
        await passes(3)
        suspended, status = world.cache.groups.specs.get(key), pod_groups(world)[name_of(by)]["status"]
        world.cluster.patch(ref, {"spec": {"runPolicy": {"suspend": False}}})
        await passes(3)
        resumed = world.cache.groups.specs.get(key)

        said = "PyTorchJob train is suspended (spec.runPolicy.suspend is true); set it to false to go on."
        assert suspended is not None
        assert suspended.suspended == said
        assert (status["phase"], [one["message"] for one in status["schedulingConditions"]]) == ("Suspended", [said])
        assert resumed is not None
        assert resumed.suspended == ""


# After a start, and beside other replicas


def listing_owners_late(cluster: FickleCluster, listed: asyncio.Event) -> None:
    follow = cluster.follow

    async def followed(path: str, *arguments: Any, **more: Any) -> Any:
        await listed.wait()
        async for event in follow(path, *arguments, **more):
            yield event

    cluster.follow = followed  # type: ignore[method-assign] # the API server takes its time


async def test_nothing_is_decided_after_a_start_before_the_owners_of_all_pods_are_known() -> None:
    cluster = equipped("a")
    workers(cluster, training(cluster, workers=2), 0)
    slow = asyncio.Event()
    listing_owners_late(cluster, slow)
    async with living(cluster=cluster) as world:
        await passes(3)
        before, released = world.freshness.failure(), list(world.cluster.releases)
        slow.set()
        await passes(3)

        assert before == "owners of pods are not listed yet: PyTorchJob.kubeflow.org/v1"
        assert released == []
        assert (world.freshness.failure(), world.cluster.releases) == ("", [])
        assert [group.min_member for group, _ in world.inspect.waiting()] == [2]


async def test_an_unchanged_podgroup_is_not_written_again_after_a_start() -> None:
    cluster = equipped("a")
    by = training(cluster)
    async with living(cluster=cluster) as world:
        workers(cluster, by, 0)
        await passes(3)
        version = pod_groups(world)[name_of(by)]["metadata"]["resourceVersion"]
    amended: list[str] = []
    amend = cluster.amend_object

    async def noted(path: str, namespace: str, name: str, change: RawObject) -> None:
        amended.append(name)
        await amend(path, namespace, name, change)

    cluster.amend_object = noted  # type: ignore[method-assign] # counts what is written
    async with living(cluster=cluster) as world:
        await passes(3)

        assert set(pod_groups(world)) == {name_of(by)}
        assert amended == []
        assert version == pod_groups(world)[name_of(by)]["metadata"]["resourceVersion"]


async def test_a_replica_that_does_not_decide_writes_no_podgroups() -> None:
    cluster = equipped("a")
    cluster.holders["q/lease"] = "elsewhere_1"
    async with living(cluster=cluster, scheduler_lease="q/lease", hostname="here") as world:
        by = training(cluster)
        workers(cluster, by, 0)
        await passes(5)
        before = set(pod_groups(world))
        cluster.holders["q/lease"] = "here_1"
        await passes(30)

        assert (before, set(pod_groups(world))) == (set(), {name_of(by)})


@pytest.mark.parametrize("error", [UnavailableError("busy"), ForbiddenError("no"), RejectedError("no")])
async def test_a_podgroup_that_cannot_be_written_is_tried_again_and_blocks_no_pod(error: KubeError) -> None:
    cluster = equipped("a", "b")
    create, errors = cluster.create_object, [error]

    async def failing(path: str, namespace: str, raw: RawObject) -> None:
        if errors:
            raise errors.pop()
        await create(path, namespace, raw)

    cluster.create_object = failing  # type: ignore[method-assign] # the API server is busy
    async with living(cluster=cluster) as world:
        by = training(cluster, workers=2)
        workers(cluster, by, 0, 1)
        await passes(3)
        released = sorted(cluster.releases)
        await passes(70)

        assert released == ["worker-0-0", "worker-1-0"]
        assert set(pod_groups(world)) == {name_of(by)}


async def test_bind_writes_the_podgroup_on_the_pod_so_that_it_survives_its_owner() -> None:
    cluster = equipped("a", "b")
    by = training(cluster, workers=2)
    async with living(cluster=cluster) as world:
        pods = workers(cluster, by, 0, 1)
        await passes(3)
        await asyncio.gather(*(world.bind(pod, world.promised(pod) or "") for pod in pods))
    cluster.delete(Ref(resource=PYTORCH, namespace="q", name="train"))
    async with living(cluster=cluster) as world:
        await passes(5)

        assert len(world.cache.groups.pods(GroupKey("q", name_of(by)))) == 2
        assert world.cache.pods.get(PodUid(pods[0]["metadata"]["uid"])) is not None


# Groups made by others


async def test_podgroups_of_scheduler_plugins_keep_their_pods_together() -> None:
    path = "apis/scheduling.x-k8s.io/v1alpha1/podgroups"
    async with living(cluster=equipped("a", "b")) as world:
        label = {"scheduling.x-k8s.io/pod-group": "crew", "kai.scheduler/queue": "q"}
        world.cluster.create(Resource.PODS, gated(owned("one", None, labels=label), [GATE]))
        await passes(3)
        refusals = [refusal.sentence for _, refusal in world.inspect.waiting() if refusal]
        create_owner(world.cluster, path, "crew", spec={"minMember": 2})
        await passes(3)
        before = list(world.cluster.releases)
        world.cluster.create(Resource.PODS, gated(owned("two", None, labels=label), [GATE]))
        await passes(3)

        assert refusals == ["PodGroup.scheduling.x-k8s.io crew, which its label names, does not exist."]
        assert (before, sorted(world.cluster.releases)) == ([], ["one-0", "two-0"])


async def test_a_podgroup_named_by_a_pod_overrides_that_of_its_owners() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster, workers=5)
        world.cluster.create(
            Resource.POD_GROUPS, manifests.pod_group(Job(name="x", queue="q", group="mine"), min_member=1)
        )
        world.cluster.create(Resource.PODS, gated(owned("worker", by, group="mine"), [GATE]))
        await passes(3)

        assert world.cluster.releases == ["worker-0"]
        assert set(pod_groups(world)) == {"mine"}


# Admission


async def test_admission_passes_a_pod_on_the_terms_of_its_owner_and_gates_the_pods_of_a_gang() -> None:
    async with living(cluster=equipped("a", "b")) as world:
        job = create_owner(world.cluster, JOBS, "batch", labels={"kai.scheduler/queue": "q"}, spec={})
        by = training(world.cluster)
        world.cluster.create(Resource.PODS, gated(owned("batch-0", reference(job, JOBS)), [GATE]))
        workers(world.cluster, by, 0)
        await passes(3)

        assert lets_in(world.fast_path, owned("batch-1", reference(job, JOBS)))
        assert not lets_in(world.fast_path, owned("worker-1", by))
        unknown = {**by, "uid": "unknown"}
        assert not lets_in(world.fast_path, owned("stranger", unknown))


async def test_admission_gets_the_priority_class_named_by_an_owner_if_it_exists() -> None:
    async with living(cluster=equipped("a")) as world:
        labels = {"priorityClassName": "build"}
        job = create_owner(world.cluster, JOBS, "batch", labels=labels, spec={})
        raw = owned("batch-0", reference(job, JOBS))
        world.cluster.create(Resource.PODS, raw)
        await passes(3)
        before = world.fast_path.owners_class(world.fast_path.look(raw))
        world.cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("build"))
        await passes(1)

        assert (before, world.fast_path.owners_class(world.fast_path.look(raw))) == ("", "build")


async def test_filter_waits_a_moment_for_the_owner_of_a_pod() -> None:
    async with living(cluster=equipped("a")) as world:
        metadata = {"name": "batch", "namespace": "q", "uid": "late", "labels": {"kai.scheduler/queue": "q"}}
        by = {"apiVersion": "batch/v1", "kind": "Job", "name": "batch", "uid": "late", "controller": True}
        pod = world.cluster.create(Resource.PODS, owned("batch-0", by))
        await passes(0.05)
        asking = asyncio.create_task(world.filter(pod, "a"))
        await passes(0.05)
        world.cluster.create(JOBS, {"metadata": metadata, "spec": {}})

        assert await asking == Fits((NodeName("a"),))


# `why` by name


async def test_why_answers_for_a_workload_by_its_own_name() -> None:
    async with living(cluster=equipped("a")) as world:
        by = training(world.cluster)
        (pod,) = workers(world.cluster, by, 0)
        await passes(3)
        waiting = world.inspect.explain("q", "train")
        world.cluster.patch(
            Ref(resource=PYTORCH, namespace="q", name="train"), {"spec": {"runPolicy": {"suspend": True}}}
        )
        world.delete(pod)
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name=name_of(by)))
        await passes(10)
        suspended = world.inspect.explain("q", "train")

        assert isinstance(waiting, Explanation)
        assert (waiting.subject, waiting.name, waiting.why.reason) == (
            Subject.POD_GROUP,
            name_of(by),
            Reason.MEMBERS_MISSING,
        )
        assert suspended == Explanation(
            subject=Subject.WORKLOAD,
            namespace="q",
            name="train",
            state=GroupState.SUSPENDED,
            why=Why(
                reason=Reason.OWNER_SUSPENDED,
                sentence="PyTorchJob train is suspended (spec.runPolicy.suspend is true); set it to false to go on.",
            ),
        )


async def test_a_workload_without_pods_says_so() -> None:
    async with living(cluster=equipped("a")) as world:
        workers(world.cluster, training(world.cluster), 0)
        create_owner(world.cluster, PYTORCH, "idle", spec={})
        await passes(3)

        told = world.inspect.explain("q", "idle")

        assert isinstance(told, Explanation)
        assert (told.state, told.why.sentence) == (
            GroupState.NO_PODS,
            (
                "PyTorchJob q/idle has no pods that Leeboard schedules: they have ended, its controller has not created"
                " them yet, or their spec.schedulerName is not kai-scheduler."
            ),
        )


async def test_why_shows_one_podgroup_of_a_workload_with_several_and_their_number() -> None:
    async with living(cluster=equipped("a")) as world:
        job = create_owner(world.cluster, JOBS, "batch", spec={"parallelism": 2})
        for name in ("batch-0", "batch-1"):
            world.cluster.create(Resource.PODS, owned(name, reference(job, JOBS)))
        await passes(3)

        told = world.inspect.explain("q", "batch")
        pod = world.inspect.explain("q", "batch-0-0")

        assert isinstance(told, Explanation)
        assert isinstance(pod, Explanation)
        assert (told.workload_groups, pod.workload_groups) == (2, 0)
