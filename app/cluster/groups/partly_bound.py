"""Since when gangs are partially bound: this limits how long room is kept for their other pods."""

from collections.abc import Callable, Collection
from dataclasses import replace

from app.cluster.groups.groups import is_bound_in_part
from app.model.names import GroupKey
from app.model.podgroup import GroupSpec, PodGroup


class TornSince:
    """The times, in seconds since the epoch. Only `Membership` calls its methods.

    The times do not depend on reservations for the other pods. They also survive a restart: a gang that was never
    observed complete counts as partially bound since the last of its pods was bound.
    """

    def __init__(self) -> None:
        """Start without times."""
        self._since: dict[GroupKey, float] = {}
        self._untimed: dict[GroupKey, float | None] = {}
        """When the last pod was bound; None for gangs that have just been complete."""
        self._whole: set[GroupKey] = set()

    def timed(
        self, group: PodGroup | None, spec: GroupSpec | None, last_bound_at: Callable[[], float]
    ) -> PodGroup | None:
        """Return the group with the time since which it is partially bound, as far as `age` recorded it.

        `last_bound_at` returns the start of the last of its bound pods.
        """
        if group is None or (group.min_member <= 1 and group.root is None):
            return group
        if spec is None or spec.problem or not is_bound_in_part(group):
            self.forget(group.key)
            if spec is not None and not spec.problem and any(one.pod.node is not None for one in group.placed):
                self._whole.add(group.key)
            return group
        if group.owed and group.key not in self._since:
            self._untimed.setdefault(group.key, None if group.key in self._whole else last_bound_at())
        return replace(group, torn_since=self._since.get(group.key))

    def forget(self, key: GroupKey) -> None:
        """Forget a group without pods."""
        self._since.pop(key, None)
        self._untimed.pop(key, None)
        self._whole.discard(key)

    def age(self, now: float) -> Collection[GroupKey]:
        """Record the time for gangs that are partially bound since the last call; return these groups."""
        untimed, self._untimed = self._untimed, {}
        self._since.update((key, now if at is None else min(at, now)) for key, at in untimed.items())
        self._whole.difference_update(untimed)
        return untimed.keys()
