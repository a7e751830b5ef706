"""`kubectl describe` of a pending pod, of its PodGroup and of its owners shows the cause: events by uid."""

from app.control.report.events import CAUSES_TOLD, EVENTS_PER_ROUND, PODS_TOLD, TOLD_FOR_S
from app.model.seam import RawObject, Resource, UnavailableError
from app.simulation.cluster import Ref
from tests.control.jobs import JOBS, QUEUE, job, pods_of, with_jobs
from tests.control.wired import FickleCluster, World, living, passes

TOLD_S = 8.0
"""After this time all events about a few groups have been written."""
NODE = Ref(resource=Resource.NODES, name="a")
EVEN_EMPTY = "Even empty, all nodes together hold at most 1 of 2 pods that start together"


def described(world: World, uid: str) -> list[tuple[str, str]]:
    """Return the events of an object, as `kubectl describe` finds them."""
    return [(one.regarding["kind"], one.note) for one in world.cluster.events if one.regarding["uid"] == uid]


def uid_of(one: RawObject) -> str:
    return str(one["metadata"]["uid"])


async def test_a_member_of_a_gang_gets_an_event_with_the_cause_and_the_podgroup() -> None:
    async with living("a") as world:
        first, second = world.gang("gang", size=2)
        await passes(TOLD_S)

        for pod in (first, second):
            ((kind, note),) = described(world, uid_of(pod))
            assert kind == "Pod"
            assert note.startswith(f"PodGroup gang: {EVEN_EMPTY}")


async def test_a_job_gets_an_event_with_the_cause_and_the_podgroup() -> None:
    async with living(cluster=with_jobs("a")) as world:
        owner = job(world, batch_min_member=2)
        pods_of(world, owner, "first", "second")
        await passes(TOLD_S)

        ((kind, note),) = described(world, uid_of(owner))

        assert kind == "Job"
        assert note.startswith(f"PodGroup pg-job-{uid_of(owner)}: {EVEN_EMPTY}")


async def test_an_owner_of_many_single_pods_gets_one_event_that_names_the_pending_pods() -> None:
    async with living(cluster=with_jobs()) as world:
        owner = job(world)
        pods_of(world, owner, *(f"one-{number}" for number in range(5)))
        await passes(TOLD_S)

        ((_, note),) = described(world, uid_of(owner))

        assert note.startswith("Pod one-")
        assert note.endswith(": No node has room: the cluster has no nodes.")
        assert len(world.cluster.events) == 1 + 5


async def test_only_the_first_pods_of_a_large_gang_get_events() -> None:
    async with living("a") as world:
        pods = world.gang("gang", size=60)
        await passes(TOLD_FOR_S / 2)

        told = [number for number, pod in enumerate(pods) if described(world, uid_of(pod))]
        assert told == list(range(PODS_TOLD))
        assert len(world.cluster.events) == 1 + PODS_TOLD


async def test_every_podgroup_gets_an_event_before_the_many_pods_of_one() -> None:
    async with living("a") as world:
        for number in range(EVENTS_PER_ROUND + 5):
            world.gang(f"gang-{number}", size=2)
        await passes(3.5)

        kinds = [one.regarding["kind"] for one in world.cluster.events]
        assert kinds == ["PodGroup"] * (EVENTS_PER_ROUND + 5) + ["Pod"] * (EVENTS_PER_ROUND - 5)


async def test_a_pod_that_is_created_later_gets_an_event_too() -> None:
    async with living("a") as world:
        world.gang("gang", size=2, min_member=3)
        await passes(TOLD_S)
        late = world.pod("late", group="gang")
        await passes(TOLD_S)

        assert [note.partition(":")[0] for _, note in described(world, uid_of(late))] == ["PodGroup gang"]


async def test_an_event_of_a_member_that_was_surely_not_written_is_written_again() -> None:
    async with living("a") as world:
        first, _ = world.gang("gang", size=2)
        await passes(2.5)
        world.cluster.errors["record_event"] += [UnavailableError("429")] * 3
        await passes(TOLD_S)

        assert len(described(world, uid_of(first))) == 1


# Owners of several levels


JOB_SETS = "apis/jobset.x-k8s.io/v1alpha2/jobsets"
CRON_JOBS = "apis/batch/v1/cronjobs"


def owned_by(owner: RawObject, api_version: str, kind: str) -> RawObject:
    named = {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": api_version, "kind": kind, "controller": True, **named}


def job_set(world: World, *names: str, owner: RawObject | None = None) -> list[RawObject]:
    """Create a JobSet whose Jobs start in any order, and a Job and a pod of each name; return the JobSet and Jobs."""
    jobs = [{"name": name, "replicas": 1, "template": {"spec": {"parallelism": 1}}} for name in names]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "AnyOrder"}}
    above = [owned_by(owner, "batch/v1", "CronJob")] if owner is not None else []
    metadata = {"name": "set", "namespace": "q", "labels": QUEUE, "ownerReferences": above}
    parent = world.cluster.create(JOB_SETS, {"metadata": metadata, "spec": spec})
    owners = [parent]
    for name in names:
        reference = [owned_by(parent, "jobset.x-k8s.io/v1alpha2", "JobSet")]
        labels = {"jobset.sigs.k8s.io/replicatedjob-name": name}
        metadata = {"name": name, "namespace": "q", "labels": labels, "ownerReferences": reference}
        owners.append(world.cluster.create(JOBS, {"metadata": metadata, "spec": {"parallelism": 1}}))
        pods_of(world, owners[-1], name)
    return owners


def with_job_sets(*nodes: str) -> FickleCluster:
    cluster = with_jobs(*nodes)
    cluster.serve("jobset.x-k8s.io/v1alpha2", "JobSet", JOB_SETS)
    cluster.serve("batch/v1", "CronJob", CRON_JOBS)
    return cluster


async def test_every_owner_of_the_pods_of_a_gang_gets_one_event() -> None:
    async with living(cluster=with_job_sets("a")) as world:
        owners = job_set(world, "lead", "work")
        await passes(TOLD_S)

        told = [[kind for kind, _ in described(world, uid_of(owner))] for owner in owners]
        assert told == [["JobSet"], ["Job"], ["Job"]]


async def test_every_owner_above_a_pod_gets_an_event() -> None:
    async with living(cluster=with_job_sets()) as world:
        top = world.cluster.create(CRON_JOBS, {"metadata": {"name": "nightly", "namespace": "q"}, "spec": {}})
        owners = job_set(world, "work", owner=top)
        await passes(TOLD_S)

        told = [[kind for kind, _ in described(world, uid_of(owner))] for owner in (top, *owners)]
        assert told == [["CronJob"], ["JobSet"], ["Job"]]


async def test_the_owners_of_the_first_pods_of_a_gang_of_many_jobs_get_events() -> None:
    async with living(cluster=with_job_sets("a")) as world:
        _, *jobs = job_set(world, *(f"work-{number}" for number in range(PODS_TOLD + 4)))
        await passes(TOLD_FOR_S / 2)

        assert [len(described(world, uid_of(one))) for one in jobs] == [1] * PODS_TOLD + [0] * 4


# A cause that has ended


def cordon(world: World) -> None:
    world.cluster.patch(NODE, {"spec": {"unschedulable": True}})


def uncordon(world: World) -> None:
    world.cluster.patch(NODE, {"spec": {"unschedulable": None}})


async def test_a_pod_that_is_pending_for_another_cause_by_now_gets_the_new_cause() -> None:
    async with living("a") as world:
        cordon(world)
        await passes(1)
        pod = world.pod("one")
        await passes(TOLD_S)
        world.runs("busy", "a", priority_class="inference")
        uncordon(world)
        await passes(TOLD_S)

        (_, first), (_, second) = described(world, uid_of(pod))

        assert "is cordoned" in first
        assert "has too few GPUs" in second


async def test_a_cause_that_returns_is_reported_again_so_that_the_last_event_is_true() -> None:
    async with living("a") as world:
        world.runs("busy", "a", priority_class="inference")
        pod = world.pod("one")
        for _ in range(2):
            cordon(world)
            await passes(TOLD_S)
            uncordon(world)
            await passes(TOLD_S)

        told = ["cordoned" in note for _, note in described(world, uid_of(pod))]
        assert told[-4:] == [True, False, True, False]


async def test_a_cause_that_appears_and_disappears_all_the_time_makes_a_bounded_number_of_events() -> None:
    async with living("a") as world:
        world.runs("busy", "a", priority_class="inference")
        pod = world.pod("one")
        for _ in range(3 * CAUSES_TOLD):
            cordon(world)
            await passes(TOLD_S)
            uncordon(world)
            await passes(TOLD_S)

        assert len(described(world, uid_of(pod))) == CAUSES_TOLD


async def test_other_numbers_of_the_same_cause_make_no_new_event() -> None:
    async with living("a") as world:
        world.runs("busy", "a", priority_class="inference")
        pod = world.pod("one")
        await passes(TOLD_S)
        world.nodes("b")
        world.runs("busy-too", "b", priority_class="inference")
        await passes(TOLD_S)

        assert len(described(world, uid_of(pod))) == 1
