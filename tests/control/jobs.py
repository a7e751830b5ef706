"""Jobs whose pods are a gang, for tests in which the test itself is the Job controller."""

from collections.abc import Mapping

from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import Job
from app.simulation.objects import Ref
from tests.control.wired import FickleCluster, World, furnished

JOBS = "apis/batch/v1/jobs"
QUEUE = {"kai.scheduler/queue": "q"}


def with_jobs(*nodes: str, cluster: FickleCluster | None = None) -> FickleCluster:
    """Build a cluster in which Jobs are known, on an empty one if that is given."""
    cluster = furnished(*nodes, cluster=cluster)
    cluster.serve("batch/v1", "Job", JOBS)
    return cluster


def job(world: World, **annotations: object) -> RawObject:
    """Create a Job `job` with annotations of KAI; `batch_min_member` pods start together, or each by itself."""
    metadata = {"name": "job", "namespace": "q", "labels": QUEUE, "annotations": _kais(annotations)}
    return world.cluster.create(JOBS, {"metadata": metadata, "spec": {"parallelism": 2}})


def pods_of(world: World, owner: RawObject, *names: str, **annotations: object) -> list[RawObject]:
    """Create pods of a Job, which request one GPU each, with annotations of KAI."""
    named = {key: owner["metadata"][key] for key in ("name", "uid")}
    reference = {"apiVersion": "batch/v1", "kind": "Job", "controller": True} | named
    made = [manifests.pod(Job(name=name, queue="q", gpus=1, cpu=0)) for name in names]
    for pod in made:
        pod["metadata"]["ownerReferences"] = [reference]
        pod["metadata"]["annotations"] |= _kais(annotations)
    return [world.cluster.create(Resource.PODS, pod) for pod in made]


def suspend(world: World, owner: RawObject, suspended: object) -> None:
    """Suspend a Job, or resume it."""
    world.cluster.patch(Ref.of(JOBS, owner), {"spec": {"suspend": suspended}})


def start(world: World, *places: tuple[RawObject, str]) -> None:
    """Let pods run as if they had been bound a while ago."""
    for pod, node in places:
        world.patch(pod, spec={"nodeName": node}, status={"phase": "Running"})


def _kais(annotations: Mapping[str, object]) -> dict[str, str]:
    return {f"kai.scheduler/{key.replace('_', '-')}": str(value) for key, value in annotations.items()}
