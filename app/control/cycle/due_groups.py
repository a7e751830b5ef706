"""Knows which groups the next plan has to consider: those that have changed, or after relief all that wait."""

from collections.abc import Callable, Collection

from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey
from app.model.snapshot import Snapshot
from app.scheduling.policy import Policy


class DueGroups:
    """What the last plan has seen. Changed by `Planning` alone."""

    def __init__(self, cache: ClusterCache, policy: Policy, *, wall_clock: Callable[[], float]) -> None:
        """Start with everything due; `wall_clock` is in seconds since the epoch."""
        self._cache = cache
        self._policy = policy
        self._wall_clock = wall_clock
        self._planned_relief = -1
        """Relief as the last plan saw it that was carried out as a whole."""
        self.kept_for: frozenset[GroupKey] = frozenset()
        """The gangs for whose rest the last plan kept room."""

    def are_any(self) -> bool:
        """Return whether a group is to be planned."""
        self._cache.groups.waiting()  # forms the groups that changed, which fills `unsettled`
        return self.has_relief() or bool(self._cache.groups.unsettled)

    def has_relief(self) -> bool:
        """Return whether all that wait are to be planned: there may be room for any of them."""
        if self._cache.changes.relief != self._planned_relief:
            return True
        # What was kept for a gang is free for others when it needs it no more, or has had it for too long.
        waiting, changed, now = self._cache.groups.waiting(), self._cache.groups.unsettled, self._wall_clock()
        return any(
            key in changed or key not in waiting or not self._policy.keeps_room_for(waiting[key], now)
            for key in self.kept_for
        )

    def among(self, snapshot: Snapshot) -> Collection[GroupKey]:
        """Return who is to be planned: all who wait when there was relief, else those that have changed."""
        return list(snapshot.groups) if self.has_relief() else {*self._cache.groups.unsettled, *self.kept_for}

    def note_begun(self, kept_for: frozenset[GroupKey]) -> None:
        """Note that a plan is being carried out: until that is done all are due, since an error may leave some out."""
        self._planned_relief, self.kept_for = -1, kept_for

    def note_planned(self, relief: int) -> None:
        """Note that a plan that saw this relief is carried out."""
        self._planned_relief = relief
