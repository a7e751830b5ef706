"""The rows of Kubeflow's training jobs: all replicas of a job start together, or the number that the job states."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.reading import MOST_ITEMS, Block, OwnerReading

LAUNCHER, WORKER = "Launcher", "Worker"
PYTORCH = "pytorchReplicaSpecs"


def replicas(case: Case, *, field: str, needed: tuple[str, ...] = ()) -> GroupShape:
    """Return one PodGroup of `runPolicy.schedulingPolicy.minAvailable` pods, otherwise of all replicas."""
    reading = OwnerReading(case.owner)
    return GroupShape(min_member=reading.members(least(reading, field, needed)), problem=reading.problem)


tf_job: Callable[[Case], GroupShape] = partial(replicas, field="tfReplicaSpecs")
xgboost_job: Callable[[Case], GroupShape] = partial(replicas, field="xgbReplicaSpecs", needed=("Master", WORKER))
jax_job: Callable[[Case], GroupShape] = partial(replicas, field="jaxReplicaSpecs", needed=(WORKER,))


def mpi_job(case: Case) -> GroupShape:
    """Return one PodGroup. It excludes the launcher while the launcher is created only after the workers are ready."""
    reading = OwnerReading(case.owner)
    number = least(reading, "mpiReplicaSpecs", (LAUNCHER, WORKER))
    spec = reading.spec()
    if spec.text("launcherCreationPolicy") == "WaitForWorkersReady" and not _has_launcher(case):
        number -= spec.block("mpiReplicaSpecs", LAUNCHER).number("replicas", otherwise=0)
    return GroupShape(min_member=reading.members(number), problem=reading.problem)


def _has_launcher(case: Case) -> bool:
    origins = (pod.origin for pod in case.chain.siblings() if not pod.deleting)
    return any(origin is not None and origin.labels.get(marks.JOB_ROLE) == "launcher" for origin in origins)


def least(reading: OwnerReading, field: str, needed: Iterable[str] = ()) -> int:
    """Return how many replicas must start together."""
    spec = reading.spec()
    total = _total(reading, spec.block(field), needed)
    elastic = spec.block("elasticPolicy").number("minReplicas", otherwise=total) if field == PYTORCH else total
    return spec.block("runPolicy", "schedulingPolicy").number("minAvailable", otherwise=elastic)


def _total(reading: OwnerReading, specs: Block, needed: Iterable[str]) -> int:
    if not specs.fields:
        reading.doubt(f"{specs.where} names no role; write one with its replicas")
    for role in needed:
        if role not in specs.fields:
            reading.doubt(f"{specs.where} has no {role}; write one")
    if len(specs.fields) > MOST_ITEMS:
        reading.doubt(f"{specs.where} has {len(specs.fields)} roles; write at most {MOST_ITEMS}")
    return sum(_replicas(specs.block(role)) for role in islice(specs.fields, MOST_ITEMS))


def _replicas(role: Block) -> int:
    if role.fields.get("replicas") is None:
        role.reading.doubt(f"{role.where} has no replicas; write how many, 1 or more")
    return role.number("replicas", otherwise=1, minimum=1)
