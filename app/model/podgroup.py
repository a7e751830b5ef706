"""A PodGroup: the pods that start together, and what it takes to start them."""

from dataclasses import dataclass

from app.model.names import GroupKey, QueueName
from app.model.pod import Pod
from app.model.reason import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """The PodGroup object as its owner wrote it."""

    key: GroupKey
    uid: str = ""
    queue: QueueName | None = None
    min_member: int = 1
    priority_class: str = ""
    preemptible: bool | None = None
    """None: decided by the priority (below 100 is preemptible, KAI's rule)."""
    created_at: float = 0.0
    problem: str = ""
    """One sentence for its owner when the object cannot be used; empty when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """A PodGroup with its pods, frozen for one plan; a pod alone is a PodGroup of one."""

    key: GroupKey
    queue: QueueName
    priority: int = 0
    preemptible: bool = True
    min_member: int = 1
    created_at: float = 0.0
    pending: tuple[Pod, ...] = ()
    """Pods that hold nothing yet, in the order in which they start."""
    active: int = 0
    """Pods that hold resources and keep them: promised, being bound, or bound, and not being deleted."""
    succeeded: int = 0
    """Finished pods count as satisfied: a gang that is ending is not a broken gang."""
    refusal: Refusal | None = None
    """Set when the group cannot be considered at all, whatever is free."""

    @property
    def owed(self) -> int:
        """How many more pods must start together; negative never, 0 when the gang already runs."""
        return max(0, self.min_member - self.active - self.succeeded)

    @property
    def started(self) -> bool:
        """Whether some pods hold resources while others are owed: it must be completed before anything new."""
        return self.active > 0

    def __repr__(self) -> str:
        return f"<PodGroup {self.key} {self.active}+{len(self.pending)}/{self.min_member}>"
