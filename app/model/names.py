"""The names by which things know each other: types, so that one cannot be passed for another."""

from dataclasses import dataclass
from typing import NewType

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """Identity of a PodGroup; a tenant's reference is only ever resolved inside its own namespace.

    A pod without a PodGroup is a group of its own, whose name is the pod's uid.
    """

    namespace: str
    name: str

    def __repr__(self) -> str:
        return f"{self.namespace}/{self.name}"
