"""No object that a tenant or an agent may write costs more than a small one: counted, field by field of its schema.

What is counted is lines of ours that are executed from the event on, until nothing more comes of the object. The bench
says how long the largest objects take.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import orjson
import pytest

import app
from app.cluster import decode
from app.cluster.decode.excess import excess
from app.control.cycle import planning
from app.control.webhooks.admission import Admission
from app.grouping import NO_DEFAULTS, Chain, group
from app.grouping.table import TABLE
from app.model.owner import Kind, Owner
from app.model.seam import Depth, Resource
from app.scheduling.explain import unsatisfiable
from app.scheduling.placement import affinity
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.telemetry import Review
from app.web.admission import AdmissionBoundary
from tests.control.wired import World, living, passes
from tests.grouping import objects
from tests.hostile import ANY, NUMBER, TEXT, TEXTS, Hostile, Raw, Shape, hostile, merged, of_crd, of_model, together

pytestmark = pytest.mark.slow

HOME = str(Path(app.__file__).parent)
NOT_OURS = str(Path(HOME) / "simulation")
CRDS = Path(__file__).parents[2] / "deploy" / "leeboard" / "files" / "crds"

SIZE = 48_000
"""Bytes of one field: what costs a line for each item or character exceeds every bound below."""

MOST_OF_AN_OWNER = 80_000

TOGETHER = 12
"""Fields that are tried in one object, where none of them hides the others."""


@dataclass(slots=True)
class Lines:
    """Counts while it is entered."""

    count: int = 0

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, _: str, __: Any) -> Any:
        path = frame.f_code.co_filename
        return self._line if path.startswith(HOME) and not path.startswith(NOT_OURS) else None

    def _line(self, _: FrameType, event: str, __: Any) -> Any:
        self.count += event == "line"
        return self._line


@dataclass(frozen=True, slots=True)
class Tried:
    """A kind of objects: what is written, and how many lines one of them may cost with all that follows."""

    resource: Resource
    base: Raw
    shape: Callable[[], Shape]
    most: int


def crd(plural: str) -> Callable[[], Shape]:
    return lambda: of_crd((CRDS / f"{plural}.yaml").read_text())


def named(name: str, **more: Any) -> Raw:
    return {"metadata": {"name": name} | ({"namespace": "q"} if more.pop("namespaced", False) else {})} | more


CONTAINER = {"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}

KINDS = {
    "Pod": Tried(
        Resource.PODS,
        merged(
            named("p", namespaced=True, spec={"schedulerName": "kai-scheduler", "containers": [CONTAINER]}),
            {"metadata": {"labels": {"kai.scheduler/queue": "q"}}, "status": {}},
        ),
        lambda: of_model("V1Pod"),
        30_000,
    ),
    "PodGroup": Tried(
        Resource.POD_GROUPS,
        named("g", namespaced=True, spec={"minMember": 1, "queue": "q"}),
        crd("podgroups"),
        100_000,
    ),
    "Queue": Tried(Resource.QUEUES, named("r", spec={"resources": {"gpu": {"quota": 1}}}), crd("queues"), 30_000),
    "Topology": Tried(
        Resource.TOPOLOGIES, named("t", spec={"levels": [{"nodeLabel": "zone"}]}), crd("topologies"), 30_000
    ),
    "GpuNode": Tried(
        Resource.GPU_NODES,
        named("a", status={"kubelet": {"answers": True}, "devices": [{"uuid": "u", "memoryMiB": {"total": 80_000}}]}),
        crd("gpunodes"),
        100_000,
    ),
}

REWRITTEN = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
"""What the API server gives an object, or judges so strictly that nobody can write more than a few bytes there."""


def objects_of(kind: Tried) -> Iterator[Hostile]:
    """Yield the hostile objects of a kind; the fields that make all others of a pod unread, each in one of its own."""
    fields = [
        one for one in hostile(kind.shape(), kind.base, SIZE) if one.paths[0][:2] != ("spec", "ephemeralContainers")
    ]
    alone = [one for one in fields if kind.resource is Resource.PODS and excess(one.raw)]
    yield from alone
    yield from together((one for one in fields if one not in alone), TOGETHER)


async def lines_of(world: World, kind: Tried, one: Hostile) -> int:
    """Create and delete the object; return how many lines it has cost."""
    own = kind.base["metadata"]
    metadata = {key: value for key, value in one.raw["metadata"].items() if key not in REWRITTEN} | own
    with Lines() as lines:
        made = world.cluster.create(kind.resource, one.raw | {"metadata": metadata})
        await passes(2)
        world.cluster.delete(Ref.of(kind.resource, made))
        await passes(1)
    return lines.count


@pytest.mark.parametrize("name", KINDS)
async def test_no_field_of_an_object_costs_more_however_much_is_in_it(name: str) -> None:
    kind, costs = KINDS[name], dict[str, int]()
    async with living("a", "b") as world:
        world.pod("waits", group="g")
        world.runs("runs", "b", group="g")
        for one in objects_of(kind):
            costs[repr(one)] = await lines_of(world, kind, one)

    assert {path: count for path, count in costs.items() if count > kind.most} == {}


async def test_a_thousand_levels_of_queues_keep_nobody_waiting() -> None:
    async with living("a", "b") as world:
        for level in range(1_000):
            world.queue(f"level-{level}", parent=f"level-{level - 1}" if level else None, gpus=1)
        await passes(2)
        deepest = world.pod("deepest", queue="level-999")
        with Lines() as lines:
            pod = world.pod("other")
            await passes(2)

        assert world.promised(pod) is not None
        assert world.promised(deepest) is None
        # A status for each queue, and a few sums on the way to the top: not the square of the number of levels.
        assert lines.count < 500_000


REVIEWED = {"Pod": "", "PodGroup": "scheduling.run.ai", "Queue": "scheduling.run.ai", "Topology": "kai.scheduler"}
"""The kinds that the API server asks about, with their groups."""


def review(kind: str, raw: Raw, old: Raw | None = None) -> bytes:
    request = {
        "uid": "r1",
        "kind": {"group": REVIEWED[kind], "version": "v1", "kind": kind},
        "namespace": "q",
        "name": "it",
        "operation": "CREATE" if old is None else "UPDATE",
        "object": raw,
        "oldObject": old,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


@pytest.mark.parametrize("name", REVIEWED)
async def test_no_field_costs_admission_more_however_much_is_in_it(name: str) -> None:
    kind, costs = KINDS[name], dict[str, int]()
    async with living("a", "b") as world:
        admission = Admission(world.cache, world.fast_path, Settings(), freshness=world.freshness)
        reviews = AdmissionBoundary(admission, world.metrics)
        for one in objects_of(kind):
            with Lines() as lines:
                reviews.answer(Review.MUTATE, review(name, one.raw))
                reviews.answer(Review.VALIDATE, review(name, one.raw, kind.base))
            costs[repr(one)] = lines.count
        assert world.count("admission_reviews", verb="mutate", outcome="error") == 0

    assert {path: count for path, count in costs.items() if count > kind.most} == {}


def several(**fields: Shape) -> Shape:
    return Shape("list", item=Shape("object", fields))


REPLICAS = Shape("map", item=Shape("object", {"replicas": NUMBER, "template": ANY}))
GROUP = several(
    name=TEXT, replicas=NUMBER, podReferences=several(name=TEXT, namespace=TEXT), podGroupNames=Shape("list", item=TEXT)
)
OWNER = Shape(
    "object",
    {
        "metadata": Shape("object", {"labels": TEXTS, "annotations": TEXTS, "ownerReferences": ANY}),
        "status": ANY,
        "spec": Shape(
            "object",
            {
                **{f"{kind}ReplicaSpecs": REPLICAS for kind in ("tf", "xgb", "jax", "mpi", "pytorch")},
                **dict.fromkeys(
                    ("replicatedJobs", "workerGroupSpecs", "podgroups", "topologyConstraintGroupConfigs"), GROUP
                ),
                **dict.fromkeys(("parallelism", "replicas", "minMember"), NUMBER),
                "anything": ANY,
            },
        ),
    },
)
"""What rows of the grouping table read, in one object, and what they do not know."""


READ = [Kind(api_group, "v1", name) for (api_group, name), row in TABLE.items() if row.depth is Depth.WHOLE]


def test_no_field_of_an_owner_costs_more_however_much_is_in_it() -> None:
    costs = dict[tuple[str, Kind], int]()
    for one in together(hostile(OWNER, {"metadata": {"name": "o", "uid": "u"}}, SIZE), TOGETHER // 4):
        for kind in READ:
            with Lines() as lines:
                owner = decode.owner(one.raw, kind=kind)
                group(objects.pod(by=owner), Chain(owners=(owner,)), NO_DEFAULTS)
            costs[repr(one), kind] = lines.count

    assert {path: count for path, count in costs.items() if count > MOST_OF_AN_OWNER} == {}


def test_pods_of_an_owner_that_is_too_large_to_be_read_wait_and_say_so() -> None:
    spec = {"replicatedJobs": [{"name": f"j{number}", "replicas": 1, "template": {}} for number in range(9_000)]}
    raw = {"metadata": {"name": "o", "uid": "u", "namespace": "default"}, "spec": spec}

    owner = decode.owner(raw, kind=Kind("jobset.x-k8s.io", "v1alpha2", "JobSet"))
    found = group(objects.pod(by=owner), Chain(owners=(owner,)), NO_DEFAULTS)

    assert found is not None
    assert found.problem.startswith("JobSet o: it has more fields, labels or annotations than are read of an owner")


LWS = objects.owner(
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
    spec={"leaderWorkerTemplate": {"size": 100_000, "subGroupPolicy": {"subGroupSize": 2}}},
)
PYTORCH = objects.owner(
    "kubeflow.org/v1 PyTorchJob",
    annotations={"kai.scheduler/topology": "t"},
    spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 100_000}}},
)
EXCLUSIVE = objects.jobset(
    *({"name": f"job-{number}", "replicas": 1, "template": {"spec": {"parallelism": 2}}} for number in range(256)),
    annotations={"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"},
    order="AnyOrder",
)


@pytest.mark.parametrize(
    ("owner", "annotations"),
    [(LWS, {}), (PYTORCH, {"kai.scheduler/segment-size": "1"}), (EXCLUSIVE, {})],
    ids=["segments of a LeaderWorkerSet", "segments of a PyTorchJob", "templates of a JobSet beside its pods"],
)
def test_no_number_in_an_owner_costs_more_however_large_it_is(owner: Owner, annotations: dict[str, str]) -> None:
    pods = [objects.pod(f"p-{number}", by=owner, annotations=annotations) for number in range(300)]
    with Lines() as lines:
        found = group(pods[0], objects.chain(owner, siblings=pods), NO_DEFAULTS)

    assert found is not None
    assert lines.count < 25_000


# Decisions ------------------------------------------------------------------------------------------------------------

NODES = 500
LEVELS = [f"level-{number}" for number in range(16)]


class Plans:
    """Notes what is planned, and what is found out of PodGroups, inside the event loop and beside it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on_the_loop = list[str]()
        self.beside = list[str]()
        for module, name in ((planning, "plan_some"), (unsatisfiable, "_judge"), (affinity, "_pairs")):
            patch.setattr(module, name, self._noting(name, getattr(module, name)))

    def _noting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **more: Any) -> Any:
            # Tasks run inside the loop; what a thread does is called without one.
            (self.on_the_loop if asyncio.current_task() else self.beside).append(name)
            return real(*args, **more)

        return noted


def labelled_nodes(world: World, number: int = NODES) -> None:
    for at in range(number):
        labels = {"rack": f"r{at // 2}", **dict.fromkeys(LEVELS, f"v{at}")}
        world.cluster.create(Resource.NODES, manifests.node(f"n{at}", gpus=8, cpu=64, labels=labels))
    world.cluster.create(Resource.TOPOLOGIES, manifests.topology("t", "rack"))


def with_requirements(world: World, name: str, at: int) -> Raw:
    terms = [
        {
            "matchExpressions": [
                {"key": LEVELS[r % 16], "operator": "NotIn", "values": [f"x{at}-{r}-{v}" for v in range(16)]}
            ]
        }
        for r in range(256)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    raw: Raw = merged(world.asked(name, gpus=9), {"spec": {"affinity": {"nodeAffinity": required}}})
    return raw


def with_terms(world: World, name: str, at: int) -> Raw:
    labels = {f"l{number}": f"v{at}" for number in range(12)}
    terms = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {f"l{number}": f"v{at}" for number in range(first, first + 8)}},
        }
        for first in range(4)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    raw: Raw = merged(
        world.asked(name), {"metadata": {"labels": labels}, "spec": {"affinity": {"podAntiAffinity": required}}}
    )
    return raw


def of_pods_with_requirements(world: World, at: int) -> None:
    world.cluster.create(Resource.PODS, with_requirements(world, f"p-{at}", at))


def of_a_rack(world: World, at: int) -> None:
    for member, gpus in enumerate((5, 5, 5, 1)):
        world.cluster.create(Resource.PODS, world.asked(f"p-{at}-{member}", group=f"g-{at}", gpus=gpus))
    job = manifests.Job(name=f"g-{at}", queue="q", gpus=1, cpu=0, group=f"g-{at}")
    constraint = {"topologyConstraint": {"topology": "t", "requiredTopologyLevel": "rack"}}
    world.cluster.create(Resource.POD_GROUPS, merged(manifests.pod_group(job, min_member=4), {"spec": constraint}))


def of_eight_shapes(world: World, at: int) -> None:
    for member in range(8):
        pod = world.asked(f"p-{at}-{member}", group=f"g-{at}", gpus=9)
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{at * 8 + member + 1}m"
        world.cluster.create(Resource.PODS, pod)
    job = manifests.Job(name=f"g-{at}", queue="q", gpus=1, cpu=0, group=f"g-{at}")
    world.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=8))


@pytest.mark.parametrize(
    ("made", "number"),
    # Of those with a rack fewer suffice: the plan of more takes long beside the loop as well.
    [(of_pods_with_requirements, 64), (of_eight_shapes, 64), (of_a_rack, 16)],
    ids=["requirements", "shapes", "racks"],
)
async def test_many_heavy_groups_are_planned_beside_the_loop_when_they_come_and_at_each_relief(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[World, int], None], number: int
) -> None:
    async with living(actions="") as world:
        labelled_nodes(world)
        ends = world.runs("ends", "n0", gpus=1)
        await passes(2)
        plans = Plans(monkeypatch)
        for at in range(number):
            made(world, at)
        await passes(5)

        # Those that came first may have been few enough.
        assert plans.on_the_loop.count("_judge") <= 8
        assert plans.beside.count("_judge") >= number - 8

        plans.on_the_loop.clear()
        world.delete(ends)
        await passes(5)

        assert "plan_some" not in plans.on_the_loop
        assert plans.on_the_loop.count("_judge") == 0

        # Whether those that wait can run at all is found out again when a node has changed, which is no relief.
        world.cluster.patch(Ref(resource=Resource.NODES, name="n5"), {"spec": {"unschedulable": True}})
        world.pod("one", gpus=9)
        world.pod("other", gpus=9)
        await passes(5)

        assert plans.on_the_loop.count("_judge") <= 8


async def test_pods_with_terms_are_compared_with_many_others_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living(*"abcdefghij", gpus=100, actions="") as world:
        for at in range(NODES):
            raw = with_terms(world, f"r{at}", at)
            world.cluster.create(
                Resource.PODS,
                merged(raw, {"spec": {"nodeName": "abcdefghij"[at % 10]}, "status": {"phase": "Running"}}),
            )
        await passes(3)
        plans = Plans(monkeypatch)
        asked = with_terms(world, "asked", 1_000_000)
        admission = Admission(world.cache, world.fast_path, Settings(), freshness=world.freshness)
        AdmissionBoundary(admission, world.metrics).answer(Review.MUTATE, review("Pod", asked))
        pods = [world.cluster.create(Resource.PODS, with_terms(world, f"p{at}", at + 10_000)) for at in range(8)]
        await passes(5)

        assert "_pairs" not in plans.on_the_loop
        assert all(map(world.promised, pods))


async def test_admission_divides_the_nodes_by_no_deep_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living(actions="") as world:
        labelled_nodes(world, 1_000)
        world.cluster.create(Resource.TOPOLOGIES, manifests.topology("deep", *LEVELS))
        job = manifests.Job(name="g", queue="q", gpus=1, cpu=0, group="g")
        constraint = {"topologyConstraint": {"topology": "deep", "preferredTopologyLevel": LEVELS[-1]}}
        world.cluster.create(Resource.POD_GROUPS, merged(manifests.pod_group(job, min_member=1), {"spec": constraint}))
        world.runs("runs", "n0", group="g")
        await passes(3)
        plans = Plans(monkeypatch)
        admission = Admission(world.cache, world.fast_path, Settings(), freshness=world.freshness)
        AdmissionBoundary(admission, world.metrics).answer(Review.MUTATE, review("Pod", world.asked("more", group="g")))

        assert plans.on_the_loop == []
