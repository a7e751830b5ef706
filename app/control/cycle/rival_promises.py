"""Finds reservations of single pods that keep a partially bound gang from completing, and drops them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.reserver import Reserver
from app.model.names import GroupKey, NodeName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan_some
from app.scheduling.policy import Policy
from app.scheduling.preemption.victims import charge_at
from app.scheduling.queues.quota import QueueLedger


@dataclass(frozen=True, slots=True)
class TornGang:
    """A gang that is partially bound, and the single pods with reservations."""

    gang: PodGroup
    snapshot: Snapshot
    alone: Sequence[tuple[Pod, NodeName]]


def rivals_of(torn: Iterable[TornGang], policy: Policy) -> list[tuple[Pod, NodeName]]:
    """Return the pods whose reservations, if dropped, complete one of the gangs.

    A reservation within the deserved share of another queue is not dropped.
    """
    found: list[tuple[Pod, NodeName]] = []
    for one in torn:
        ledger = QueueLedger(one.snapshot)
        rivals = [(pod, node) for pod, node in one.alone if not _is_owed(pod, node, one.gang, one.snapshot, ledger)]
        starts = plan_some(one.snapshot.without(rivals), (one.gang.key,), policy).starts if rivals else ()
        nodes = {placement.node for start in starts for placement in start.placements}
        found += [(pod, node) for pod, node in rivals if node in nodes]
    return found


def _is_owed(pod: Pod, node: NodeName, gang: PodGroup, snapshot: Snapshot, ledger: QueueLedger) -> bool:
    """Whether the queue of a placed pod would be below its deserved share without the pod, beside the gang's queue."""
    group, charge = snapshot.running.get(pod.group), charge_at(snapshot, Placed(pod=pod, node=node))
    if group is None:
        return False
    ledger.refund(group, charge, pod.claims)
    is_below = ledger.is_below_deserved(group, charge, beside=gang.queue)
    ledger.charge(group, charge, pod.claims)
    return is_below


class RivalPromises:
    """The reservations that block partially bound gangs. Only the event loop calls in here."""

    def __init__(self, cache: ClusterCache, reserver: Reserver) -> None:
        """Hold the collaborators."""
        self._cache = cache
        self._reserver = reserver

    def torn(self, keys: frozenset[GroupKey]) -> Sequence[TornGang]:
        """Return the gangs that are partially bound, each with the single pods whose reservations may block it."""
        if not keys:
            return ()
        snapshot = self._cache.snapshot().apart()
        gangs = [snapshot.groups[key] for key in sorted(keys & snapshot.groups.keys())]
        return [TornGang(gang, snapshot, self._reserver.of_pods_alone(up_to=gang.priority)) for gang in gangs]

    def give_up(self, rivals: Collection[tuple[Pod, NodeName]]) -> bool:
        """Drop reservations that block partially bound gangs; return whether any was dropped.

        A pod that loses its reservation is planned again at once, after the gang.
        """
        taken = False
        for pod, node in rivals:
            held = self._cache.reservations.get(pod.uid)
            if held is not None and held.state is ReservationState.PROMISED and held.node == node:
                self._reserver.give_up(pod.uid)
                taken = True
        return taken
