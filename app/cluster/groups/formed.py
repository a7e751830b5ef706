"""Keeps the groups as they were last formed: which groups are pending, and which run."""

from app.cluster.groups.frozen import Buckets, FrozenGroups
from app.model.names import GroupKey
from app.model.podgroup import PodGroup


class FormedGroups:
    """The frozen groups. Only `Membership` changes them."""

    def __init__(self) -> None:
        """Start without groups."""
        self._waiting = Buckets[PodGroup]()
        """Groups with pods that have no place."""
        self._running = Buckets[PodGroup]()

    def put_running(self, key: GroupKey, group: PodGroup | None) -> None:
        """Store what a group holds now; None when it has no pods."""
        running = group if group is not None and group.placed else None
        if running != self._running.get(key):
            self._running.put(key, running)

    def put_waiting(self, key: GroupKey, group: PodGroup | None) -> bool:
        """Store which pods of a group are pending now; None when none is; return whether that is a change."""
        waiting = group if group is not None and (group.pending or group.refusal) else None
        before = self._waiting.get(key)
        if waiting is not None or before is not None:
            # An equal group is stored too: what kube-scheduler states about its pods may be new.
            self._waiting.put(key, waiting)
        return waiting != before

    def waits(self, key: GroupKey) -> bool:
        """Whether pods of a group are pending."""
        return self._waiting.get(key) is not None

    def waiting(self) -> FrozenGroups[PodGroup]:
        """Return the groups with pods that have no place; the same value as long as none of them has changed."""
        return self._waiting.freeze()

    def running(self) -> FrozenGroups[PodGroup]:
        """Return the groups with pods that have places; the same value as long as none of them has changed."""
        return self._running.freeze()
