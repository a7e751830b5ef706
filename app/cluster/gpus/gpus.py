"""Keeps the state of the GPUs of every node: the agents' reports, the holders of parts, and the reservation pods."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.cluster.decode.nodes import MEMORY_STEP_MIB
from app.cluster.gpus.agents import AgentReports
from app.cluster.gpus.judgement import has_unusable, node_gpus
from app.cluster.gpus.parts import GpuReservations, HeldParts, WholeHolders
from app.cluster.gpus.shared_gpus import NO_GPUS, GpuState, NodeGpus, SharedGpu, Sources, WholeHolder
from app.cluster.ledger.nodes import AgentFacts
from app.model.device import GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.snapshot import NodeTable, SharedDevice


class GpuSizes(Protocol):
    """What the nodes state about their GPUs (`ledger.nodes.Nodes`)."""

    def gpus(self, name: NodeName) -> tuple[int, int]:
        """Return the accounted memory of each GPU, in MiB, and the number of GPUs that the device plugin offers."""

    def divides(self, name: NodeName) -> bool:
        """Return whether the labels of a node let its GPUs be shared."""


@dataclass(frozen=True, slots=True)
class GpuChanges:
    """Changes of GPUs that are handled once."""

    nodes: Collection[NodeName]
    """Nodes with any change."""
    vanished: Sequence[Pod]
    """Reservation pods that the watch no longer shows: deleted, or ended."""


class Gpus:
    """All GPUs. Only `GpuBooks` calls the methods that change it, and then `refresh`."""

    def __init__(self, sizes: GpuSizes, *, tolerance_mib: int) -> None:
        """`tolerance_mib`: how much more memory of a GPU may be used than reserved before other pods avoid the GPU."""
        self._sizes = sizes
        self._tolerance_mib = tolerance_mib
        self.agents = AgentReports()
        self.parts = HeldParts()
        self.whole = WholeHolders()
        self.reservations = GpuReservations()
        self._closing: dict[NodeName, set[str]] = {}
        self._doubted: dict[NodeName, set[str]] = {}
        """Shared GPUs that were not ready in time, until they are ready or gone; changed by `doubt` and `refresh`."""
        self._formed: dict[NodeName, NodeGpus] = {}
        self._unsettled: dict[NodeName, None] = {}
        """Nodes with shared GPUs that still need an action: few, so that they can be read often."""
        self._listed: dict[NodeName, tuple[SharedDevice, ...]] = {}
        self._shown: Mapping[NodeName, tuple[SharedDevice, ...]] | None = {}
        """The last result of `listed`; None after a change."""
        self._blocked: dict[NodeName, int] = {}
        self._unusable: dict[PodUid, tuple[NodeName, int]] = {}
        self._table: NodeTable | None = None
        self._idle: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._changed: dict[NodeName, None] = {}

    # Changing -------------------------------------------------------------------------------------------------------

    def report(self, node: GpuNode, *, heard_at: float) -> bool:
        """Store the report of an agent; return whether it is new."""
        is_news = self.agents.put(node, heard_at=heard_at)
        if is_news and any(gpu.state is not GpuState.READY for gpu in self.shared(node.name)):
            # The needs of such a GPU also depend on which pods hold the other GPUs.
            self._changed[node.name] = None
        return is_news

    def hold_whole(self, uid: PodUid, holder: WholeHolder | None, *, was_on: NodeName | None) -> Collection[NodeName]:
        """Store a pod that may have whole GPUs, None for none; return the nodes to `refresh`."""
        nodes = self.whole.put(uid, holder, was_on=was_on)
        return [name for name in nodes if has_unusable(self.agents.reliable(name), self._tolerance_mib)]

    def close(self, node: NodeName, name: str) -> None:
        """Accept no more pods on a shared GPU: its reservation pod is being removed."""
        self._closing.setdefault(node, set()).add(name)

    def reopen(self, node: NodeName, name: str) -> None:
        """End `close`, or note that the reservation pod is gone."""
        names = self._closing.get(node, set())
        names.discard(name)
        if not names:
            self._closing.pop(node, None)

    def doubt(self, node: NodeName, name: str) -> None:
        """Let no more pods wait for a shared GPU that was not ready in time."""
        self._doubted.setdefault(node, set()).add(name)

    def refresh(self, name: NodeName) -> tuple[NodeGpus, NodeGpus]:
        """Judge the GPUs of a node again; return their state before and now."""
        before = self._formed.get(name, NO_GPUS)
        memory_mib, offered = self._sizes.gpus(name)
        now = node_gpus(
            Sources(
                agent=self.agents.reliable(name),
                last=self.agents.last_read(name),
                memory_mib=memory_mib,
                offered=offered,
                parts=self.parts.on(name),
                reservations=self.reservations.on(name),
                whole=self.whole.on(name),
                closing=self._closing.get(name, ()),
                doubted=self._doubted.get(name, ()),
                tolerance_mib=self._tolerance_mib,
                divides=self._sizes.divides(name),
            )
        )
        if self.agents.is_unreadable(name):
            # A GPU that was unhealthy is not healthy because its state cannot be read any more.
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
        self._unsettled.pop(name, None)
        if not all(gpu.is_settled for gpu in now.shared):
            self._unsettled[name] = None
        self._list(name, now)
        if now.unusable != before.unusable:
            others = {uid: found for uid, found in self._unusable.items() if found[0] != name}
            self._unusable = others | {uid: (name, number) for uid, number in now.unusable.items()}
        self._changed[name] = None
        return before, now

    def _list(self, name: NodeName, now: NodeGpus) -> None:
        if now.listed != self._listed.get(name, ()):
            self._shown = None
            self._listed[name] = now.listed
            if not now.listed:
                del self._listed[name]
        if now.blocked != self._blocked.get(name, 0):
            # The mapping is small and rarely changes. It is replaced, because readers keep the mapping that they got.
            self._blocked = {**self._blocked, name: now.blocked}
            if not now.blocked:
                del self._blocked[name]
        if self._table is not None and name in self._table.index:
            self._idle[self._table.index[name]] = now.idle

    # Reading --------------------------------------------------------------------------------------------------------

    def size(self, name: NodeName) -> tuple[int, int]:
        """Return the accounted memory of each GPU of a node, in MiB, and the number of GPUs of its device plugin."""
        return self._sizes.gpus(name)

    def on(self, name: NodeName) -> NodeGpus:
        """Return the state of the GPUs of a node."""
        return self._formed.get(name, NO_GPUS)

    def shared(self, name: NodeName) -> Sequence[SharedGpu]:
        """Return the shared GPUs of a node."""
        return self.on(name).shared

    def find(self, node: NodeName, name: str) -> SharedGpu | None:
        """Return one shared GPU; None when no pod holds a part of it and no reservation pod exists for it."""
        return next((each for each in self.shared(node) if each.name == name), None)

    def of_pod(self, uid: PodUid) -> list[SharedGpu]:
        """Return the shared GPUs of which a pod holds parts, or has reserved parts."""
        part = self.parts.of(uid)
        found = (self.find(part.node, name) for name in part.names) if part is not None else ()
        return [gpu for gpu in found if gpu is not None]

    def not_ready(self, uid: PodUid) -> list[tuple[NodeName, str]]:
        """Return the shared GPUs of a pod that are not ready, by node and name."""
        part = self.parts.of(uid)
        names = part.names if part is not None else ()
        return [(part.node, name) for name in names if not self.is_ready(part.node, name)] if part else []

    def is_ready(self, node: NodeName, name: str) -> bool:
        """Whether the device of a shared GPU is known, so that pods can be bound to it."""
        found = self.find(node, name)
        return found is not None and found.state is GpuState.READY

    def listed(self) -> Mapping[NodeName, tuple[SharedDevice, ...]]:
        """Return the shared GPUs for the planner; the mapping never changes."""
        if self._shown is None:
            self._shown = self._listed.copy()
        return self._shown

    def blocked(self) -> Mapping[NodeName, int]:
        """Return how many whole GPUs of each node accept no work although no pod has them; the value never changes."""
        return self._blocked

    def unusable(self) -> Mapping[PodUid, tuple[NodeName, int]]:
        """Return how many GPUs of pods accept no work after them, and where; the value never changes."""
        return self._unusable

    def idle(self, table: NodeTable) -> NDArray[np.int64] | None:
        """Return which devices are idle, shape [node]; None where there is no report of an agent."""
        if not len(self.agents):
            return None
        if self._table is None or table.index is not self._table.index:
            self._table = table
            self._idle = np.array([self.on(node.name).idle for node in table.nodes], dtype=np.int64)
        return self._idle.copy()

    def drain_changes(self) -> GpuChanges:
        """Return what has changed since the last call; the upkeep of shared GPUs is the only reader."""
        changed, self._changed = self._changed, {}
        return GpuChanges(changed, self.reservations.drop_vanished())

    def unsettled_nodes(self) -> Collection[NodeName]:
        """Return the nodes with shared GPUs that still need an action; the caller must not keep the value."""
        return self._unsettled

    def sharing_nodes(self) -> list[NodeName]:
        """Return the nodes that have shared GPUs."""
        return [name for name, now in self._formed.items() if now.shared]


def facts_of(report: GpuNode) -> AgentFacts:
    """Return what a reliable report adds to the Node object."""
    sizes = [device.memory_mib for device in report.devices if device.memory_mib and not device.is_mig]
    smallest = min(sizes, default=0)
    return AgentFacts(
        opens_devices=report.kubelet_answers and bool(sizes),
        memory_mib=smallest - smallest % MEMORY_STEP_MIB,
        layout=report.layout,
    )
