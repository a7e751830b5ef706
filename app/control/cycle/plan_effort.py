"""Says whether a decision takes so little work that the event loop may make it at once."""

from collections.abc import Mapping, Sequence

from app.cluster.state.cache import ClusterCache
from app.control.cycle.kept_room import KeptRoom
from app.model.decision import Plan
from app.model.names import GroupKey, QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.queue import Queue
from app.model.resources import Amounts
from app.model.snapshot import NodeTable, Snapshot
from app.model.topology import Topology
from app.scheduling.placement import effort
from app.scheduling.placement.effort import FEW_GROUPS
from app.scheduling.planner.planner import judges_all


class PlanEffort:
    """The amount of work of a plan. Planning reports what the last plans have found out."""

    def __init__(self, cache: ClusterCache, kept: KeptRoom) -> None:
        """Start with nothing found out."""
        self._cache = cache
        self._kept = kept
        # Of the last plan that found out for all waiting groups whether they can run at all.
        self._judged: tuple[NodeTable, Mapping[QueueName, Queue], Mapping[str, Topology], Amounts | None] | None = None

    def is_small_beside(self, groups: Sequence[PodGroup], waiting: Mapping[GroupKey, PodGroup]) -> bool:
        """Whether a plan for these groups is little work, with other waiting groups that it may have to judge."""
        if len(groups) < len(waiting) and judges_all(groups, len(waiting)) and not self._is_judged():
            return len(waiting) <= FEW_GROUPS and self.is_small(list(waiting.values()))
        return self.is_small(groups)

    def is_small(self, groups: Sequence[PodGroup]) -> bool:
        """Whether planning these groups takes so little work that the event loop may do it."""
        table, topologies = self._cache.snapshots.table(), self._cache.topologies.by_name()
        return effort.is_small(
            groups,
            table,
            topologies,
            neighbours=self._cache.labelled.number,
            queues=len(self._cache.queues.tree()),
            keeps=self._kept.aged is not None,
        )

    def can_look_at(self, pod: Pod, constraints: Sequence[TopologyConstraint] = ()) -> bool:
        """Whether finding the nodes for one pod takes so little work that the event loop may do it."""
        table, topologies, neighbours = (
            self._cache.snapshots.table(),
            self._cache.topologies.by_name(),
            self._cache.labelled.number,
        )
        return effort.of_one(pod, constraints, table, topologies, neighbours=neighbours) <= effort.MOST_AT_ONCE

    def _is_judged(self) -> bool:
        """Whether it is known of all waiting groups if they can run at all; if not, a plan of some finds out."""
        known, cache = self._judged, self._cache
        if known is None or known[0] is not cache.snapshots.table():
            return False
        return (
            known[1] is cache.queues.tree()
            and known[2] is cache.topologies.by_name()
            and known[3] is cache.snapshots.residents()
        )

    def note_plan(self, plan: Plan, snapshot: Snapshot) -> None:
        """Note what a plan has found out on this snapshot."""
        if plan.judges_all:
            self._judged = snapshot.nodes, snapshot.queues, snapshot.topologies, snapshot.residents
