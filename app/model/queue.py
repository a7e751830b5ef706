"""A queue of the quota tree, as its owner wrote it, and as the planner may trust it."""

from dataclasses import dataclass

from app.model.names import QueueName
from app.model.resources import UNLIMITED

DEFAULT_PRIORITY = 100
"""KAI's default, applied where the object names none."""

MOST_LEVELS = 32
"""Of the tree of queues: every pod is charged to each queue above it, and nobody's company is deeper."""

WEIGHT_SCALE = 1_000_000
"""An over-quota weight of 1 in the integers of `Entitlement.over_quota_weight_micro`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlement:
    """What a queue may have of one resource, in that resource's unit; `UNLIMITED` is a value, not -1."""

    deserved: int = 0
    limit: int = UNLIMITED
    over_quota_weight_micro: int = WEIGHT_SCALE


UNGOVERNED = Entitlement(deserved=UNLIMITED)
"""A resource that the queue says nothing about: it neither guarantees nor limits it."""


UNENTITLED = Entitlement(limit=0)
"""Nothing is deserved, and nothing may be had."""

LAST_PRIORITY = -(1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One node of the tree; `problem` says why it takes no pods although it exists."""

    name: QueueName
    parent: QueueName | None = None
    priority: int = DEFAULT_PRIORITY
    created_at: float = 0.0
    """Seconds since the epoch; only the order matters."""
    uid: str = ""
    display_name: str = ""
    cpu_milli: Entitlement = UNGOVERNED
    memory_bytes: Entitlement = UNGOVERNED
    gpu_milli: Entitlement = UNGOVERNED
    preempt_min_runtime_s: float | None = None
    """For how long its running pods are safe from preemption inside it; None: as its parent says."""
    reclaim_min_runtime_s: float | None = None
    """For how long its running pods are safe from being reclaimed by other queues; None: as its parent says."""
    problem: str = ""
    """One sentence for its owner when the object cannot be used; empty when it can."""

    def entitlement(self, axis: int) -> Entitlement:
        """Return the entitlement for one of `QUOTA_AXES`."""
        return (self.cpu_milli, self.memory_bytes, self.gpu_milli)[axis]

    def __repr__(self) -> str:
        return f"<Queue {self.name}{' invalid' if self.problem else ''}>"


ORPHANED = Queue(
    name=QueueName("(orphaned)"),
    priority=LAST_PRIORITY,
    cpu_milli=UNENTITLED,
    memory_bytes=UNENTITLED,
    gpu_milli=UNENTITLED,
    problem="the queues of these pods do not exist; the pods are the first to be reclaimed",
)
"""Pays for the pods of queues that do not exist, so that no pod is in no books. No object can have such a name."""
