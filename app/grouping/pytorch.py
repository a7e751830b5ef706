"""The row of PyTorchJobs: a master and workers. The minimum may be elastic, and the workers may form segments."""

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.kubeflow import PYTORCH, least
from app.grouping.parts import are_too_many, constraint, divided, part
from app.grouping.reading import Block, OwnerReading
from app.model.seam import RawObject

MASTER, WORKER = "master", "worker"


def pytorch_job(case: Case) -> GroupShape:
    """Return one PodGroup of the master and of as many workers as its minimum leaves."""
    reading = OwnerReading(case.owner)
    total = reading.members(least(reading, PYTORCH))
    specs = reading.spec().block(PYTORCH)
    masters = specs.block("Master").number("replicas", otherwise=0)
    role = case.label(marks.REPLICA_TYPE)
    parts = [part(MASTER, masters)] if masters else []
    if "Worker" in specs.fields:
        workers = max(0, total - masters)
        if not workers:
            # No sub-group may need zero pods, so any pod may start first. Operators create the master first.
            return GroupShape(min_member=total, problem=reading.problem)
        size = _segment_size(reading, case)
        if size and are_too_many(reading, len(parts) + 1 + len(range(0, _workers(reading), size))):
            return GroupShape(min_member=total, problem=reading.problem)
        parts += _segments(reading, case, workers, size) if size else [part(WORKER, workers)]
        role = f"{WORKER}-{_segment(reading, case, size)}" if size and role == WORKER else role
    divisions = divided(reading, parts)
    return GroupShape(min_member=total, parts=divisions, subgroup=role if divisions else "", problem=reading.problem)


def _segment_size(reading: OwnerReading, case: Case) -> int:
    """Return the number of workers in a segment; 0 when there are no segments."""
    size = written(case, _worker(reading).block("template"), marks.SEGMENT_SIZE)
    return reading.digits(f"annotation {marks.SEGMENT_SIZE}", size, otherwise=0) if size else 0


def _segments(reading: OwnerReading, case: Case, workers: int, size: int) -> list[RawObject]:
    """Return the workers' sub-group, with one sub-group per segment. The needed workers fill the first segments."""
    replicas = _workers(reading)
    near = segment_constraint(reading, case, _worker(reading).block("template"))
    needed = min(workers, replicas)
    sizes = (max(0, min(size, needed - start)) for start in range(0, replicas, size))
    inner = [part(f"{WORKER}-{at}", many, parent=WORKER, topology=near) for at, many in enumerate(sizes)]
    return [part(WORKER, workers), *inner]


def _segment(reading: OwnerReading, case: Case, size: int) -> int:
    """Return the segment of a worker. A worker beyond the job's current size joins the last segment."""
    what = f"label {marks.REPLICA_INDEX} of pod {case.pod.name}"
    index = reading.digits(what, case.label(marks.REPLICA_INDEX), otherwise=0, minimum=0)
    return min(index, _workers(reading) - 1) // size


def _worker(reading: OwnerReading) -> Block:
    return reading.spec().block(PYTORCH, "Worker")


def _workers(reading: OwnerReading) -> int:
    return _worker(reading).number("replicas", otherwise=1, minimum=1)


def segment_constraint(reading: OwnerReading, case: Case, template: Block) -> RawObject | None:
    """Return the topology constraint of a segment; None unless a topology and a level of it are named."""
    topology = written(case, template, marks.TOPOLOGY) or case.owner.annotations.get(marks.TOPOLOGY, "")
    if not topology:
        return None
    required = written(case, template, marks.SEGMENT_REQUIRED_LEVEL)
    preferred = written(case, template, marks.SEGMENT_PREFERRED_LEVEL)
    return constraint(reading, topology=topology, required=required, preferred=preferred)


def written(case: Case, template: Block, key: str) -> str:
    """Return an annotation of the template, otherwise of the pod. The template applies to all pods."""
    return template.annotation(key) or case.origin.annotations.get(key, "")
