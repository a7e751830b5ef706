"""A cluster in virtual time that the planner plans, asked as the service asks it.

At once, without victims, when something changed: for the new PodGroups, or for all that wait when room became free.
Soon after with victims, and again when time alone may give another plan.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from app.cluster.state.pod_arrivals import PodArrivals
from app.model.decision import Plan
from app.model.memory import NO_MEMORY
from app.model.names import GroupKey, NodeName, QueueName
from app.model.node import Node
from app.model.podgroup import PodGroup
from app.model.queue import Queue
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot, Usage
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.policy import Policy
from loadtest.snapshots import DEVICE_MIB
from loadtest.virtual_time import TERMINATION_S, Job, VirtualCluster

SEARCH_AFTER_S, SEARCH_AGAIN_S = 0.3, 10.0
GIVEN_UP_AFTER_S = 3600.0
"""When nothing runs and nothing has started for so long, nothing ever will."""


class PlannedCluster(VirtualCluster):
    """What is evicted is made again by its owner and begins from the start."""

    def __init__(self, nodes: Iterable[Node], queues: Iterable[Queue], policy: Policy, *, rest_s: float = 0.0) -> None:
        """Begin without jobs; after a search there is none for `rest_s`, as the service rests after its own."""
        super().__init__(nodes)
        self.policy, self.rest_s = policy, rest_s
        self.queues = {queue.name: queue for queue in queues}
        self.usage: dict[QueueName, Usage] = {}
        self.leaving: list[tuple[float, Job, NodeName]] = []
        self.awaited: dict[Job, float] = {}
        self.arrivals = PodArrivals()
        self.memory = NO_MEMORY
        self.searched_at = self._last_change_at = -math.inf
        self._new: list[GroupKey] = []
        self._is_freed = True
        self._kept: tuple[tuple[NodeName, ...], GroupKey | None] = (), None

    # Jobs -----------------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Have a job wait for the next plan."""
        super().add(job)
        self._new.append(job.key)
        self._charge(job, requested=job.request)

    def drop(self, job: Job) -> None:
        """Free what a job holds, also of its queue's share."""
        self._is_freed = True
        self._charge(job, requested=NOTHING - job.request, allocated=NOTHING - job.request if job.nodes else NOTHING)
        super().drop(job)

    def take(self, job: Job, nodes: tuple[NodeName, ...]) -> None:
        """Have a job hold its nodes, and a part of its queue's share."""
        super().take(job, nodes)
        self._charge(job, allocated=job.request)

    def begin(self, job: Job) -> None:
        """Have a job run, and learn what its pods request."""
        super().begin(job)
        for pod in job.members():
            self.arrivals.note_start(pod, pod.queue, DEVICE_MIB)

    def evict(self, job: Job) -> None:
        """Have a job leave, and its owner make it again."""
        nodes = job.nodes
        self.awaited.pop(job, None)
        self.drop(job)
        if job.started_at is not None:
            job.end(self.now, is_finished=False)
            self.leaving += [(self.now + TERMINATION_S, job, name) for name in nodes]
            for name in nodes:
                self.free[:, self.table.index[name]] -= np.array(job.members()[0].request.amounts)
        self.add(job.again(self.now))

    def released(self) -> None:
        """Free what has been left, and start what awaits it."""
        self._is_freed = True
        for _, job, name in (one for one in self.leaving if one[0] <= self.now):
            self.give_back(job, name)
        self.leaving = [one for one in self.leaving if one[0] > self.now]
        for job in [job for job, until in self.awaited.items() if until <= self.now]:
            del self.awaited[job]
            self.begin(job)

    def _charge(self, job: Job, *, requested: Resources = NOTHING, allocated: Resources = NOTHING) -> None:
        queue = QueueName(job.queue)
        before = self.usage.get(queue, Usage())
        self.usage[queue] = replace(
            before, allocated=before.allocated + allocated, requested=before.requested + requested
        )

    # Planning -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the cluster as it is now."""
        releasing = np.zeros_like(self.free)
        for _, job, name in self.leaving:
            releasing[:, self.table.index[name]] += np.array(job.members()[0].request.amounts)
        groups: dict[GroupKey, PodGroup] = {}
        running: dict[GroupKey, PodGroup] = {}
        for key, job in self.jobs.items():
            (running if job.nodes else groups)[key] = job.group()
        return Snapshot(
            version=1,
            nodes=self.table,
            free=self.free.copy(),
            queues=self.queues,
            usage=dict(self.usage),
            groups=groups,
            running=running,
            total=self.table.capacity,
            releasing=releasing if self.leaving else None,
            mix=self.arrivals.last,
        )

    def changed(self) -> None:
        """Decide without victims, as the planning loop does; search soon after."""
        if not self.jobs:
            return
        snapshot = self.snapshot()
        # The service makes the mix beside the loop, so a plan may have it some milliseconds later.
        snapshot = replace(snapshot, mix=self.arrivals.learn(snapshot))
        keys = list(snapshot.groups) if self._is_freed else self._new
        withheld, aged = ((), None) if self._is_freed else self._kept
        self._new, self._is_freed = [], False
        made = plan_some(snapshot, keys, self.policy, withheld=withheld, aged=aged, now=self.now, memory=self.memory)
        if made.withheld:
            self._kept = made.withheld, made.aged
        self.carry_out(made)
        self._last_change_at = self.now
        self._search_at(self.now + SEARCH_AFTER_S)

    def woken(self) -> None:
        """Decide with victims."""
        self.search()

    def search(self) -> Plan:
        """Decide with victims; return the plan, which is carried out."""
        snapshot = self.snapshot()
        self.searched_at, self.wake_at = self.now, math.inf
        made = plan(snapshot, self.policy, now=self.now, memory=self.memory)
        self.memory, self._kept = made.memory, (made.withheld, made.aged)
        self.carry_out(made)
        if made.starts or made.evictions or made.unfinished:
            self._search_at(self.now + SEARCH_AFTER_S)
        elif not self.is_at_rest or self.now < self._last_change_at + GIVEN_UP_AFTER_S:
            self._search_at(max(self.now + SEARCH_AGAIN_S, self.next_change_by_time()))
        return made

    def _search_at(self, at: float) -> None:
        if not all(job.nodes for job in self.jobs.values()):
            self.wake_at = min(self.wake_at, max(at, self.searched_at + self.rest_s))

    def next_change_by_time(self) -> float:
        """Return when the passing of time alone may give another plan."""
        known, ageing_s = self.memory.conditions, self.policy.ageing_s
        ages = [job.created_at + ageing_s for job in self.jobs.values() if not job.nodes] if ageing_s else []
        return min([known.changes_at if known else math.inf, *(each for each in ages if each > self.now)])

    def carry_out(self, made: Plan) -> None:
        """Evict and start."""
        for key in dict.fromkeys(each.group for each in made.evictions):
            self.evict(self.jobs[key])
        until = self.now + TERMINATION_S
        if made.evictions or any(start.awaits_release for start in made.starts):
            self.post(until, "left")
        for start in made.starts:
            job = self.jobs[start.group]
            self.take(job, tuple(each.node for each in start.placements))
            if start.awaits_release:
                self.awaited[job] = until
            else:
                self.begin(job)
