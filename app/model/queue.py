"""A queue of the quota tree: the object as its owner wrote it, and its entitlements for the planner."""

from dataclasses import dataclass

from app.model.names import QueueName
from app.model.resources import UNLIMITED

DEFAULT_PRIORITY = 100
"""KAI's default, for a queue without a priority."""

MOST_LEVELS = 32
"""The depth limit of the queue tree. Every pod is charged to each ancestor queue, and no real organisation is deeper.
"""

WEIGHT_SCALE = 1_000_000
"""An over-quota weight of 1 in the integers of `Entitlement.over_quota_weight_micro`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlement:
    """A queue's entitlement to one resource, in that resource's unit. No limit is `UNLIMITED`, not -1."""

    deserved: int = 0
    limit: int = UNLIMITED
    over_quota_weight_micro: int = WEIGHT_SCALE


UNGOVERNED = Entitlement(deserved=UNLIMITED)
"""A resource that the queue does not mention. It is neither guaranteed nor limited."""


UNENTITLED = Entitlement(limit=0)
"""Nothing is deserved, and nothing is allowed."""

LAST_PRIORITY = -(1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One node of the queue tree. `problem` says why an existing queue takes no pods."""

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
    """How long its running pods are protected from preemption inside the queue; None means the parent's value."""
    reclaim_min_runtime_s: float | None = None
    """How long its running pods are protected from reclaim by other queues; None means the parent's value."""
    problem: str = ""
    """One sentence for the owner when the object cannot be used; empty when it can."""

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
"""Pays for the pods of queues that do not exist, so that every pod is accounted for. No Queue object can have this
name.
"""
