"""Tells which groups the next plan must consider: changed groups, or all waiting groups after capacity was freed."""

from collections.abc import Callable, Collection

from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey
from app.model.snapshot import Snapshot
from app.scheduling.policy import Policy


class DueGroups:
    """What the last plan has seen. Only `Planning` changes it."""

    def __init__(self, cache: ClusterCache, policy: Policy, *, wall_clock: Callable[[], float]) -> None:
        """Start with all groups due; `wall_clock` is in seconds since the epoch."""
        self._cache = cache
        self._policy = policy
        self._wall_clock = wall_clock
        self._planned_relief = -1
        """`changes.relief` as seen by the last plan that was carried out as a whole."""
        self.kept_for: frozenset[GroupKey] = frozenset()
        """The gangs for which the last plan kept room for their missing pods."""

    def are_any(self) -> bool:
        """Return whether a group must be planned."""
        self._cache.groups.form_waiting()
        return self.has_relief() or bool(self._cache.groups.unsettled)

    def has_relief(self) -> bool:
        """Return whether all waiting groups must be planned, because there may be room for any of them."""
        if self._cache.changes.relief != self._planned_relief:
            return True
        if not self.kept_for:
            return False
        # Room kept for a gang is free for other groups when the gang no longer needs it, or has had it for too long.
        waiting, changed, now = self._cache.groups.waiting(), self._cache.groups.unsettled, self._wall_clock()
        return any(
            key in changed or key not in waiting or not self._policy.keeps_room_for(waiting[key], now)
            for key in self.kept_for
        )

    def among(self, snapshot: Snapshot) -> Collection[GroupKey]:
        """Return the groups to plan: all waiting groups if capacity was freed, else the changed groups."""
        if self.has_relief():
            return list(snapshot.groups)
        return list(dict.fromkeys((*self._cache.groups.unsettled, *sorted(self.kept_for))))

    def note_begun(self, kept_for: frozenset[GroupKey]) -> None:
        """Note that a plan is being carried out; all groups are due until its end, as an error may leave some out."""
        self._planned_relief, self.kept_for = -1, kept_for

    def note_planned(self, relief: int) -> None:
        """Note that a plan that saw this value of `changes.relief` is carried out."""
        self._planned_relief = relief
