"""Tells how far each gang is: how many pods it needs, how many are bound or have finished well, how many it owes."""

from collections import Counter
from collections.abc import Collection, Mapping

from app.cluster.groups.groups import NOBODY, has_sub_groups
from app.cluster.groups.specs import GroupSpecs
from app.cluster.groups.touched import Touched
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.podgroup import PodSet

NEVER = 1 << 31
"""More pods than any gang has: a PodGroup that is deleted under its gang must not let half of it start."""


class GangProgress:
    """The numbers of all groups."""

    def __init__(self, specs: GroupSpecs, pods: Mapping[GroupKey, Mapping[PodUid, Pod]], touched: Touched) -> None:
        """`pods` has the pods of each group."""
        self._specs = specs
        self._pods = pods
        self._touched = touched
        self._succeeded: dict[GroupKey, dict[PodUid, str]] = {}
        """The pods that have finished well, with the sub-group that each was in."""

    def count_success(self, key: GroupKey, uid: PodUid, subgroup: str = "") -> None:
        """Count a pod that is gone because it finished well as satisfied in its gang, as long as that is there."""
        if self._specs.get(key) is not None:
            self._succeeded.setdefault(key, {})[uid] = subgroup
            self._touched.mark(key)

    def forget(self, key: GroupKey) -> None:
        """Forget a group that has neither pods nor an object."""
        self._succeeded.pop(key, None)

    def min_member(self, key: GroupKey) -> int:
        """Return how many pods of a group must start together; more than there can be while its PodGroup is missing."""
        spec = self._specs.get(key)
        if spec is not None:
            return spec.min_member
        return NEVER if any(pod.names_group for pod in self._pods_of(key)) else 1

    def bound(self, key: GroupKey) -> int:
        """Return how many pods of a group are bound and stay, or have finished well."""
        staying = sum(pod.node is not None and not pod.deleting for pod in self._pods_of(key))
        return staying + len(self._succeeded.get(key, ()))

    def owes(self, key: GroupKey, coming: Collection[PodUid] = ()) -> int:
        """Return how many pods of a group are still to be bound before each of its pod sets has its minimum.

        Pods that are `coming` count as bound. A gang whose PodGroup is missing owes more than there can be.
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
        """Return how many pods of a group have finished well, by pod set."""
        finished = self._succeeded.get(key)
        if not finished:
            return NOBODY
        spec = self._specs.get(key)
        return dict(Counter(finished.values())) if spec and has_sub_groups(spec) else {"": len(finished)}

    def _pods_of(self, key: GroupKey) -> Collection[Pod]:
        return self._pods.get(key, {}).values()
