"""Remembers what we promised: which pod, which node, how far the binding is, and until when it holds.

Awaiting -> Promised when the pods that still hold its room have left
Promised -> Binding -> (the watch shows the pod bound, and the reservation has done its work)
Promised -> Answered -> (the same) for a pod that kube-scheduler binds by itself
Awaiting, Promised -> dropped when it expires, its node is refused, its pod goes or the gang cannot start
Answered -> Promised when kube-scheduler asks about its pod again
Answered -> dropped when it expires, its node is refused or goes, its pod or group does: never to make room for others
Binding  -> dropped only when the write has surely failed or the watch shows what was written
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from app.cluster.groups.groups import Place
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod

K = TypeVar("K")


class ReservationState(StrEnum):
    """How far a reservation is."""

    AWAITING = "Awaiting"
    """Its node's room is still held by pods that are leaving."""
    PROMISED = "Promised"
    ANSWERED = "Answered"
    """Filter has named the node, and kube-scheduler binds the pod without asking again."""
    BINDING = "Binding"
    """We write the binding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Space held for one pod on one node."""

    pod: PodUid
    group: GroupKey
    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices it has a part of there, by their names."""
    state: ReservationState
    expires_at: float
    """On the caller's monotonic clock; a Binding never expires: it ends with the watch's echo or a sure failure."""
    refusals: int = 0
    """`Changes.refusals` as it was made."""
    is_asked: bool = False
    """kube-scheduler has asked about the pod since."""

    @property
    def is_revocable(self) -> bool:
        """Whether it may still be taken back to give the room to others, since nobody writes anything for it yet."""
        return self.state in {ReservationState.AWAITING, ReservationState.PROMISED}

    @property
    def is_written(self) -> bool:
        """Whether a write of ours is on its way, of which only its outcome is the end."""
        return self.state is ReservationState.BINDING

    def is_refused(self, before: Pod, pod: Pod) -> bool:
        """Whether this change shows that kube-scheduler's own filters refuse every node for a pod that we see room for.

        A refusal while nothing is promised tells nothing new: kube-scheduler refuses all pods of a full cluster, and
        those that wait for others to leave. It counts when it comes after our promise: as a new condition, or by the
        nomination being cleared.
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
        self._by_group: dict[GroupKey, set[PodUid]] = {}
        self._by_node: dict[NodeName, set[PodUid]] = {}
        self._failing: dict[PodUid, str] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._held.values())

    def get(self, pod: PodUid) -> Reservation | None:
        """Return the pod's reservation, None when nothing is held for it."""
        return self._held.get(pod)

    def promised(self, pod: PodUid) -> Reservation | None:
        """Return what the pod can be bound by: room that is still being freed is none that it can be woken for."""
        held = self._held.get(pod)
        return None if held is None or held.state is ReservationState.AWAITING else held

    def place(self, pod: Pod) -> Place | None:
        """Return where a pod has a place: promised, binding or bound; None when it has none."""
        if pod.node is not None:
            return Place(pod.node, pod.devices)
        held = self._held.get(pod.uid)
        return Place(held.node, held.devices) if held else None

    def of_group(self, group: GroupKey) -> list[Reservation]:
        """Return what is held for members of the group."""
        return [self._held[pod] for pod in self._by_group.get(group, ())]

    def on_node(self, node: NodeName) -> list[Reservation]:
        """Return what is held on the node."""
        return [self._held[pod] for pod in self._by_node.get(node, ())]

    def put(self, reservation: Reservation) -> None:
        """Add or replace the pod's reservation."""
        self.drop(reservation.pod)
        self._held[reservation.pod] = reservation
        self._by_group.setdefault(reservation.group, set()).add(reservation.pod)
        self._by_node.setdefault(reservation.node, set()).add(reservation.pod)

    def drop(self, pod: PodUid) -> Reservation | None:
        """Remove and return the pod's reservation."""
        dropped = self._held.pop(pod, None)
        self._failing.pop(pod, None)
        if dropped is not None:
            _discard(self._by_group, dropped.group, pod)
            _discard(self._by_node, dropped.node, pod)
        return dropped

    def expired(self, now: float) -> list[Reservation]:
        """Return the promises whose time is over, those that await room among them."""
        return [one for one in self._held.values() if not one.is_written and one.expires_at <= now]

    def binding(self, pod: PodUid) -> None:
        """Mark that the write is on its way: from here on only a sure failure or the watch ends it."""
        self.put(replace(self._held[pod], state=ReservationState.BINDING))

    def note_failure(self, pod: PodUid, error: str) -> bool:
        """Note what the last try to write a binding failed by, which is tried again; return whether that is news."""
        if pod not in self._held or self._failing.get(pod) == error:
            return False
        self._failing[pod] = error
        return True

    def failing(self) -> Iterator[tuple[GroupKey, str]]:
        """Yield the groups with bindings that are being tried again, and what the last try failed by."""
        return ((self._held[pod].group, error) for pod, error in self._failing.items())

    def answered(self, pod: PodUid, expires_at: float) -> None:
        """Mark that kube-scheduler binds the pod by itself from here on, within this time."""
        self.put(replace(self._held[pod], state=ReservationState.ANSWERED, expires_at=expires_at))

    def asked_again(self, pod: PodUid) -> None:
        """Mark that kube-scheduler does not bind the pod: it asks once more."""
        self.put(replace(self._held[pod], state=ReservationState.PROMISED))

    def note_asked(self, pod: PodUid) -> None:
        """Note that kube-scheduler asks about the pod."""
        held = self._held.get(pod)
        if held is not None and not held.is_asked:
            self.put(replace(held, is_asked=True))

    def extend(self, pod: PodUid, expires_at: float) -> None:
        """Let the promise live on, in the state in which it is: kube-scheduler has just asked for the pod."""
        self.put(replace(self._held[pod], expires_at=expires_at))


def _discard(sets: dict[K, set[PodUid]], key: K, pod: PodUid) -> None:
    sets[key].discard(pod)
    if not sets[key]:
        del sets[key]
