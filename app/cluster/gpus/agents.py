"""Remembers what the agents of nodes say of their GPUs, and which of them are to be trusted."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from app.model.device import GpuNode
from app.model.names import NodeName


class AgentReports:
    """The last report of each agent. Only `Gpus` and `GpuBooks` call what changes it."""

    def __init__(self) -> None:
        """Start with none."""
        self._reports: dict[NodeName, GpuNode] = {}
        self._read: dict[NodeName, GpuNode] = {}
        """The last reports in which the devices could be read."""
        self._heard_at: dict[NodeName, float] = {}
        self._none_before = inf
        """No agent that is trusted was heard before that time, so that not all are looked at with every change."""
        self._silent: set[NodeName] = set()

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, node: GpuNode, *, heard_at: float) -> bool:
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

    def all(self) -> Mapping[NodeName, GpuNode]:
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
        # Devices that could not be read are not gone: no pod is evicted for that.
        return None if report is None or report.message or report.problem else report

    def last_read(self, name: NodeName) -> GpuNode | None:
        """Return the last report of a node in which the devices could be read."""
        return self._read.get(name)

    def is_unreadable(self, name: NodeName) -> bool:
        """Whether what an agent said last cannot be read."""
        report = self._reports.get(name)
        return report is not None and bool(report.problem)
