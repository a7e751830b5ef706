"""Tells since when gangs are stale: they have started, and have lost members below their minimum."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from app.cluster.groups.groups import is_stale
from app.cluster.groups.touched import Touched
from app.model.names import GroupKey, PodUid
from app.model.podgroup import GroupSpec, PodGroup


class Staleness:
    """The times, and the gangs that are not called stale although they look like it."""

    def __init__(self, touched: Touched) -> None:
        """Start with no gang stale."""
        self._touched = touched
        self._since: dict[GroupKey, float] = {}
        self._unaged: set[GroupKey] = set()
        self._doubted: dict[GroupKey, set[PodUid]] = {}
        """Members that are gone of which it is not known yet how they ended."""
        self._doubts_all = False
        self._spared: set[GroupKey] = set()
        """Groups that are left alone for a while, since a pod of theirs could not be evicted."""

    def timed(self, key: GroupKey, group: PodGroup | None, spec: GroupSpec | None) -> PodGroup | None:
        """Return the group with since when it is stale, as far as `age` was told; None when it has no pods."""
        if group is None or _is_excused(spec) or not is_stale(group):
            self._unaged.discard(key)
            self._since.pop(key, None)
            return group
        if self._is_left_alone(key):
            # Its grace goes on when this end was no good one: with each pod that it loses it would begin anew.
            self._unaged.discard(key)
            return group
        since = self._since.get(key)
        if since is None:
            self._unaged.add(key)
        return replace(group, stale_since=since)

    def since(self) -> Mapping[GroupKey, float]:
        """Return the stale groups with since when they are, as far as `age` was told; not to be kept."""
        if not self._doubted and not self._spared:
            return self._since
        return {key: since for key, since in self._since.items() if not self._is_left_alone(key)}

    def age(self, now: float) -> Collection[GroupKey]:
        """Note that what has become stale since last asked is so since now; return which groups these are."""
        if self._doubts_all:
            return ()
        unaged, self._unaged = self._unaged, set()
        self._since.update(dict.fromkeys(unaged, now))
        return unaged

    def doubt(self, key: GroupKey, uid: PodUid) -> None:
        """Call a gang stale no more until it is known how this member ended, which is gone: it may have finished."""
        self._doubted.setdefault(key, set()).add(uid)
        self._touched.mark(key)

    def trust(self, key: GroupKey, uid: PodUid) -> None:
        """Take that back: it is known, or will never be."""
        doubted = self._doubted.get(key, set())
        doubted.discard(uid)
        if not doubted:
            self._doubted.pop(key, None)
        self._touched.mark(key)

    def spare(self, key: GroupKey) -> None:
        """Call a gang stale no more until `unspare`: a pod of it could not be evicted."""
        self._spared.add(key)
        self._touched.mark(key)

    def unspare(self, key: GroupKey) -> None:
        """Take that back: enough time has passed."""
        self._spared.discard(key)
        self._touched.mark(key)

    def doubt_all(self) -> None:
        """Call no gang stale until `trust_all`: which members had finished well before is not known yet."""
        self._doubts_all = True

    def trust_all(self) -> None:
        """Take that back."""
        self._doubts_all = False
        self._touched.note()

    def _is_left_alone(self, key: GroupKey) -> bool:
        return key in self._doubted or key in self._spared


def _is_excused(spec: GroupSpec | None) -> bool:
    """Whether nobody can say that pods are missing.

    A PodGroup that cannot be read does not tell how many pods it needs. The owner of a suspended one deletes its pods.
    """
    return spec is not None and bool(spec.problem or spec.suspended)
