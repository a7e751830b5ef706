"""Counts for each gang the pods that it needs, that are bound or have succeeded, and that are missing."""

from collections import Counter
from collections.abc import Collection, Container, Mapping

from app.cluster.groups.groups import NOBODY, has_sub_groups
from app.cluster.groups.specs import GroupSpecs
from app.cluster.groups.touched import Touched
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.podgroup import PodSet

NEVER = 1 << 31
"""More pods than any gang has: a gang whose PodGroup is deleted must not start partially."""


class GangProgress:
    """The numbers of all groups."""

    def __init__(self, specs: GroupSpecs, pods: Mapping[GroupKey, Mapping[PodUid, Pod]], touched: Touched) -> None:
        """`pods` has the pods of each group."""
        self._specs = specs
        self._pods = pods
        self._touched = touched
        self._succeeded: dict[GroupKey, dict[PodUid, str]] = {}
        """The pods that have succeeded, with the sub-group of each."""

    def count_success(self, key: GroupKey, uid: PodUid, subgroup: str = "") -> None:
        """Count a succeeded pod that is gone as a satisfied member of its gang, as long as the gang exists."""
        if self._specs.get(key) is not None:
            self._succeeded.setdefault(key, {})[uid] = subgroup
            self._touched.mark(key)

    def forget(self, key: GroupKey) -> None:
        """Forget a group that has neither pods nor an object."""
        self._succeeded.pop(key, None)

    def min_member(self, key: GroupKey) -> int:
        """Return how many pods of a group must start together; an unreachable number while its PodGroup is missing."""
        spec = self._specs.get(key)
        if spec is not None:
            return spec.min_member
        return NEVER if any(pod.names_group for pod in self._pods_of(key)) else 1

    def bound(self, key: GroupKey) -> int:
        """Return how many pods of a group are bound and not being deleted, or have succeeded."""
        staying = sum(pod.node is not None and not pod.deleting for pod in self._pods_of(key))
        return staying + len(self._succeeded.get(key, ()))

    def owes(self, key: GroupKey, coming: Container[PodUid] = ()) -> int:
        """Return how many more pods of a group must be bound until each of its pod sets has its minimum.

        Pods in `coming` count as bound. For a gang whose PodGroup is missing, the number is unreachable.
        """
        spec = self._specs.get(key)
        divided = spec is not None and has_sub_groups(spec)
        there = Counter(self.succeeded(key))
        for pod in self._pods_of(key):
            if (pod.node is not None and not pod.deleting) or pod.uid in coming:
                there[pod.subgroup if divided else ""] += 1
        leaves = spec.root.leaves() if divided and spec and spec.root else [PodSet(min_member=self.min_member(key))]
        return sum(max(0, leaf.min_member - there[leaf.name]) for leaf in leaves)

    def succeeded(self, key: GroupKey) -> Mapping[str, int]:
        """Return how many pods of a group have succeeded, by pod set."""
        finished = self._succeeded.get(key)
        if not finished:
            return NOBODY
        spec = self._specs.get(key)
        return dict(Counter(finished.values())) if spec and has_sub_groups(spec) else {"": len(finished)}

    def _pods_of(self, key: GroupKey) -> Collection[Pod]:
        return self._pods.get(key, {}).values()
