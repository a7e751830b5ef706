"""Remembers what is known of the GPUs of every node: the agents' reports, who holds parts, and what reserves them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.cluster.decode.nodes import MEMORY_STEP_MIB
from app.cluster.gpus.agents import AgentReports
from app.cluster.gpus.judgement import node_gpus
from app.cluster.gpus.parts import GpuReservations, HeldParts
from app.cluster.gpus.shared_gpus import NO_GPUS, GpuState, NodeGpus, SharedGpu, Sources
from app.cluster.ledger.nodes import AgentFacts
from app.model.device import GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.snapshot import NodeTable, SharedDevice

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
    """All GPUs. Only `GpuBooks` calls what changes it, and `refresh` next."""

    def __init__(self, size: Size, *, tolerance_mib: int, divides: Callable[[NodeName], bool] = lambda _: True) -> None:
        """`tolerance_mib` is how much more memory may be used on a GPU than was promised before others keep off it.

        `divides` tells whether the labels of a node let its GPUs be shared.
        """
        self._size = size
        self._divides = divides
        self._tolerance_mib = tolerance_mib
        self.agents = AgentReports()
        self.parts = HeldParts()
        self.reservations = GpuReservations()
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

    # Changing -------------------------------------------------------------------------------------------------------

    def report(self, node: GpuNode, *, heard_at: float) -> bool:
        """Take over what an agent says; return whether that is news."""
        is_news = self.agents.put(node, heard_at=heard_at)
        if is_news and any(gpu.state is not GpuState.READY for gpu in self.shared(node.name)):
            # What such a GPU needs depends on who has the other ones, too.
            self._changed.add(node.name)
        return is_news

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
                agent=self.agents.reliable(name),
                last=self.agents.last_read(name),
                memory_mib=memory_mib,
                offered=offered,
                parts=self.parts.on(name),
                reservations=self.reservations.on(name),
                closing=self._closing.get(name, ()),
                doubted=self._doubted.get(name, ()),
                tolerance_mib=self._tolerance_mib,
                divides=self._divides(name),
            )
        )
        if self.agents.is_unreadable(name):
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

    def on(self, name: NodeName) -> NodeGpus:
        """Return how the GPUs of a node stand."""
        return self._formed.get(name, NO_GPUS)

    def shared(self, name: NodeName) -> Sequence[SharedGpu]:
        """Return the shared GPUs of a node."""
        return self.on(name).shared

    def find(self, node: NodeName, name: str) -> SharedGpu | None:
        """Return one shared GPU; None when nobody holds a part of it and nothing reserves it."""
        return next((each for each in self.shared(node) if each.name == name), None)

    def of_pod(self, uid: PodUid) -> list[SharedGpu]:
        """Return the shared GPUs of which a pod holds parts, or is promised them."""
        part = self.parts.of(uid)
        found = (self.find(part.node, name) for name in part.names) if part is not None else ()
        return [gpu for gpu in found if gpu is not None]

    def not_ready(self, uid: PodUid) -> list[tuple[NodeName, str]]:
        """Return the shared GPUs of a pod that are not ready, by node and name."""
        part = self.parts.of(uid)
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
        if not len(self.agents):
            return None
        if self._table is None or table.index is not self._table.index:
            self._table = table
            self._idle = np.array([self.on(node.name).idle for node in table.nodes], dtype=np.int64)
        return self._idle.copy()

    def drain_changes(self) -> GpuChanges:
        """Return what has changed since last asked, for one reader, which looks after the shared GPUs."""
        changed, self._changed = self._changed, set()
        return GpuChanges(changed, self.reservations.drop_vanished())

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
