"""Lists the waiting PodGroups and their refusals as of the last plan, and tells whether they can be trusted."""

from collections.abc import Iterator, Mapping, Sequence

from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.leadership.readiness import Readiness
from app.model.names import GroupKey
from app.model.podgroup import PodGroup
from app.model.question import Check
from app.model.reason import Refusal


class WaitingGroups:
    """Read-only views, computed when asked."""

    def __init__(self, cache: ClusterCache, planning: Planning, readiness: Readiness) -> None:
        """Store the collaborators."""
        self._cache = cache
        self._planning = planning
        self._readiness = readiness

    def checks(self) -> Sequence[Check]:
        """Return every condition of readiness."""
        return self._readiness.checks()

    def is_ready(self) -> bool:
        """Whether all conditions hold: this replica is active, and its picture of the cluster is complete and fresh."""
        return not self._readiness.failure()

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever `waiting_by_key` does."""
        return self._planning.version

    def waiting(self) -> Sequence[tuple[PodGroup, Refusal | None]]:
        """Return the groups with pods that have no place, with their refusals."""
        refusals = self._planning.refusals_to_tell
        return [(group, refusals.get(key)) for key, group in self._cache.groups.waiting().items()]

    def waiting_by_key(self) -> Mapping[GroupKey, tuple[PodGroup, Refusal | None]]:
        """Return the groups with pods that have no place, with their refusals, by their key."""
        refusals = self._planning.refusals
        return {key: (group, refusals.get(key)) for key, group in self._cache.groups.waiting().items()}

    def refusal(self, key: GroupKey) -> Refusal | None:
        """Return why a group with unplaced pods waits; None when it has no such pods, or is undecided."""
        return self._planning.refusals.get(key) if key in self._cache.groups.waiting() else None

    def refused(self) -> Iterator[tuple[GroupKey, Refusal]]:
        """Yield the groups that have pods without a place now, with their refusals; undecided groups are left out.

        Each group is looked up when its turn comes, so the caller may let others run in between.
        """
        waiting, refusals = self._cache.groups.waiting(), list(self._planning.refusals.items())
        return ((key, refusal) for key, refusal in refusals if key in waiting)
