"""Checks whether an older plan may still be carried out: places, room, quota and victims.

The check is never stricter than the planner. In a busy cluster a plan is always late: it is still carried out, unless
other pods really took what the plan counted on.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from app.cluster.ledger.charge import NO_LOAD, Hold, Load
from app.cluster.state.cache import ClusterCache
from app.control.cycle.batches import PlanBatch
from app.model.decision import Action, Eviction, Placement, Start
from app.model.dra import ClaimKey
from app.model.names import NodeName, PodUid
from app.model.pod import ResourceClaim, claims_of
from app.model.podgroup import PodGroup
from app.model.resources import GPU_MILLI, NOTHING, Resources
from app.model.snapshot import PART, Snapshot, parts_of
from app.scheduling.placement import fit
from app.scheduling.queues.quota import QueueLedger


class Recheck:
    """Checks one plan against the current cluster; an admitted batch must be carried out before the next check."""

    def __init__(self, cache: ClusterCache) -> None:
        """Look at the cluster as it is; `_ledger` is changed by `admits`."""
        self._cache = cache
        self._snapshot: Snapshot = cache.snapshot()
        self._ledger = QueueLedger(self._snapshot)

    def admits(self, deal: PlanBatch) -> bool:
        """Whether the batch is still valid: its pods wait and may start, and nodes have room, now or later."""
        if not self.may_leave(deal) or not all(map(self._may_start, deal.starts)):
            return False
        if not self._has_room(deal):
            return False
        for eviction in deal.evictions:
            self._ledger.refund(self._snapshot.running[eviction.group], *self._cost([(eviction.pod, eviction.node)]))
        return all(map(self._charge, deal.starts))

    def may_leave(self, deal: PlanBatch) -> bool:
        """Whether the victims are still where the plan saw them, and still qualify as victims."""
        return all(map(self._may_be_evicted, deal.evictions))

    def _may_be_evicted(self, eviction: Eviction) -> bool:
        group = self._snapshot.running.get(eviction.group)
        if group is None or not self._still_there(eviction):
            return False
        # A stale gang may have become complete, or the end of a member may have turned out to be a success.
        return group.stale_since is not None if eviction.action is Action.EVICT_STALE else group.preemptible

    def _still_there(self, eviction: Eviction) -> bool:
        """Whether a victim is where the plan saw it, and is neither terminating nor just being bound."""
        pod, held = self._cache.pods.get(eviction.pod), self._cache.reservations.get(eviction.pod)
        if pod is None or pod.deleting or (held is not None and not held.is_revocable):
            return False
        return eviction.node == (pod.node or (held.node if held else None))

    def _may_start(self, start: Start) -> bool:
        group = self._group(start)
        return group is not None and all(self._still_waits(placement.pod) for placement in start.placements)

    def _group(self, start: Start) -> PodGroup | None:
        group = self._snapshot.groups.get(start.group)
        return None if group is None or group.refusal is not None else group

    def _still_waits(self, uid: PodUid) -> bool:
        pod = self._cache.pods.get(uid)
        return pod is not None and pod.node is None and not pod.deleting and not self._cache.reservations.get(uid)

    def _has_room(self, deal: PlanBatch) -> bool:
        places = [placement for start in deal.starts for placement in start.placements]
        if not all(is_open(self._cache, placement.pod, placement.node) for placement in places):
            return False
        if not self._has_parts(deal, places):
            return False
        ended, claimed = self._ended_claims(deal), self._snapshot.claimed
        wanted = self._summed(
            ((placement.node, placement.pod) for placement in places),
            lambda key: key not in claimed or key in ended,
        )
        for node, devices in self._opened(places, deal).items():
            wanted[node] = _with_devices(wanted[node], devices)
        room = self._cache.room
        if not deal.waits:
            return all(room.is_free(node, load) for node, load in wanted.items())
        freed = self._summed(((eviction.node, eviction.pod) for eviction in deal.evictions), ended.__contains__)
        for node, load in freed.items():
            kept = sum(hold is Hold.KEPT for hold in self._whole_again(node, deal).values())
            freed[node] = _with_devices(load, kept - self._unusable(node, deal))
        return all(room.is_free_later(node, load, freed.get(node, NO_LOAD)) for node, load in wanted.items())

    def _ended_claims(self, deal: PlanBatch) -> AbstractSet[ClaimKey]:
        """Return the claims of which the last users are evicted."""
        gone = dict.fromkeys(eviction.pod for eviction in deal.evictions)
        pods = filter(None, map(self._cache.pods.get, gone))
        return {claim.key for claim in claims_of(pods) if self._cache.claim_charges.are_last(claim.key, gone)}

    def _has_parts(self, deal: PlanBatch, places: Collection[Placement]) -> bool:
        """Whether the shared GPUs still have the free parts that the plan counts on, now or after evictions."""
        wanted = Counter[tuple[NodeName, str]]()
        for place in places:
            pod = self._cache.pods.get(place.pod)
            if pod is not None and pod.sharing is not None:
                parts = parts_of(pod.sharing, self._cache.gpus.size(place.node)[0])
                wanted.update({(place.node, name): parts for name in place.devices})
        victims = {eviction.pod for eviction in deal.evictions}
        return all(self._takes(node, name, parts, victims, deal) for (node, name), parts in wanted.items())

    def _takes(self, node: NodeName, name: str, parts: int, victims: Container[PodUid], deal: PlanBatch) -> bool:
        if self._cache.gpus.find(node, name) is None:
            return parts <= self._cache.gpus.size(node)[0] * PART
        free = self._cache.room.parts_free(node, name, without=victims, later=deal.waits)
        return free is not None and parts <= free

    def _opened(self, places: Iterable[Placement], deal: PlanBatch) -> Mapping[NodeName, int]:
        """Return how many whole devices are opened per node, with devices that all their present pods leave."""
        names = dict.fromkeys((place.node, name) for place in places for name in place.devices)
        return Counter(node for node, name in names if self._is_opened(node, name, deal))

    def _is_opened(self, node: NodeName, name: str, deal: PlanBatch) -> bool:
        return self._cache.gpus.find(node, name) is None or (deal.waits and name in self._whole_again(node, deal))

    def _whole_again(self, node: NodeName, deal: PlanBatch) -> Mapping[str, Hold]:
        return self._cache.room.whole_again(node, {eviction.pod for eviction in deal.evictions})

    def _unusable(self, node: NodeName, deal: PlanBatch) -> int:
        """Return how many GPUs of the pods to be evicted accept no work after them."""
        unusable = self._cache.gpus.on(node).unusable
        return sum(unusable.get(eviction.pod, 0) for eviction in deal.evictions if eviction.node == node)

    def _charge(self, start: Start) -> bool:
        """Charge a start to its queue; return False if other pods have used up the quota since."""
        group = self._group(start)
        cost = self._cost((placement.pod, placement.node) for placement in start.placements)
        if group is None or self._ledger.check(group, *cost) is not None:
            return False
        self._ledger.charge(group, *cost)
        return True

    def _cost(self, places: Iterable[tuple[PodUid, NodeName]]) -> tuple[Resources, Sequence[ResourceClaim]]:
        """Return what these pods' queue is charged for these places, and the claims that the pods share."""
        found = [(pod, node) for uid, node in places if (pod := self._cache.pods.get(uid)) is not None]
        own = sum((pod.charge(self._cache.gpus.size(node)[0]) for pod, node in found), NOTHING)
        return own, claims_of(pod for pod, _ in found)

    def _summed(
        self, places: Iterable[tuple[NodeName, PodUid]], counts: Callable[[ClaimKey], bool]
    ) -> dict[NodeName, Load]:
        """Return the load of these pods by node, with the shared claims that count: once each."""
        sums, counted = dict[NodeName, Load](), set[ClaimKey]()
        for node, uid in places:
            pod, load = self._cache.pods.get(uid), sums.get(node, NO_LOAD)
            if pod is None:
                continue
            claims = [claim for claim in pod.claims if claim.key not in counted and counts(claim.key)]
            counted.update(claim.key for claim in claims)
            sums[node] = load.plus(pod, claims)
        return sums


def is_open(cache: ClusterCache, uid: PodUid, node: NodeName) -> bool:
    """Whether a node still accepts this pod, apart from room: it may have been cordoned, tainted or relabelled."""
    pod, table = cache.pods.get(uid), cache.snapshots.table()
    column = table.index.get(node)
    return pod is not None and column is not None and fit.takes(table.nodes[column], pod.constraint)


def _with_devices(load: Load, devices: int) -> Load:
    return load._replace(request=load.request + Resources(gpu_milli=GPU_MILLI * devices))
