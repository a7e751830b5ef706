"""Keeps the groups as they were last formed: which of them wait, which run, and since when which are stale."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from app.cluster.frozen import Buckets, FrozenGroups
from app.cluster.groups import is_stale
from app.model.names import GroupKey
from app.model.podgroup import GroupSpec, PodGroup


class FormedGroups:
    """The groups, frozen each. Changed by `Membership` alone."""

    def __init__(self) -> None:
        """Start with none."""
        self.waiting: dict[GroupKey, PodGroup] = {}
        """Those with pods that have no place."""
        self._running = Buckets[PodGroup]()
        self._stale_since: dict[GroupKey, float] = {}
        self._unaged: set[GroupKey] = set()

    def put_running(self, key: GroupKey, group: PodGroup | None, spec: GroupSpec | None) -> PodGroup | None:
        """Take over what a group holds now, None when it has no pods; return the group with since when it is stale."""
        group = self._aged(key, group, spec)
        running = group if group is not None and group.placed else None
        if running != self._running.get(key):
            self._running.put(key, running)
        return group

    def put_waiting(self, key: GroupKey, group: PodGroup | None) -> bool:
        """Take over who of a group waits now, None when nobody does; return whether that is news."""
        waiting = group if group is not None and (group.pending or group.refusal) else None
        if waiting == self.waiting.get(key):
            return False
        if waiting is None:
            del self.waiting[key]
        else:
            self.waiting[key] = waiting
        return True

    def running(self) -> FrozenGroups[PodGroup]:
        """Return the groups that hold places; the same value as long as none of them has changed."""
        return self._running.freeze()

    def stale_since(self) -> Mapping[GroupKey, float]:
        """Return the stale groups with since when they are, as far as `age` was told; not to be kept."""
        return self._stale_since

    def age(self, now: float) -> Collection[GroupKey]:
        """Note that what has become stale since last asked is so since now; return which groups these are."""
        unaged, self._unaged = self._unaged, set()
        self._stale_since.update(dict.fromkeys(unaged, now))
        return unaged

    def _aged(self, key: GroupKey, group: PodGroup | None, spec: GroupSpec | None) -> PodGroup | None:
        # What its owner wrote cannot be read: nobody knows how many pods it needs.
        unclear = spec is not None and bool(spec.problem)
        if group is None or unclear or not is_stale(group):
            self._unaged.discard(key)
            self._stale_since.pop(key, None)
            return group
        since = self._stale_since.get(key)
        if since is None:
            self._unaged.add(key)
        return replace(group, stale_since=since)
