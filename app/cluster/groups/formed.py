"""Keeps the groups as they were last formed: which of them wait, which run, and since when which are stale."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from app.cluster.groups.frozen import Buckets, FrozenGroups
from app.cluster.groups.groups import is_stale
from app.model.names import GroupKey, PodUid
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
        self._doubted: dict[GroupKey, set[PodUid]] = {}
        """Members that are gone of which it is not known yet how they ended."""
        self._doubts_all = False
        self._spared: set[GroupKey] = set()
        """Groups that are left alone for a while, since a pod of theirs could not be evicted."""

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
        before = self.waiting.get(key)
        if waiting is not None:
            # Also an equal one: what kube-scheduler has said of its pods may be new.
            self.waiting[key] = waiting
        elif before is not None:
            del self.waiting[key]
        return waiting != before

    def running(self) -> FrozenGroups[PodGroup]:
        """Return the groups that hold places; the same value as long as none of them has changed."""
        return self._running.freeze()

    def stale_since(self) -> Mapping[GroupKey, float]:
        """Return the stale groups with since when they are, as far as `age` was told; not to be kept."""
        if not self._doubted and not self._spared:
            return self._stale_since
        return {key: since for key, since in self._stale_since.items() if not self._is_left_alone(key)}

    def age(self, now: float) -> Collection[GroupKey]:
        """Note that what has become stale since last asked is so since now; return which groups these are."""
        if self._doubts_all:
            return ()
        unaged, self._unaged = self._unaged, set()
        self._stale_since.update(dict.fromkeys(unaged, now))
        return unaged

    def doubt(self, key: GroupKey, uid: PodUid) -> None:
        """Call a group stale no more until it is known how this member ended: well, it may be finishing."""
        self._doubted.setdefault(key, set()).add(uid)

    def trust(self, key: GroupKey, uid: PodUid) -> None:
        """Take that back: it is known, or will never be."""
        doubted = self._doubted.get(key, set())
        doubted.discard(uid)
        if not doubted:
            self._doubted.pop(key, None)

    def spare(self, key: GroupKey) -> None:
        """Call a group stale no more until `unspare`."""
        self._spared.add(key)

    def unspare(self, key: GroupKey) -> None:
        """Take that back."""
        self._spared.discard(key)

    def doubt_all(self) -> None:
        """Call no group stale from now on until `trust_all`: whose members have finished well is not known yet."""
        self._doubts_all = True

    def trust_all(self) -> None:
        """Take that back."""
        self._doubts_all = False

    def _aged(self, key: GroupKey, group: PodGroup | None, spec: GroupSpec | None) -> PodGroup | None:
        if group is None or _is_excused(spec) or not is_stale(group):
            self._unaged.discard(key)
            self._stale_since.pop(key, None)
            return group
        if self._is_left_alone(key):
            # Its grace goes on when this end was no good one: with each pod that it loses it would begin anew.
            self._unaged.discard(key)
            return group
        since = self._stale_since.get(key)
        if since is None:
            self._unaged.add(key)
        return replace(group, stale_since=since)

    def _is_left_alone(self, key: GroupKey) -> bool:
        return key in self._doubted or key in self._spared


def _is_excused(spec: GroupSpec | None) -> bool:
    """Whether nobody can say that pods are missing.

    What cannot be read does not tell how many it needs, and who is suspended has them deleted by its owner.
    """
    return spec is not None and bool(spec.problem or spec.suspended)
