"""Charges nodes with the devices that claims hold and that no pod alone is charged with, and queues for shared claims.

An allocated claim of one pod holds its devices from its allocation until the pod is bound, and again from the end of
the pod until the claim is released. A claim that pods share holds its devices once, as long as it is allocated or a
pod that uses it has a reservation. Each queue pays for it once, whatever number of its pods use it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from app.cluster.changes import ChangeLog
from app.cluster.dra.device_claims import DeviceClaims
from app.cluster.dra.device_models import NO_DEMAND
from app.cluster.ledger.charge import Charge, Hold
from app.cluster.ledger.charges import Charges
from app.model.dra import ClaimKey, DeviceClaim
from app.model.names import NO_QUEUE, NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.resources import NOTHING, Resources
from app.model.snapshot import ClaimUsers


class _User(NamedTuple):
    """What decides who pays for the claims that a pod shares."""

    queue: QueueName | None
    is_placed: bool
    preemptible: bool
    hold: Hold
    pays: bool


@dataclass(slots=True)
class _Use:
    """Who uses one claim that pods share."""

    placed: dict[PodUid, NodeName] = field(default_factory=dict)
    holds: Counter[Hold] = field(default_factory=Counter)
    """How the placed pods hold their places."""
    payers: dict[QueueName | None, Counter[_User]] = field(default_factory=dict)
    """The users by queue; those outside all queues by None. Alike users are counted together."""


class ClaimCharges:
    """The charges of claims. Only other parts of the cache call the methods that change them."""

    def __init__(self, claims: DeviceClaims, charges: Charges, changes: ChangeLog) -> None:
        """Start without charges."""
        self._claims = claims
        self._charges = charges
        self._changes = changes
        self._uses: dict[ClaimKey, _Use] = {}
        self._users: dict[PodUid, tuple[_User, NodeName | None, tuple[ClaimKey, ...]]] = {}
        self._claimed: Mapping[ClaimKey, tuple[NodeName, int]] | None = None
        self._claim_users: dict[tuple[QueueName, ClaimKey], ClaimUsers] = {}
        self._frozen_users: Mapping[tuple[QueueName, ClaimKey], ClaimUsers] | None = None

    # Queries ----------------------------------------------------------------------------------------------------------

    def claimed(self) -> Mapping[ClaimKey, tuple[NodeName, int]]:
        """Return the shared claims that are in use or allocated: the node, and the number of pods with a place."""
        if self._claimed is None:
            found = {key: (node, 0) for key, node in self._claims.shared().items()}
            in_use = ((key, use.placed) for key, use in self._uses.items() if use.placed)
            found |= {key: (next(iter(placed.values())), len(placed)) for key, placed in in_use}
            self._claimed = MappingProxyType(found)
        return self._claimed

    def users(self) -> Mapping[tuple[QueueName, ClaimKey], ClaimUsers]:
        """Return how many pods of each queue use each shared claim."""
        if self._frozen_users is None:
            self._frozen_users = MappingProxyType(dict(self._claim_users))
        return self._frozen_users

    def awaited(self, uids: Iterable[PodUid]) -> list[Charge]:
        """Return the charges of nodes with the claims of these pods that no pod holds yet: all their users wait."""
        found = (self._charges.get(_on_node(key)) for key in self._of(uids))
        return [charge for charge in found if charge is not None and charge.hold is Hold.AWAITED]

    def awaited_payments(self, uids: Iterable[PodUid]) -> Iterator[tuple[PodUid, Charge]]:
        """Return the charges of queues for such claims of these pods, by name."""
        for key in self._of(uids):
            for queue in self._uses[key].payers:
                charge = self._charges.get(_of_queue(key, queue))
                if charge is not None and charge.node is not None and charge.hold is Hold.AWAITED:
                    yield _of_queue(key, queue), charge

    def are_last(self, key: ClaimKey, uids: Collection[PodUid]) -> bool:
        """Return whether every other pod that holds a claim is being deleted."""
        use = self._uses.get(key)
        return use is not None and all(uid in uids or self._users[uid][0].hold is Hold.LEAVING for uid in use.placed)

    def _of(self, uids: Iterable[PodUid]) -> Iterable[ClaimKey]:
        return dict.fromkeys(key for uid in uids if uid in self._users for key in self._users[uid][-1])

    # Changes ----------------------------------------------------------------------------------------------------------

    def follow_pod(self, uid: PodUid, pod: Pod | None, charge: Charge | None) -> None:
        """Charge again the claims that a pod shares: its place has changed, or who pays for it."""
        if uid not in self._users and (pod is None or not pod.claims):
            return
        before, now = self._users.pop(uid, None), None
        if pod is not None and pod.claims and charge is not None:
            is_placed, pays = charge.node is not None, not pod.self_placed
            user = _User(charge.queue, is_placed, charge.preemptible, charge.hold, pays)
            now = self._users[uid] = user, charge.node, tuple(claim.key for claim in pod.claims)
        if before == now:
            return
        changed: dict[ClaimKey, dict[QueueName | None, None]] = {}
        if before is not None:
            user, _, keys = before
            for key in keys:
                self._leave(key, uid, user)
                changed.setdefault(key, {})[user.queue] = None
        if now is not None:
            user, node, keys = now
            for key in keys:
                self._join(key, uid, user, node)
                changed.setdefault(key, {})[user.queue] = None
        for key, queues in changed.items():
            self._follow_node(key)
            self._follow_queues(key, queues)

    def _join(self, key: ClaimKey, uid: PodUid, user: _User, node: NodeName | None) -> None:
        use = self._uses.setdefault(key, _Use())
        if node is not None:
            use.placed[uid] = node
            use.holds[user.hold] += 1
        use.payers.setdefault(user.queue, Counter())[user] += 1

    def _leave(self, key: ClaimKey, uid: PodUid, user: _User) -> None:
        use = self._uses[key]
        if use.placed.pop(uid, None) is not None:
            use.holds -= Counter({user.hold: 1})
        use.payers[user.queue] -= Counter({user: 1})
        if not use.payers[user.queue]:
            del use.payers[user.queue]
        if not use.payers:
            del self._uses[key]

    def follow(self, key: ClaimKey) -> None:
        """Charge a claim again: it has changed, or one of its pods."""
        self._follow_node(key)
        use = self._uses.get(key)
        self._follow_queues(key, () if use is None else use.payers)

    def _follow_queues(self, key: ClaimKey, queues: Iterable[QueueName | None]) -> None:
        for queue in queues:
            if queue is not None:
                self._follow_queue(key, queue)
        # Pods outside all queues take from what queues divide. What a queue pays for is not taken.
        self._follow_outside(key)

    def _follow_node(self, key: ClaimKey) -> None:
        claim = self._claims.claim(key)
        self._claimed = None
        self._set(_on_node(key), None if claim is None else self._of_node(claim))

    def _of_node(self, claim: DeviceClaim) -> Charge | None:
        demand, use = self._claims.held_by(claim), self._uses.get(claim.key)
        node = claim.node if claim.allocated is not None else None
        node = node or (next(iter(use.placed.values()), None) if use is not None else None)
        if node is None or demand == NO_DEMAND or self._claims.is_charged_to_owner(claim, node):
            return None
        return Charge(
            request=Resources(gpu_milli=demand.gpu_milli),
            node=node,
            queue=NO_QUEUE,
            hold=self._hold(claim, use),
            scalars=demand.scalars,
            cost=NOTHING,
        )

    def _hold(self, claim: DeviceClaim, use: _Use | None) -> Hold:
        hold = _alike(use.holds) if use is not None and use.placed else None
        if hold is None:
            # It is released soon when no pod needs it any more.
            is_leaving = claim.allocated is not None and self._claims.is_leaving(claim.key)
            return Hold.LEAVING if is_leaving else Hold.KEPT
        return Hold.KEPT if claim.allocated is not None and hold is Hold.AWAITED else hold

    def _follow_queue(self, key: ClaimKey, queue: QueueName) -> None:
        use = self._uses.get(key)
        users = Counter[_User]() if use is None else use.payers.get(queue, Counter[_User]())
        counts = Counter[_User]({user: count for user, count in users.items() if user.pays})
        placed = {user: count for user, count in counts.items() if user.is_placed}
        firm = sum(count for user, count in placed.items() if not user.preemptible)
        self._frozen_users = None
        self._claim_users[queue, key] = ClaimUsers(sum(placed.values()), firm, counts.total())
        if not counts:
            del self._claim_users[queue, key]
        cost = self._cost(key)
        if not counts or cost == NOTHING:
            self._set(_of_queue(key, queue), None)
            return
        is_preemptible = all(user.preemptible for user in placed or counts)
        node = next(iter(use.placed.values())) if use is not None and placed else None
        hold = _alike(Counter(user.hold for user in placed)) or Hold.KEPT
        payment = Charge(NOTHING, node, queue, is_preemptible, hold, cost=cost, claimed_milli=cost.gpu_milli)
        self._set(_of_queue(key, queue), payment)

    def _follow_outside(self, key: ClaimKey) -> None:
        use, now = self._uses.get(key), None
        if use is not None and any(user.is_placed and user.pays for user in use.payers.get(None, ())):
            paid = (self._charges.get(_of_queue(key, queue)) for queue in use.payers if queue is not None)
            if not any(charge is not None and charge.node is not None for charge in paid):
                now = Charge(NOTHING, next(iter(use.placed.values())), None, cost=self._cost(key))
        self._set(_of_queue(key, None), now)

    def _cost(self, key: ClaimKey) -> Resources:
        claim = self._claims.claim(key)
        return NOTHING if claim is None else Resources(gpu_milli=self._claims.held_by(claim).cost_milli)

    def _set(self, name: PodUid, now: Charge | None) -> None:
        before = self._charges.get(name)
        if before == now:
            return
        self._charges.set(name, now)
        if before is not None and before.node is not None and before.frees(now):
            self._changes.relieve(before.node)
        self._changes.version += 1


def _alike(holds: Counter[Hold]) -> Hold | None:
    """Return how a claim is held of which pods hold their places in these ways; None when there are none."""
    return next(iter(holds)) if len(holds) == 1 else Hold.KEPT if holds else None


def _on_node(key: ClaimKey) -> PodUid:
    # No uid of a pod contains a space.
    return PodUid(f"claim {key}")


def _of_queue(key: ClaimKey, queue: QueueName | None) -> PodUid:
    return PodUid(f"claim {key} of {queue}" if queue is not None else f"claim {key} outside")
