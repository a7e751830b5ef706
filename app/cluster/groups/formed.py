"""Keeps the groups as they were last formed: which of them wait, and which run."""

from app.cluster.groups.frozen import Buckets, FrozenGroups
from app.model.names import GroupKey
from app.model.podgroup import PodGroup


class FormedGroups:
    """The groups, frozen each. Changed by `Membership` alone."""

    def __init__(self) -> None:
        """Start with none."""
        self._waiting = Buckets[PodGroup]()
        """Those with pods that have no place."""
        self._running = Buckets[PodGroup]()

    def put_running(self, key: GroupKey, group: PodGroup | None) -> None:
        """Take over what a group holds now, None when it has no pods."""
        running = group if group is not None and group.placed else None
        if running != self._running.get(key):
            self._running.put(key, running)

    def put_waiting(self, key: GroupKey, group: PodGroup | None) -> bool:
        """Take over which pods of a group wait now, None when none does; return whether that is news."""
        waiting = group if group is not None and (group.pending or group.refusal) else None
        before = self._waiting.get(key)
        if waiting is not None or before is not None:
            # Also an equal one: what kube-scheduler has said of its pods may be new.
            self._waiting.put(key, waiting)
        return waiting != before

    def waits(self, key: GroupKey) -> bool:
        """Whether pods of a group wait."""
        return self._waiting.get(key) is not None

    def waiting(self) -> FrozenGroups[PodGroup]:
        """Return the groups with pods that have no place; the same value as long as none of them has changed."""
        return self._waiting.freeze()

    def running(self) -> FrozenGroups[PodGroup]:
        """Return the groups that hold places; the same value as long as none of them has changed."""
        return self._running.freeze()
