"""Keeps since when gangs are stale: they have started, and have fewer members than their minimum."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from app.cluster.groups.groups import is_stale
from app.cluster.groups.touched import Touched
from app.model.names import GroupKey, PodUid
from app.model.podgroup import GroupSpec, PodGroup


class Staleness:
    """The times, and the gangs that do not count as stale although they lack members."""

    def __init__(self, touched: Touched) -> None:
        """Start without stale gangs."""
        self._touched = touched
        self._since: dict[GroupKey, float] = {}
        self._unaged: dict[GroupKey, None] = {}
        self._doubted: dict[GroupKey, set[PodUid]] = {}
        """Members that are gone and whose phase at the end is not known yet."""
        self._doubts_all = False
        self._spared: set[GroupKey] = set()
        """Groups that do not count as stale for some time, because one of their pods could not be evicted."""

    def timed(self, key: GroupKey, group: PodGroup | None, spec: GroupSpec | None) -> PodGroup | None:
        """Return the group with the time since which it is stale, if `age` recorded it; None when it has no pods."""
        if group is None or _is_excused(spec) or not is_stale(group):
            self._unaged.pop(key, None)
            self._since.pop(key, None)
            return group
        if self._is_left_alone(key):
            # The grace period continues if this member did not succeed: otherwise each lost member would restart it.
            self._unaged.pop(key, None)
            return group
        since = self._since.get(key)
        if since is None:
            self._unaged[key] = None
        return replace(group, stale_since=since)

    def since(self) -> Mapping[GroupKey, float]:
        """Return the stale groups with the times that `age` recorded; the caller must not keep the value."""
        if not self._doubted and not self._spared:
            return self._since
        return {key: since for key, since in self._since.items() if not self._is_left_alone(key)}

    def age(self, now: float) -> Collection[GroupKey]:
        """Record this time for groups that have become stale since the last call; return these groups."""
        if self._doubts_all:
            return ()
        unaged, self._unaged = list(self._unaged), {}
        self._since.update(dict.fromkeys(unaged, now))
        return unaged

    def doubt(self, key: GroupKey, uid: PodUid) -> None:
        """Do not count a gang as stale until it is known how this deleted member ended: it may have succeeded."""
        self._doubted.setdefault(key, set()).add(uid)
        self._touched.mark(key)

    def trust(self, key: GroupKey, uid: PodUid) -> None:
        """End the doubt about a member: its phase is known, or will never be known."""
        doubted = self._doubted.get(key, set())
        doubted.discard(uid)
        if not doubted:
            self._doubted.pop(key, None)
        self._touched.mark(key)

    def spare(self, key: GroupKey) -> None:
        """Do not count a gang as stale until `unspare`: one of its pods could not be evicted."""
        self._spared.add(key)
        self._touched.mark(key)

    def unspare(self, key: GroupKey) -> None:
        """End `spare`: enough time has passed."""
        self._spared.discard(key)
        self._touched.mark(key)

    def doubt_all(self) -> None:
        """Count no gang as stale until `trust_all`: it is not known yet which members succeeded earlier."""
        self._doubts_all = True

    def trust_all(self) -> None:
        """End `doubt_all`."""
        self._doubts_all = False
        self._touched.note()

    def _is_left_alone(self, key: GroupKey) -> bool:
        return key in self._doubted or key in self._spared


def _is_excused(spec: GroupSpec | None) -> bool:
    """Whether it cannot be decided that pods are missing.

    A PodGroup that cannot be read does not state how many pods it needs. The owner of a suspended PodGroup deletes its
    pods.
    """
    return spec is not None and bool(spec.problem or spec.suspended)
