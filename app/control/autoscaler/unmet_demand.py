"""Finds the PodGroups that lack nodes and nothing else, since when, and which nodes to request for them.

A PodGroup lacks nodes when the last plan refused it for want of room. The plan checks room only after the limits of
queues, and counts room that leaving pods will free before it refuses. For a partially bound PodGroup only the missing
pods of its minimum count; when its minimum runs, no nodes are requested.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from app.cluster.state.cache import ClusterCache
from app.control.journal.references import group_reference, pod_reference
from app.control.report.waiting import WaitingGroups
from app.model.names import GroupKey
from app.model.podgroup import PodGroup
from app.model.reason import Reason
from app.model.scaling import CapacityRequest
from app.model.seam import RawObject
from app.scheduling.queues import capacity
from app.settings import Settings

MOST = 100
"""PodGroups for which nodes are requested at a time, in their order: an autoscaler handles only a few requests."""

LACKS_ROOM = frozenset({Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT})
PASSING = frozenset({Reason.DECIDING, Reason.BACKING_OFF})
"""Reasons that say nothing about room: an existing request stays meanwhile."""


class UnmetDemand:
    """The unmet demand as of the last look. Only the event loop calls this class."""

    def __init__(
        self, cache: ClusterCache, waiting: WaitingGroups, settings: Settings, *, clock: Callable[[], float]
    ) -> None:
        """`clock` is monotonic. `look` writes `_since`, `_lacking` and `undecided`; `asked` writes `_asks`."""
        self._cache = cache
        self._waiting = waiting
        self._settings = settings
        self._clock = clock
        self._since: dict[GroupKey, float] = {}
        self._lacking: list[tuple[float, PodGroup]] = []
        """The groups that are known to lack room, with the same times: this saves a lookup of fifty thousand keys."""
        self._asks: dict[GroupKey, tuple[PodGroup, CapacityRequest]] = {}
        """The request of each group, and the group record from which it was made."""
        self.undecided: frozenset[GroupKey] = frozenset()
        """The groups for which the last plan does not tell whether they lack room."""

    def __bool__(self) -> bool:
        return bool(self._since)

    def __contains__(self, key: object) -> bool:
        return key in self._since

    def look(self) -> None:
        """Update the groups that lack room."""
        now, since, undecided = self._clock(), dict[GroupKey, float](), list[GroupKey]()
        lacking = list[tuple[float, PodGroup]]()
        for key, (group, refusal) in self._waiting.waiting_by_key().items():
            if refusal is None or refusal.reason in PASSING:
                undecided.append(key)
                if key in self._since:
                    since[key] = self._since[key]
            elif refusal.reason in LACKS_ROOM:
                since[key] = at = self._since.get(key, now)
                lacking.append((at, group))
        self._since, self._lacking, self.undecided = since, lacking, frozenset(undecided)

    def due_at(self) -> float | None:
        """Return when the next group will have lacked room for long enough; None when there is no such group."""
        after_s, now = self._settings.autoscaling_after_s, self._clock()
        return min((since + after_s for since in self._since.values() if since + after_s > now), default=None)

    def asked(self, asking: AbstractSet[GroupKey]) -> list[CapacityRequest]:
        """Return the requests for groups that have waited long enough, or that are `asking` already.

        The result is as of the last look: the request of a group that was deleted since then is removed after the next
        look.
        """
        before = self._clock() - self._settings.autoscaling_after_s
        due = [
            (group.key in asking, group)
            for since, group in self._lacking
            if since <= before or (asking and group.key in asking)
        ]
        self._asks = self._made_for(group for _, group in sorted(due, key=_order)) if due else {}
        return [ask for _, ask in self._asks.values()]

    def of(self, key: GroupKey) -> CapacityRequest | None:
        """Return the request for a group, as of the last look."""
        _, ask = self._asks.get(key, (None, None))
        return ask

    def _made_for(self, groups: Iterable[PodGroup]) -> dict[GroupKey, tuple[PodGroup, CapacityRequest]]:
        snapshot = self._cache.snapshot()
        chosen = capacity.within_quota(snapshot, groups, MOST)
        return {group.key: (group, self._ask(group, snapshot.nodes.smallest_device_mib)) for group in chosen}

    def _ask(self, group: PodGroup, device_mib: int) -> CapacityRequest:
        before, ask = self._asks.get(group.key, (None, None))
        if ask is not None and before is group:
            return ask
        shapes = capacity.shapes(capacity.lacking(group), device_mib)
        name = capacity.name_of(group, shapes, self._settings.autoscaling_class)
        return CapacityRequest(key=group.key, name=name, owner=self._owner(group), shapes=shapes)

    def _owner(self, group: PodGroup) -> RawObject:
        # The owners may define a PodGroup before its object exists.
        reference = group_reference(self._cache.groups, group.key)
        return reference if reference is not None and reference["uid"] else pod_reference(group.pending[0])


def _order(due: tuple[bool, PodGroup]) -> tuple[int, bool, float]:
    """Return the sort key of a request: an existing request is not replaced by one for a slightly older group."""
    is_asking, group = due
    return -group.priority, not is_asking, group.created_at
