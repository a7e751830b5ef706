"""The types of names, so that one kind of name cannot be passed as another."""

from typing import NamedTuple, NewType

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)

NO_QUEUE = QueueName("")
"""No queue pays, or the paying queue was not recorded."""


class GroupKey(NamedTuple):
    """The identity of a PodGroup. A tenant's reference is only resolved inside its own namespace.

    A pod without a PodGroup is its own group, named by the pod's uid. GroupKey is a tuple because it is the most
    frequent dictionary key: with thousands of groups, the Python hash of a dataclass was visible in every profile.
    """

    namespace: str
    name: str

    def __repr__(self) -> str:
        return f"{self.namespace}/{self.name}"
