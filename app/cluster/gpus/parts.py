"""Keeps which pods hold parts of shared GPUs, and which reservation pods hold these GPUs for them."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from app.cluster.gpus.shared_gpus import Part, WholeHolder
from app.model.names import NodeName, PodUid
from app.model.pod import NODE_NAME_FIELD, Pod

V = TypeVar("V")


class HeldParts:
    """What pods hold of shared GPUs, by pod and by node. Only `GpuBooks` calls `put`."""

    def __init__(self) -> None:
        """Start without pods."""
        self._parts: dict[PodUid, Part] = {}
        self._on: dict[NodeName, dict[PodUid, Part]] = {}

    def put(self, uid: PodUid, part: Part | None) -> Collection[NodeName]:
        """Store what a pod holds of shared GPUs, None for nothing; return the affected nodes."""
        before = self._parts.pop(uid, None)
        if before is not None:
            _discard(self._on, before.node, uid)
        if part is not None:
            self._parts[uid] = part
            self._on.setdefault(part.node, {})[uid] = part
        return () if part == before else dict.fromkeys(one.node for one in (before, part) if one is not None)

    def of(self, uid: PodUid) -> Part | None:
        """Return what a pod holds of shared GPUs."""
        return self._parts.get(uid)

    def on(self, node: NodeName) -> Collection[Part]:
        """Return what pods hold of the shared GPUs of a node; the caller must not keep the value."""
        return self._on.get(node, {}).values()

    def holders_on(self, node: NodeName) -> Collection[PodUid]:
        """Return the pods that hold parts on a node."""
        return tuple(self._on.get(node, ()))


class WholeHolders:
    """The bound pods that may have whole GPUs, by node: there are many. Only `Gpus` calls `put`."""

    def __init__(self) -> None:
        """Start without pods."""
        self._on: dict[NodeName, dict[PodUid, WholeHolder]] = {}

    def put(self, uid: PodUid, holder: WholeHolder | None, *, was_on: NodeName | None) -> Collection[NodeName]:
        """Store a pod that may have whole GPUs, None when it has none or is gone; return the affected nodes.

        `was_on`: the node where the pod was charged before.
        """
        before = self._on.get(was_on, {}).get(uid) if was_on is not None else None
        if before is not None:
            _discard(self._on, before.node, uid)
        if holder is not None:
            self._on.setdefault(holder.node, {})[uid] = holder
        return () if holder == before else dict.fromkeys(one.node for one in (before, holder) if one is not None)

    def on(self, node: NodeName) -> Collection[WholeHolder]:
        """Return the pods that may have whole GPUs of a node; the caller must not keep the value."""
        return self._on.get(node, {}).values()


class GpuReservations:
    """The reservation pods of all nodes. Only `GpuBooks` calls `put`."""

    def __init__(self) -> None:
        """Start without reservation pods."""
        self._pods: dict[PodUid, tuple[NodeName, Pod]] = {}
        self._on: dict[NodeName, dict[PodUid, Pod]] = {}
        self._vanished: list[Pod] = []

    def put(self, uid: PodUid, pod: Pod | None) -> Collection[NodeName]:
        """Store a reservation pod, None when it is gone; return the affected nodes."""
        before = self._pods.pop(uid, None)
        if before is not None:
            _discard(self._on, before[0], uid)
            if pod is None:
                self._vanished.append(before[1])
        node = node_of(pod) if pod is not None else None
        if pod is not None and node is not None:
            self._pods[uid] = node, pod
            self._on.setdefault(node, {})[uid] = pod
        return dict.fromkeys(one for one in (before[0] if before else None, node) if one is not None)

    def get(self, uid: PodUid) -> Pod | None:
        """Return a reservation pod."""
        found = self._pods.get(uid)
        return found[1] if found else None

    def on(self, node: NodeName) -> Collection[Pod]:
        """Return the reservation pods of a node, also pods being deleted; the caller must not keep the value."""
        return self._on.get(node, {}).values()

    def drop_vanished(self) -> Sequence[Pod]:
        """Forget the reservation pods that are gone, and return them."""
        vanished, self._vanished = self._vanished, []
        return vanished


def node_of(reservation: Pod) -> NodeName | None:
    """Return the node of a reservation pod: the node where it is bound, or the only node where it may run."""
    if reservation.node is not None:
        return reservation.node
    for term in reservation.constraint.terms or ():
        for requirement in term:
            if requirement.key == NODE_NAME_FIELD and len(requirement.values) == 1:
                return NodeName(requirement.values[0])
    return None


def _discard(by_node: dict[NodeName, dict[PodUid, V]], node: NodeName, uid: PodUid) -> None:
    by_node[node].pop(uid, None)
    if not by_node[node]:
        del by_node[node]
