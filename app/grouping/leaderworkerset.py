"""The row of LeaderWorkerSets: one PodGroup per replica. It has a leader and workers, which may form segments."""

from dataclasses import dataclass

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.parts import are_too_many, divided, part
from app.grouping.pytorch import segment_constraint
from app.grouping.reading import Block, OwnerReading
from app.grouping.terms import group_name
from app.model.seam import RawObject
from app.model.sentence import counted

LEADER, WORKERS = "leader", "workers"
FIRST_SEGMENT = "segment-0"
STARTUP_POLICIES = ("LeaderCreated", "LeaderReady")


@dataclass(frozen=True, slots=True)
class _Segments:
    """How the pods of one replica are divided into segments."""

    size: int
    """The pods of the replica."""
    length: int
    """The pods of one segment."""
    excludes_leader: bool

    @property
    def shifts(self) -> bool:
        """Whether the leader is an addition to full segments of workers. The workers are then counted without it."""
        return (self.size - 1) % self.length == 0

    def of(self, index: int) -> int:
        """Return the segment of the worker with this index, which is 1 or more."""
        return (index - 1 if self.shifts else index) // self.length

    @property
    def first(self) -> int:
        """The number of workers in the first segment."""
        return self.length if self.shifts else self.length - 1

    @property
    def count(self) -> int:
        """The number of segments."""
        return 1 + len(range(self.first, self.size - 1, self.length))

    def workers(self) -> list[int]:
        """Return the number of workers in each segment."""
        others, first = self.size - 1, self.first
        return [first, *(min(self.length, others - start) for start in range(first, others, self.length))]


def leader_worker_set(case: Case) -> GroupShape:
    """Return the PodGroup of the pod's replica."""
    # 1. its size and segments  2. the part that exists, if the leader must be ready first
    reading, ref = OwnerReading(case.owner), case.owner.ref
    template = reading.spec().block("leaderWorkerTemplate")
    size = _size(reading, case, template)
    segments = _segmented(reading, case, template, size)
    parts = _parts(reading, case, template, size, segments)
    if _waits_for_leader(reading, case):
        size, parts = 1, _of_leader(parts)
    divisions = divided(reading, parts)
    group = case.label(marks.LWS_GROUP)
    return GroupShape(
        name=group_name(ref.name, ref.uid, f"-group-{group}") if group else "",
        min_member=size,
        parts=divisions,
        subgroup=_subgroup(reading, case, segments) if divisions else "",
        problem=reading.problem,
    )


def _size(reading: OwnerReading, case: Case, template: Block) -> int:
    size = template.number("size", otherwise=1, minimum=1)
    # While a new size is rolled out, replicas with the old size are complete.
    own = case.origin.annotations.get(marks.LWS_SIZE)
    if not own:
        return size
    return reading.digits(f"annotation {marks.LWS_SIZE} of pod {case.pod.name}", own, otherwise=size)


def _policy(reading: OwnerReading) -> str:
    policy = reading.spec().text("startupPolicy") or STARTUP_POLICIES[0]
    if policy not in STARTUP_POLICIES:
        reading.doubt(f"spec.startupPolicy is not known; write {' or '.join(STARTUP_POLICIES)}")
    return policy


def _waits_for_leader(reading: OwnerReading, case: Case) -> bool:
    """Return whether only the leader exists. Its workers are created when it is ready, so it must start without them.

    With an exclusive topology, the workers are created when the leader has a node, whatever the policy.
    """
    if _policy(reading) != "LeaderReady" and not case.owner.annotations.get(marks.LWS_EXCLUSIVE):
        return False
    group = case.label(marks.LWS_GROUP)
    origins = (pod.origin for pod in case.chain.siblings() if not pod.deleting)
    labels = (origin.labels for origin in origins if origin is not None)
    return not any(one.get(marks.LWS_WORKER, "0") != "0" and one.get(marks.LWS_GROUP, "") == group for one in labels)


def _segmented(reading: OwnerReading, case: Case, template: Block, size: int) -> _Segments | None:
    policy = template.block("subGroupPolicy")
    length = policy.number("subGroupSize", otherwise=0)
    said = case.owner.annotations.get(marks.SEGMENT_SIZE) or template.block("workerTemplate").annotation(
        marks.SEGMENT_SIZE
    )
    if not length and said:
        length = reading.digits(f"annotation {marks.SEGMENT_SIZE}", said, otherwise=0)
    if not length or size == 1:
        return None
    if not 1 < length <= size:
        reading.doubt(
            f"a segment of it has {counted(length, 'pod')} and it has {size}; write a segment size from 2 to {size}"
        )
        return None
    found = _Segments(size, length, excludes_leader=policy.text("subGroupPolicyType") == "LeaderExcluded")
    if found.excludes_leader and not found.shifts:
        reading.doubt(
            f"its {size - 1} workers do not fill segments of {length}; write a segment size that divides them"
        )
        return None
    return found


def _parts(
    reading: OwnerReading, case: Case, template: Block, size: int, segments: _Segments | None
) -> list[RawObject]:
    if segments is None:
        return [part(LEADER, 1), *([part(WORKERS, size - 1)] if size > 1 else [])]
    if are_too_many(reading, segments.count + (1 if segments.excludes_leader else 2)):
        return []
    near = segment_constraint(reading, case, template.block("workerTemplate"))
    counts = segments.workers()
    inner = [part(f"segment-{at}", many, topology=near) for at, many in enumerate(counts)]
    if segments.excludes_leader:
        return [part(LEADER, 1), *inner]
    first = part(FIRST_SEGMENT, 1 + counts[0], topology=near)
    return [first, part(LEADER, 1, parent=FIRST_SEGMENT), part(WORKERS, counts[0], parent=FIRST_SEGMENT), *inner[1:]]


def _of_leader(parts: list[RawObject]) -> list[RawObject]:
    """Return the sub-group of the leader, and its parent."""
    parent = next((one.get("parent") for one in parts if one["name"] == LEADER), None)
    return [one for one in parts if one["name"] in (LEADER, parent)]


def _subgroup(reading: OwnerReading, case: Case, segments: _Segments | None) -> str:
    what = f"label {marks.LWS_WORKER} of pod {case.pod.name}"
    index = reading.digits(what, case.label(marks.LWS_WORKER) or "0", otherwise=0, minimum=0)
    if index == 0:
        return LEADER
    if segments is None:
        return WORKERS
    at = min(segments.of(index), segments.count - 1)
    return WORKERS if at == 0 and not segments.excludes_leader else f"segment-{at}"
