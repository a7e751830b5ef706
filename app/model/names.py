"""The names by which things know each other: types, so that one cannot be passed for another."""

from typing import NamedTuple, NewType

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)

NO_QUEUE = QueueName("")
"""Nobody pays, or nobody noted who does."""


class GroupKey(NamedTuple):
    """Identity of a PodGroup; a tenant's reference is only ever resolved inside its own namespace.

    A pod without a PodGroup is a group of its own, whose name is the pod's uid. A tuple, since it is what is looked up
    most of all: with thousands of groups the hash of a dataclass, made in Python, was seen in every profile.
    """

    namespace: str
    name: str

    def __repr__(self) -> str:
        return f"{self.namespace}/{self.name}"
