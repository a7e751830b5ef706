"""Charges nodes with the devices that claims hold while no pod on the node is charged with them.

An allocated claim of one pod holds its devices from its allocation until the pod is bound, and again from the end of
the pod until the claim is released. A claim that pods share holds its devices once, as long as it is allocated or a
pod that uses it has a reservation. Queues pay by their pods.
"""

from collections.abc import Mapping

from app.cluster.changes import ChangeLog
from app.cluster.dra.device_claims import DeviceClaims
from app.cluster.dra.device_models import NO_DEMAND
from app.cluster.ledger.charge import Charge, Hold
from app.cluster.ledger.charges import Charges
from app.model.dra import ClaimKey, DeviceClaim
from app.model.names import NO_QUEUE, NodeName, PodUid
from app.model.pod import Pod
from app.model.resources import NOTHING, Resources


class ClaimCharges:
    """The charges of claims. Only other parts of the cache call the methods that change them."""

    def __init__(self, claims: DeviceClaims, charges: Charges, changes: ChangeLog) -> None:
        """Start without charges."""
        self._claims = claims
        self._charges = charges
        self._changes = changes
        self._placed: dict[ClaimKey, dict[PodUid, NodeName]] = {}
        """The pods with a place that share a claim."""
        self._shared_by: dict[PodUid, tuple[ClaimKey, ...]] = {}

    def claimed(self) -> Mapping[str, tuple[NodeName, int]]:
        """Return the shared claims that are in use, by key as text: the node, and the number of pods."""
        found = {str(key): (next(iter(pods.values())), len(pods)) for key, pods in self._placed.items()}
        unused = {str(key): (node, 0) for key, node in self._claims.shared().items() if key not in self._placed}
        return found | unused

    def follow_pod(self, uid: PodUid, pod: Pod | None, charge: Charge | None) -> None:
        """Charge again the claims that a pod shares: its place has changed."""
        if uid not in self._shared_by and (pod is None or not pod.claims):
            return
        node = None if charge is None else charge.node
        now = tuple(one.claim for one in pod.claims if one.claim is not None) if pod is not None and node else ()
        before = self._shared_by.get(uid, ())
        for key in before:
            pods = self._placed[key]
            del pods[uid]
            if not pods:
                del self._placed[key]
        for key in now:
            if node is not None:
                self._placed.setdefault(key, {})[uid] = node
        if now:
            self._shared_by[uid] = now
        else:
            self._shared_by.pop(uid, None)
        for key in dict.fromkeys((*before, *now)):
            self.follow(key)

    def follow(self, key: ClaimKey) -> None:
        """Charge a claim again: it has changed, or one of its pods."""
        name = PodUid(f"claim {key}")
        before, claim = self._charges.get(name), self._claims.claim(key)
        now = None if claim is None else self._charge(claim)
        if before == now:
            return
        self._charges.set(name, now)
        if before is not None and before.node is not None and before.frees(now):
            self._changes.relieve(before.node)
        self._changes.version += 1

    def _charge(self, claim: DeviceClaim) -> Charge | None:
        demand = self._claims.held_by(claim)
        node = claim.node if claim.allocated is not None else None
        node = node or next(iter(self._placed.get(claim.key, {}).values()), None)
        if node is None or demand == NO_DEMAND or self._claims.is_charged_to_owner(claim, node):
            return None
        is_leaving = claim.allocated is not None and self._claims.is_leaving(claim.key)
        return Charge(
            request=Resources(gpu_milli=demand.gpu_milli),
            node=node,
            queue=NO_QUEUE,
            hold=Hold.LEAVING if is_leaving else Hold.KEPT,
            scalars=demand.scalars,
            cost=NOTHING,
        )
