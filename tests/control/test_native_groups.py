"""Pods that name a PodGroup of Kubernetes itself start by its policy."""

from app.model.explanation import Explanation, Subject
from app.model.names import NATIVE_API, GroupKey
from app.model.question import Fits
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import Job
from app.simulation.objects import Ref
from tests.control.test_podgrouper import equipped, owned, training
from tests.control.wired import World, furnished, living, passes

GANG = Ref(resource=Resource.NATIVE_POD_GROUPS, namespace="q", name="gang")
KEY = GroupKey("q", "gang", NATIVE_API)


def refusal(world: World) -> str:
    found = world.planning.refusals_to_tell.get(KEY)
    return found.sentence if found is not None else ""


def why(world: World, name: str, subject: Subject | None = None) -> str:
    told = world.inspect.explain("q", name, subject)
    assert isinstance(told, Explanation)
    return told.why.sentence


def kai_gang(world: World) -> list[RawObject]:
    job = Job(name="kai", queue="q", gpus=1, cpu=0, group="gang")
    world.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=2))
    return [world.cluster.create(Resource.PODS, manifests.pod(job, member=member)) for member in range(2)]


async def places(world: World, pods: list[RawObject], *nodes: str) -> int:
    answers = [await world.filter(pod, *nodes) for pod in pods]
    return sum(isinstance(answer, Fits) for answer in answers)


async def test_a_gang_gets_all_its_places_or_none() -> None:
    async with living("a", "b", "c") as world:
        big = world.native_gang("gang", size=4, min_count=4)
        await passes(1)
        assert await places(world, big, "a", "b", "c") == 0
        assert "4 pods" in why(world, "gang-0")

        world.nodes("d")
        await passes(1)
        assert [world.promised(pod) is not None for pod in big] == [True] * 4


async def test_a_minimum_is_followed_as_it_changes() -> None:
    async with living("a", "b") as world:
        pods = world.native_gang("gang", size=4, min_count=4)
        await passes(1)
        assert [world.promised(pod) for pod in pods] == [None] * 4

        world.cluster.patch(GANG, {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        await passes(1)
        assert sum(world.promised(pod) is not None for pod in pods) == 2

    async with living("a", "b") as world:
        pods = world.native_gang("gang", size=2, min_count=3)
        await passes(1)
        assert why(world, "gang", Subject.POD_GROUP) == (
            "The gang is incomplete: 2 of 3 pods exist; the controller of these pods has to create the rest."
        )
        world.cluster.patch(GANG, {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        await passes(1)
        assert None not in [world.promised(pod) for pod in pods]


async def test_of_a_basic_group_as_many_start_as_fit() -> None:
    async with living("a", "b") as world:
        pods = world.native_gang("gang", size=4, min_count=None)
        await passes(1)
        assert sum(world.promised(pod) is not None for pod in pods) == 2


async def test_pods_wait_until_the_group_that_they_name_exists() -> None:
    async with living("a", "b") as world:
        job = Job(name="gang", queue="q", gpus=1, cpu=0, native_group="gang")
        pods = [world.cluster.create(Resource.PODS, manifests.pod(job, member=member)) for member in range(2)]
        await passes(1)
        assert await places(world, pods, "a", "b") == 0
        assert why(world, "gang-1") == (
            "PodGroup q/gang (scheduling.k8s.io) does not exist, or the API server does not serve"
            " scheduling.k8s.io/v1beta1; create it, or name another one."
        )

        world.cluster.create(Resource.NATIVE_POD_GROUPS, manifests.native_pod_group(job, min_count=2))
        await passes(1)
        assert None not in [world.promised(pod) for pod in pods]


async def test_a_kai_group_of_the_same_name_is_another_group() -> None:
    async with living("a", "b", "c") as world:
        native = world.native_gang("gang", size=2, min_count=3)
        kai = kai_gang(world)
        await passes(1)

        assert [world.promised(pod) for pod in native] == [None, None]
        assert None not in [world.promised(pod) for pod in kai]
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"))
        world.cluster.patch(GANG, {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        await passes(1)
        assert None not in [world.promised(pod) for pod in native]


async def test_the_queue_of_a_native_group_comes_from_the_owner_of_its_pods() -> None:
    cluster = equipped("a", "b")
    async with living(cluster=cluster) as world:
        by = training(cluster, workers=5)
        job = Job(name="gang", queue="q", native_group="gang")
        cluster.create(Resource.NATIVE_POD_GROUPS, manifests.native_pod_group(job, min_count=2))
        pods = [owned(f"p{number}", by, native_group="gang") for number in range(2)]
        pods = [cluster.create(Resource.PODS, raw) for raw in pods]
        await passes(2)

        assert None not in [world.promised(pod) for pod in pods]
        terms = world.cache.groups.terms.of(KEY)
        assert terms is not None
        assert terms.queue == "q"
        assert [group["metadata"]["name"] for group in cluster.objects(Resource.POD_GROUPS)] == []


def conditions(world: World) -> list[dict[str, str]]:
    (group,) = world.cluster.objects(Resource.NATIVE_POD_GROUPS)
    found: list[dict[str, str]] = group.get("status", {}).get("conditions", [])
    return [{key: one[key] for key in ("status", "reason", "message")} for one in found]


async def test_the_status_tells_why_a_group_waits_and_for_good_that_it_has_started() -> None:
    async with living("a") as world:
        pods = world.native_gang("gang", size=2, min_count=2)
        await passes(3)
        assert conditions(world) == [{"status": "False", "reason": "Unschedulable", "message": why(world, "gang-0")}]

        world.nodes("b")
        await passes(1)
        nodes = [await world.choose(pod, "a", "b") for pod in pods]
        bindings = [world.binding(pod, node) for pod, node in zip(pods, nodes, strict=True)]
        assert [await binding for binding in bindings] == ["", ""]
        await passes(3)
        assert conditions(world) == [{"status": "True", "reason": "Scheduled", "message": ""}]

        world.delete(pods[0])
        world.cluster.patch(GANG, {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
        await passes(3)
        assert [one["status"] for one in conditions(world)] == ["True"]


async def test_where_kube_scheduler_schedules_groups_it_alone_writes_their_status() -> None:
    async with living("a", kube_scheduler_groups=True) as world:
        world.native_gang("gang", size=2, min_count=2)
        await passes(3)
        assert why(world, "gang-0")
        assert conditions(world) == []


async def test_a_gang_stays_within_the_domain_of_its_topology_key() -> None:
    cluster = furnished()
    for rack, names in {"one": ("a", "b"), "two": ("c", "d", "e")}.items():
        for name in names:
            cluster.create(Resource.NODES, manifests.node(name, gpus=1, cpu=64, labels={"rack": rack}))
    async with living(cluster=cluster) as world:
        job = Job(name="gang", queue="q", gpus=1, cpu=0, native_group="gang")
        group = manifests.native_pod_group(job, min_count=3)
        group["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
        world.cluster.create(Resource.NATIVE_POD_GROUPS, group)
        pods = [world.cluster.create(Resource.PODS, manifests.pod(job, member=member)) for member in range(3)]
        await passes(1)

        assert sorted(str(world.promised(pod)) for pod in pods) == ["c", "d", "e"]


async def test_a_group_that_cannot_be_used_says_why() -> None:
    async with living("a", "b") as world:
        job = Job(name="gang", queue="q", gpus=1, cpu=0, native_group="gang")
        group = manifests.native_pod_group(job, min_count=1)
        group["spec"]["parentCompositePodGroupName"] = "parent"
        world.cluster.create(Resource.NATIVE_POD_GROUPS, group)
        pod = world.cluster.create(Resource.PODS, manifests.pod(job))
        await passes(1)

        assert world.promised(pod) is None
        assert "CompositePodGroup 'parent'" in why(world, "gang-0")
        assert why(world, "gang", Subject.POD_GROUP) == why(world, "gang-0")
