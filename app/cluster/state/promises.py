"""Reserves nodes for pods: what is reserved for a pod is charged at once."""

from app.cluster.changes import ChangeLog
from app.cluster.groups.groups import Place
from app.cluster.groups.membership import Membership
from app.cluster.ledger.reservations import Reservation, Reservations, ReservationState
from app.cluster.state.pods import KnownPods
from app.cluster.state.settlement import Settlement
from app.model.names import NodeName, PodUid


class Promises:
    """Makes, moves and drops reservations, which `Reservations` keeps."""

    def __init__(
        self,
        changes: ChangeLog,
        pods: KnownPods,
        groups: Membership,
        reservations: Reservations,
        settlement: Settlement,
    ) -> None:
        self._changes = changes
        self._pods = pods
        self._groups = groups
        self._reservations = reservations
        self._settlement = settlement

    def make(self, uid: PodUid, node: NodeName, devices: tuple[str, ...] = (), *, expires_at: float) -> None:
        """Reserve a node for a pod, and parts of shared GPUs there; an earlier reservation of the pod is replaced."""
        self._hold(uid, Place(node, devices), ReservationState.PROMISED, expires_at)

    def move(self, uid: PodUid, node: NodeName, *, expires_at: float) -> None:
        """Move the reservation of a pod to another node.

        The freed room counts as a relevant change only if a plan may have refused a pod since the reservation was made:
        pods that were refused earlier did not fit into this room. Otherwise each move would cause a plan of the whole
        backlog.
        """
        before, relief = self._reservations.get(uid), self._changes.relief
        self.make(uid, node, expires_at=expires_at)
        if before is not None and before.refusals == self._changes.refusals:
            self._changes.relief = relief

    def await_release(self, uid: PodUid, node: NodeName, devices: tuple[str, ...] = (), *, expires_at: float) -> None:
        """Reserve room on a node that other pods still hold; call `fulfil` when `room.suffices`.

        The free amount of the node is negative until then, unless those pods free more than the pod needs. Shared GPUs
        must be made ready too (`gpus.not_ready`).
        """
        self._hold(uid, Place(node, devices), ReservationState.AWAITING, expires_at)

    def fulfil(self, uid: PodUid) -> None:
        """Turn an awaiting reservation into a promised one: its room is free now."""
        held = self._reservations.get(uid)
        if held is not None and held.state is ReservationState.AWAITING:
            self._hold(uid, Place(held.node, held.devices), ReservationState.PROMISED, held.expires_at)

    def drop(self, uid: PodUid) -> None:
        """Drop what is reserved for a pod; the caller is sure that no binding was or will be written."""
        self._reservations.drop(uid)
        self._settlement.settle(uid)

    def note_failed_bind(self, uid: PodUid, error: str) -> None:
        """Store why the last try to bind a pod failed; the binding is retried."""
        pod = self._pods.get(uid)
        if pod is not None and self._reservations.note_failure(uid, error):
            self._groups.touched.mark(pod.group)

    def _hold(self, uid: PodUid, at: Place, state: ReservationState, expires_at: float) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            raise KeyError(uid)
        held = Reservation(
            pod=uid,
            group=pod.group,
            node=at.node,
            devices=at.devices,
            state=state,
            expires_at=expires_at,
            refusals=self._changes.refusals,
        )
        self._reservations.put(held)
        self._settlement.settle(uid)
