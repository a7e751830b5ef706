"""Keeps the reservations: which pod, which node, the state of the binding, and the time of expiry.

* Awaiting -> Promised when the pods that still hold its room are gone
* Promised -> Binding -> (the watch shows the pod bound, and the reservation is no longer needed)
* Promised -> Answered -> (the same) for a pod that kube-scheduler binds by itself
* Awaiting, Promised -> dropped when it expires, its node is refused, its pod is deleted or the gang cannot start
* Answered -> Promised when kube-scheduler sends its pod again
* Answered -> dropped when it expires, its node is refused or deleted, or its pod or group is deleted; never to make
  room for others
* Binding -> dropped only when the write has surely failed or the watch shows what was written
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from app.cluster.groups.groups import Place
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod

K = TypeVar("K")


class ReservationState(StrEnum):
    """The state of a reservation."""

    AWAITING = "Awaiting"
    """Pods that are being deleted still hold the reserved room."""
    PROMISED = "Promised"
    ANSWERED = "Answered"
    """The answer to filter names the node; kube-scheduler binds the pod without another request."""
    BINDING = "Binding"
    """Leeboard writes the binding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room on one node that is held for one pod."""

    pod: PodUid
    group: GroupKey
    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices of which the pod has a part there, by their names."""
    state: ReservationState
    expires_at: float
    """On the caller's monotonic clock. A binding never expires: the watch or a sure failure ends it."""
    refusals: int = 0
    """`ChangeLog.refusals` at the time of the reservation."""

    @property
    def is_revocable(self) -> bool:
        """Whether the reservation may be dropped to give its room to others: no write uses it yet."""
        return self.state in {ReservationState.AWAITING, ReservationState.PROMISED}

    @property
    def is_written(self) -> bool:
        """Whether Leeboard writes the binding: only the outcome of the write ends the reservation."""
        return self.state is ReservationState.BINDING

    def is_refused(self, before: Pod, pod: Pod) -> bool:
        """Whether this change shows that kube-scheduler's own filters refuse every node for a pod with a reservation.

        A refusal of a pod without a reservation has no meaning: kube-scheduler refuses all pods of a full cluster, and
        pods that wait until other pods are gone. A refusal counts when it is later than the reservation: a new
        condition, or a nomination that is cleared.
        """
        if not pod.said.by_scheduler or self.state not in {ReservationState.PROMISED, ReservationState.ANSWERED}:
            return False
        cleared = before.nominated == self.node and pod.nominated is None
        return cleared or not before.said.by_scheduler

    def __repr__(self) -> str:
        return f"<{self.state.value} {self.pod} on {self.node}>"


class Reservations:
    """All reservations, by pod. Only `ClusterCache` and `Promises` call `put` and `drop`, which change a charge too."""

    def __init__(self) -> None:
        """Start empty."""
        self._held: dict[PodUid, Reservation] = {}
        self._by_group: dict[GroupKey, dict[PodUid, None]] = {}
        self._by_node: dict[NodeName, dict[PodUid, None]] = {}
        self._failing: dict[PodUid, str] = {}
        self._asked: set[PodUid] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._held.values())

    def get(self, pod: PodUid) -> Reservation | None:
        """Return the pod's reservation; None when nothing is reserved for the pod."""
        return self._held.get(pod)

    def promised(self, pod: PodUid) -> Reservation | None:
        """Return the reservation by which the pod can be bound; None while its room is not free yet."""
        held = self._held.get(pod)
        return None if held is None or held.state is ReservationState.AWAITING else held

    def place(self, pod: Pod) -> Place | None:
        """Return the node that is reserved, binding or bound for the pod; None when there is none."""
        if pod.node is not None:
            return Place(pod.node, pod.devices)
        held = self._held.get(pod.uid)
        return Place(held.node, held.devices) if held else None

    def of_group(self, group: GroupKey) -> list[Reservation]:
        """Return the reservations of the members of the group."""
        return [self._held[pod] for pod in self._by_group.get(group, ())]

    def on_node(self, node: NodeName) -> list[Reservation]:
        """Return the reservations on the node."""
        return [self._held[pod] for pod in self._by_node.get(node, ())]

    def put(self, reservation: Reservation) -> None:
        """Add or replace the pod's reservation."""
        self.drop(reservation.pod)
        self._held[reservation.pod] = reservation
        self._by_group.setdefault(reservation.group, {})[reservation.pod] = None
        self._by_node.setdefault(reservation.node, {})[reservation.pod] = None

    def drop(self, pod: PodUid) -> Reservation | None:
        """Remove and return the pod's reservation."""
        dropped = self._held.pop(pod, None)
        if dropped is not None:
            self._failing.pop(pod, None)
            self._asked.discard(pod)
            _discard(self._by_group, dropped.group, pod)
            _discard(self._by_node, dropped.node, pod)
        return dropped

    def expired(self, now: float) -> list[Reservation]:
        """Return the reservations that have expired, also those that await room."""
        return [one for one in self._held.values() if not one.is_written and one.expires_at <= now]

    def binding(self, pod: PodUid) -> None:
        """Mark that the binding is being written: from now on only a sure failure or the watch ends the reservation."""
        self._renew(pod, state=ReservationState.BINDING)

    def note_failure(self, pod: PodUid, error: str) -> bool:
        """Store why the last try to write a binding failed, which is retried; return whether the reason is new."""
        if pod not in self._held or self._failing.get(pod) == error:
            return False
        self._failing[pod] = error
        return True

    def failing(self) -> Iterator[tuple[GroupKey, str]]:
        """Yield the groups with bindings that are being retried, and the reason of the last failure."""
        return ((self._held[pod].group, error) for pod, error in self._failing.items())

    def answered(self, pod: PodUid, expires_at: float) -> None:
        """Mark that kube-scheduler binds the pod by itself from now on; the reservation expires after this time."""
        self._renew(pod, state=ReservationState.ANSWERED, expires_at=expires_at)

    def asked_again(self, pod: PodUid) -> None:
        """Mark that kube-scheduler does not bind the pod: it sends the pod again."""
        self._renew(pod, state=ReservationState.PROMISED)

    def note_asked(self, pod: PodUid) -> None:
        """Mark that kube-scheduler has sent the pod."""
        if pod in self._held:
            self._asked.add(pod)

    def is_asked(self, pod: PodUid) -> bool:
        """Return whether kube-scheduler has sent the pod since the reservation was made."""
        return pod in self._asked

    def extend(self, pod: PodUid, expires_at: float) -> None:
        """Extend the reservation in its present state, because kube-scheduler has just sent the pod."""
        self._renew(pod, expires_at=expires_at)

    def _renew(self, pod: PodUid, **changed: Any) -> None:
        """Change a reservation, which keeps its group and its node. It becomes the last one of all."""
        self._failing.pop(pod, None)
        self._held[pod] = replace(self._held.pop(pod), **changed)


def _discard(pods: dict[K, dict[PodUid, None]], key: K, pod: PodUid) -> None:
    pods[key].pop(pod, None)
    if not pods[key]:
        del pods[key]
