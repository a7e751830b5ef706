"""No object that a tenant or an agent may write costs more than a small one: counted, field by field of its schema.

What is counted is lines of ours that are executed from the event on, until nothing more comes of the object. The bench
says how long the largest objects take.
"""

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
from app.control.admission import Admission
from app.grouping import NO_DEFAULTS, Chain, group
from app.grouping.table import TABLE
from app.model.owner import Kind, Owner
from app.model.seam import Depth, Resource
from app.settings import Settings
from app.simulation.cluster import Ref
from app.telemetry import Review
from app.web.admission import Reviews
from tests.control.wired import World, living, passes
from tests.grouping import objects
from tests.hostile import ANY, NUMBER, TEXT, TEXTS, Hostile, Raw, Shape, hostile, merged, of_crd, of_model, together

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
        admission = Admission(world.cache, world.entrance, Settings(), unready=world.feed.unready)
        reviews = Reviews(admission, world.metrics)
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
