"""A cluster in virtual time: jobs come, run on nodes, end or are evicted. Subclasses decide which, when and where."""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU_MILLI, Resources
from app.model.snapshot import NodeTable
from loadtest.snapshots import GIB

TERMINATION_S = 5.0
"""For so long an evicted pod still holds its GPUs."""


@dataclass(slots=True)
class Run:
    """One attempt of a job, from its start to its end or its eviction."""

    began_at: float
    nodes: tuple[NodeName, ...]
    ended_at: float = math.inf
    is_finished: bool = False

    def hours_until(self, end: float = math.inf) -> float:
        """Return for how many hours it ran before that time."""
        return max(0.0, min(self.ended_at, end) - self.began_at) / 3600


@dataclass(eq=False, slots=True)
class Job:
    """One workload, which its owner makes again when it is evicted."""

    name: str
    queue: str
    pods: int
    gpus: int
    run_s: float
    created_at: float
    tries: int = 0
    nodes: tuple[NodeName, ...] = ()
    started_at: float | None = None
    evicted_at: float | None = None
    runs: list[Run] = field(default_factory=list)
    """All attempts so far; the job that its owner makes again has the same list."""
    _members: tuple[Pod, ...] = ()
    _group: PodGroup | None = None

    @property
    def request(self) -> Resources:
        """What all its pods ask for."""
        return self.members()[0].request * self.pods

    @property
    def size(self) -> int:
        """All its GPUs."""
        return self.pods * self.gpus

    @property
    def key(self) -> GroupKey:
        """Of its PodGroup; a pod alone is another one each time."""
        return GroupKey("bench", self.name if self.pods > 1 else f"{self.name}-{self.tries}")

    def members(self) -> tuple[Pod, ...]:
        """Return its pods."""
        if not self._members:
            self._members = self._made()
        return self._members

    def group(self) -> PodGroup:
        """Return it as the planner sees it."""
        if self._group is None:
            self._group = self._grouped()
        return self._group

    def put(self, nodes: tuple[NodeName, ...]) -> None:
        """Note where it is."""
        self.nodes, self._group = nodes, None

    def begin(self, at: float) -> None:
        """Note since when it runs."""
        self.started_at, self._group = at, None
        self.runs.append(Run(at, self.nodes))

    def end(self, at: float, *, is_finished: bool) -> None:
        """Note that it runs no longer."""
        self.runs[-1].ended_at, self.runs[-1].is_finished = at, is_finished

    def again(self, at: float) -> "Job":
        """Return what its owner makes when it is evicted; it begins from the start."""
        return replace(
            self,
            tries=self.tries + 1,
            nodes=(),
            started_at=None,
            evicted_at=at,
            created_at=self.created_at if self.pods > 1 else at,
            _members=(),
            _group=None,
        )

    def _grouped(self) -> PodGroup:
        members = self.members()
        placed = tuple(
            Placed(pod=replace(pod, node=name) if self.started_at is not None else pod, node=name)
            for pod, name in zip(members, self.nodes, strict=False)
        )
        return PodGroup(
            key=self.key,
            queue=QueueName(self.queue),
            priority=50,
            min_member=self.pods,
            created_at=self.created_at,
            pending=() if placed else members,
            placed=placed,
            started_at=self.started_at,
        )

    def _made(self) -> tuple[Pod, ...]:
        amounts = Resources(
            cpu_milli=self.gpus * 4000, memory_bytes=self.gpus * 16 * GIB, gpu_milli=self.gpus * GPU_MILLI, pods=1
        )
        names = [f"{self.name}-{self.tries}-{index}" for index in range(self.pods)]
        return tuple(
            Pod(
                uid=PodUid(name),
                namespace="bench",
                name=name,
                group=self.key,
                queue=QueueName(self.queue),
                request=amounts,
                created_at=self.created_at,
            )
            for name in names
        )


class VirtualCluster:
    """Nodes, the jobs on them and those that wait, and what will happen."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Begin without jobs."""
        self.table = NodeTable.of(nodes)
        self.free = self.table.allocatable.copy()
        """Shape [resource, node]: what no job holds, evicted pods that still end included."""
        self.jobs: dict[GroupKey, Job] = {}
        self.now = 0.0
        self.wake_at = math.inf
        """When to decide again even if nothing happens."""
        self._events: list[tuple[float, int, str, Job | None]] = []
        self.number = 0

    # For subclasses -------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Decide after something has happened."""
        raise NotImplementedError

    def woken(self) -> None:
        """Decide because `wake_at` has come."""
        raise NotImplementedError

    def pass_time(self, to: float) -> None:
        """Go on to a time at which something happens."""
        self.now = to

    def released(self) -> None:
        """Take note that evicted pods have ended."""

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing will ever happen by itself."""
        return not self._events

    def post(self, at: float, kind: str, job: Job | None = None) -> None:
        """Have something happen later."""
        self.number += 1
        heapq.heappush(self._events, (at, self.number, kind, job))

    def run_until(self, end: float = math.inf) -> None:
        """Have everything happen before that time."""
        self.changed()
        while (at := min(self.wake_at, self._events[0][0] if self._events else math.inf)) < end:
            self.pass_time(at)
            if not self._events or self._events[0][0] > at:
                self.woken()
                continue
            while self._events and self._events[0][0] <= at:
                self._happen()
            self.changed()
        if end < math.inf:
            self.pass_time(end)

    def _happen(self) -> None:
        _, _, kind, job = heapq.heappop(self._events)
        if job is None:
            self.released()
        elif kind == "come":
            self.add(job)
        elif kind == "end" and self.jobs.get(job.key) is job:
            job.end(self.now, is_finished=True)
            self.drop(job)

    # Jobs -----------------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Have a job wait."""
        self.jobs[job.key] = job

    def drop(self, job: Job) -> None:
        """Have a job hold nothing any more."""
        del self.jobs[job.key]
        for name in job.nodes:
            self.give_back(job, name)

    def give_back(self, job: Job, name: NodeName) -> None:
        """Free what one of its pods held there."""
        self.free[:, self.table.index[name]] += np.array(job.members()[0].request.amounts)

    def take(self, job: Job, nodes: tuple[NodeName, ...]) -> None:
        """Have a job hold its nodes."""
        job.put(nodes)
        for name in nodes:
            self.free[:, self.table.index[name]] -= np.array(job.members()[0].request.amounts)

    def begin(self, job: Job) -> None:
        """Have a job run on its nodes."""
        job.begin(self.now)
        self.post(self.now + job.run_s, "end", job)
