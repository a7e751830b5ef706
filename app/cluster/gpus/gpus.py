"""Remembers what is known of the GPUs of every node: the agents' reports, who holds parts, and what reserves them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.cluster.decode.nodes import MEMORY_STEP_MIB
from app.cluster.gpus.shared_gpus import NO_GPUS, GpuState, NodeGpus, Part, SharedGpu, Sources, node_gpus
from app.cluster.ledger.nodes import AgentFacts
from app.model.device import GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import NODE_NAME_FIELD, Pod
from app.model.snapshot import NodeTable, SharedDevice

V = TypeVar("V")

Size = Callable[[NodeName], tuple[int, int]]
"""Of a node: the memory of each GPU as it is accounted, in MiB, and how many whole GPUs its device plugin offers."""


@dataclass(frozen=True, slots=True)
class GpuChanges:
    """What has changed about GPUs that is followed up once."""

    nodes: set[NodeName]
    """Nodes of which anything has changed."""
    vanished: Sequence[Pod]
    """Reservation pods that the watch shows no more: gone, or ended."""


class Gpus:
    """All GPUs. Only `ClusterCache` calls what changes it; whoever changes anything calls `refresh` next."""

    def __init__(self, size: Size, *, tolerance_mib: int, divides: Callable[[NodeName], bool] = lambda _: True) -> None:
        """`tolerance_mib` is how much more memory may be used on a GPU than was promised before others keep off it.

        `divides` tells whether the labels of a node let its GPUs be shared.
        """
        self._size = size
        self._divides = divides
        self._tolerance_mib = tolerance_mib
        self._reports: dict[NodeName, GpuNode] = {}
        self._read: dict[NodeName, GpuNode] = {}
        """The last reports in which the devices could be read."""
        self._heard_at: dict[NodeName, float] = {}
        self._none_before = inf
        """Nobody who is trusted was heard before that time, so that not everybody is asked at every change."""
        self._silent: set[NodeName] = set()
        self._parts: dict[PodUid, Part] = {}
        self._parts_on: dict[NodeName, dict[PodUid, Part]] = {}
        self._reservations: dict[PodUid, tuple[NodeName, Pod]] = {}
        self._reservations_on: dict[NodeName, dict[PodUid, Pod]] = {}
        self._closing: dict[NodeName, set[str]] = {}
        self._doubted: dict[NodeName, set[str]] = {}
        """Shared GPUs that have not come to be in time, until they do or are gone; changed by `doubt` and `refresh`."""
        self._formed: dict[NodeName, NodeGpus] = {}
        self._unsettled: set[NodeName] = set()
        """Nodes with shared GPUs about which something is still to be done: few, so that they may be asked often."""
        self._listed: dict[NodeName, tuple[SharedDevice, ...]] = {}
        self._shown: Mapping[NodeName, tuple[SharedDevice, ...]] | None = {}
        """What `listed` has returned, None when something has changed since."""
        self._blocked: dict[NodeName, int] = {}
        self._table: NodeTable | None = None
        self._idle: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._changed: set[NodeName] = set()
        self._vanished: list[Pod] = []

    # Changing -------------------------------------------------------------------------------------------------------

    def report(self, node: GpuNode, *, heard_at: float) -> bool:
        """Take over what an agent says; return whether that is news."""
        self._heard_at[node.name] = heard_at
        self._none_before = min(self._none_before, heard_at)
        known = self._reports.get(node.name)
        if node.problem and known is not None:
            # What its devices are, they still are while nothing more can be read of them.
            node = replace(known, problem=node.problem)
        is_new = known != node
        is_news = is_new or node.name in self._silent
        if is_new:
            # A heartbeat leaves the record that others may have judged.
            self._reports[node.name] = node
        if not (node.message or node.problem):
            self._read[node.name] = node
        self._silent.discard(node.name)
        if is_news and any(gpu.state is not GpuState.READY for gpu in self.shared(node.name)):
            # What such a GPU needs depends on who has the other ones, too.
            self._changed.add(node.name)
        return is_news

    def forget(self, name: NodeName) -> bool:
        """Forget what an agent said; return whether it had said anything."""
        self._heard_at.pop(name, None)
        self._read.pop(name, None)
        self._silent.discard(name)
        return self._reports.pop(name, None) is not None

    def age(self, since: float) -> set[NodeName]:
        """Trust the agents no more that have not been heard since then; return which have fallen silent by that."""
        if since <= self._none_before:
            return set()
        silent = {name for name, at in self._heard_at.items() if at < since} - self._silent
        self._silent |= silent
        self._none_before = min((at for at in self._heard_at.values() if at >= since), default=inf)
        return silent

    def put_part(self, uid: PodUid, part: Part | None) -> set[NodeName]:
        """Note what a pod holds of shared GPUs, None for nothing; return the nodes that are concerned."""
        before = self._parts.pop(uid, None)
        if before is not None:
            _discard(self._parts_on, before.node, uid)
        if part is not None:
            self._parts[uid] = part
            self._parts_on.setdefault(part.node, {})[uid] = part
        return set() if part == before else {one.node for one in (before, part) if one is not None}

    def put_reservation(self, uid: PodUid, pod: Pod | None) -> set[NodeName]:
        """Note a reservation pod as it is now, None when it is gone; return the nodes that are concerned."""
        before = self._reservations.pop(uid, None)
        if before is not None:
            _discard(self._reservations_on, before[0], uid)
            if pod is None:
                self._vanished.append(before[1])
        node = node_of(pod) if pod is not None else None
        if pod is not None and node is not None:
            self._reservations[uid] = node, pod
            self._reservations_on.setdefault(node, {})[uid] = pod
        return {one for one in (before[0] if before else None, node) if one is not None}

    def close(self, node: NodeName, name: str) -> None:
        """Let nobody else on a shared GPU: what reserves it is being removed."""
        self._closing.setdefault(node, set()).add(name)

    def reopen(self, node: NodeName, name: str) -> None:
        """Take that back, or note that it has been removed."""
        names = self._closing.get(node, set())
        names.discard(name)
        if not names:
            self._closing.pop(node, None)

    def doubt(self, node: NodeName, name: str) -> None:
        """Let nobody else wait for a shared GPU that has not come to be in time."""
        self._doubted.setdefault(node, set()).add(name)

    def refresh(self, name: NodeName) -> tuple[NodeGpus, NodeGpus]:
        """Work out anew how a node stands; return how it stood before and does now."""
        before = self._formed.get(name, NO_GPUS)
        memory_mib, offered = self._size(name)
        now = node_gpus(
            Sources(
                agent=self.reliable(name),
                last=self._read.get(name),
                memory_mib=memory_mib,
                offered=offered,
                parts=self._parts_on.get(name, {}).values(),
                reservations=self._reservations_on.get(name, {}).values(),
                closing=self._closing.get(name, ()),
                doubted=self._doubted.get(name, ()),
                tolerance_mib=self._tolerance_mib,
                divides=self._divides(name),
            )
        )
        if self._is_unreadable(name):
            # A GPU that was bad is not good because nobody can read about it any more.
            now = replace(now, blocked=max(now.blocked, min(before.blocked, offered)))
        if name in self._doubted:
            self._doubted[name] &= {gpu.name for gpu in now.shared if gpu.state is GpuState.OPENING}
            if not self._doubted[name]:
                del self._doubted[name]
        if now == before:
            return before, before
        self._formed[name] = now
        if now == NO_GPUS:
            del self._formed[name]
        self._unsettled.discard(name)
        if not all(gpu.is_settled for gpu in now.shared):
            self._unsettled.add(name)
        self._list(name, now)
        self._changed.add(name)
        return before, now

    def _list(self, name: NodeName, now: NodeGpus) -> None:
        if now.listed != self._listed.get(name, ()):
            self._shown = None
            self._listed[name] = now.listed
            if not now.listed:
                del self._listed[name]
        if now.blocked != self._blocked.get(name, 0):
            # Few, and seldom another: others hold on to the mapping that they were given.
            self._blocked = {**self._blocked, name: now.blocked}
            if not now.blocked:
                del self._blocked[name]
        if self._table is not None and name in self._table.index:
            self._idle[self._table.index[name]] = now.idle

    # Asking ---------------------------------------------------------------------------------------------------------

    def size(self, name: NodeName) -> tuple[int, int]:
        """Return the memory of each GPU of a node as it is accounted, in MiB, and how many its device plugin offers."""
        return self._size(name)

    def nodes(self) -> Mapping[NodeName, GpuNode]:
        """Return what the agents have said last, by node; not to be kept across an await."""
        return self._reports

    def heard_at(self, name: NodeName) -> float | None:
        """Return when the agent of a node was last heard, on the caller's clock; None when there is none."""
        return self._heard_at.get(name)

    def is_trusted(self, name: NodeName) -> bool:
        """Whether the agent of a node has been heard lately."""
        return name in self._reports and name not in self._silent

    def reliable(self, name: NodeName) -> GpuNode | None:
        """Return what an agent has said lately of devices that it could read; None when it has said no such thing."""
        report = self._reports.get(name) if self.is_trusted(name) else None
        # Devices that could not be read are not gone: nobody is sent away for that.
        return None if report is None or report.message or report.problem else report

    def _is_unreadable(self, name: NodeName) -> bool:
        report = self._reports.get(name)
        return report is not None and bool(report.problem)

    def on(self, name: NodeName) -> NodeGpus:
        """Return how the GPUs of a node stand."""
        return self._formed.get(name, NO_GPUS)

    def shared(self, name: NodeName) -> Sequence[SharedGpu]:
        """Return the shared GPUs of a node."""
        return self.on(name).shared

    def find(self, node: NodeName, name: str) -> SharedGpu | None:
        """Return one shared GPU; None when nobody holds a part of it and nothing reserves it."""
        return next((each for each in self.shared(node) if each.name == name), None)

    def part(self, uid: PodUid) -> Part | None:
        """Return what a pod holds of shared GPUs."""
        return self._parts.get(uid)

    def parts_on(self, node: NodeName) -> Iterable[Part]:
        """Return what pods hold of the shared GPUs of a node; not to be kept."""
        return self._parts_on.get(node, {}).values()

    def reservation(self, uid: PodUid) -> Pod | None:
        """Return a reservation pod."""
        found = self._reservations.get(uid)
        return found[1] if found else None

    def holders_on(self, node: NodeName) -> Collection[PodUid]:
        """Return the pods that hold parts on a node."""
        return tuple(self._parts_on.get(node, ()))

    def of_pod(self, uid: PodUid) -> list[SharedGpu]:
        """Return the shared GPUs of which a pod holds parts, or is promised them."""
        part = self._parts.get(uid)
        found = (self.find(part.node, name) for name in part.names) if part is not None else ()
        return [gpu for gpu in found if gpu is not None]

    def not_ready(self, uid: PodUid) -> list[tuple[NodeName, str]]:
        """Return the shared GPUs of a pod that are not ready, by node and name."""
        part = self._parts.get(uid)
        names = part.names if part is not None else ()
        return [(part.node, name) for name in names if not self.is_ready(part.node, name)] if part else []

    def is_ready(self, node: NodeName, name: str) -> bool:
        """Whether it is known which device a shared GPU is, so that pods can be bound to it."""
        found = self.find(node, name)
        return found is not None and found.state is GpuState.READY

    def listed(self) -> Mapping[NodeName, tuple[SharedDevice, ...]]:
        """Return the shared GPUs as the planner sees them; the mapping never changes."""
        if self._shown is None:
            self._shown = self._listed.copy()
        return self._shown

    def blocked(self) -> Mapping[NodeName, int]:
        """Return how many whole GPUs of each node take no new work although nobody has them; it never changes."""
        return self._blocked

    def idle(self, table: NodeTable) -> NDArray[np.int64] | None:
        """Return which devices are idle, shape [node]; None where no agent says anything."""
        if not self._reports:
            return None
        if self._table is None or table.index is not self._table.index:
            self._table = table
            self._idle = np.array([self.on(node.name).idle for node in table.nodes], dtype=np.int64)
        return self._idle.copy()

    def drain_changes(self) -> GpuChanges:
        """Return what has changed since last asked, for one reader: who looks after the shared GPUs."""
        changes = GpuChanges(self._changed, self._vanished)
        self._changed, self._vanished = set(), []
        return changes

    def drop_vanished(self) -> None:
        """Forget the reservation pods that have vanished: another replica removes them."""
        self._vanished = []

    def unsettled_nodes(self) -> Collection[NodeName]:
        """Return the nodes with shared GPUs about which something is still to be done; not to be kept."""
        return self._unsettled

    def sharing_nodes(self) -> list[NodeName]:
        """Return the nodes that have shared GPUs."""
        return [name for name, now in self._formed.items() if now.shared]


def facts_of(report: GpuNode) -> AgentFacts:
    """Return what a reliable report adds to what its node says."""
    sizes = [device.memory_mib for device in report.devices if device.memory_mib and not device.is_mig]
    smallest = min(sizes, default=0)
    return AgentFacts(
        opens_devices=report.kubelet_answers and bool(sizes),
        memory_mib=smallest - smallest % MEMORY_STEP_MIB,
        layout=report.layout,
    )


def node_of(reservation: Pod) -> NodeName | None:
    """Return the node a reservation pod is for: the one that it is bound to, or may only go to."""
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
