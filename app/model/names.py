"""The types of names, so that one kind of name cannot be passed as another."""

from typing import NamedTuple, NewType

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
QueueName = NewType("QueueName", str)

NO_QUEUE = QueueName("")
"""No queue pays, or the paying queue was not recorded."""


NATIVE_API = "scheduling.k8s.io"
"""The API group of Kubernetes' own PodGroups."""

NATIVE_MARK = f" ({NATIVE_API})"
"""Follows the name of a native PodGroup in texts. No name contains it."""


class GroupKey(NamedTuple):
    """The identity of a PodGroup. A tenant's reference is only resolved inside its own namespace.

    A pod without a PodGroup is its own group, named by the pod's uid. GroupKey is a tuple because it is the most
    frequent dictionary key: with thousands of groups, the Python hash of a dataclass was visible in every profile.
    """

    namespace: str
    name: str
    api: str = ""
    """`NATIVE_API` for a native PodGroup: a KAI PodGroup of the same namespace and name is another group."""

    @classmethod
    def parse(cls, text: str) -> "GroupKey | None":
        """Return the key that `repr` gives as this text; None when it gives no such text."""
        namespace, slash, name = text.partition("/")
        if not slash:
            return None
        is_native = name.endswith(NATIVE_MARK)
        return cls(namespace, name.removesuffix(NATIVE_MARK), NATIVE_API if is_native else "")

    def __repr__(self) -> str:
        return f"{self.namespace}/{self.name}{NATIVE_MARK if self.api else ''}"
