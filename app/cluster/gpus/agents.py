"""Keeps the reports of the nodes' agents about their GPUs, and which agents are trusted."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf

from app.model.device import GpuNode
from app.model.names import NodeName


class AgentReports:
    """The last report of each agent. Only `Gpus` and `GpuBooks` call the methods that change it."""

    def __init__(self) -> None:
        """Start without reports."""
        self._reports: dict[NodeName, GpuNode] = {}
        self._read: dict[NodeName, GpuNode] = {}
        """The last reports in which the devices could be read."""
        self._heard_at: dict[NodeName, float] = {}
        self._none_before = inf
        """No trusted agent was heard before that time; so a check need not read all agents after every change."""
        self._silent: set[NodeName] = set()

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, node: GpuNode, *, heard_at: float) -> bool:
        """Store the report of an agent; return whether it is new."""
        self._heard_at[node.name] = heard_at
        self._none_before = min(self._none_before, heard_at)
        known = self._reports.get(node.name)
        if node.problem and known is not None:
            # The last known devices stay valid while no newer report can be read.
            node = replace(known, problem=node.problem)
        is_new = known != node
        is_news = is_new or node.name in self._silent
        if is_new:
            # A heartbeat keeps the stored record, because others may have judged it already.
            self._reports[node.name] = node
        if not (node.message or node.problem):
            self._read[node.name] = node
        self._silent.discard(node.name)
        return is_news

    def forget(self, name: NodeName) -> bool:
        """Forget the report of an agent; return whether there was one."""
        self._heard_at.pop(name, None)
        self._read.pop(name, None)
        self._silent.discard(name)
        return self._reports.pop(name, None) is not None

    def age(self, since: float) -> Collection[NodeName]:
        """End the trust in agents that have not reported since then; return the agents that this changes."""
        if since <= self._none_before:
            return ()
        silent = [name for name, at in self._heard_at.items() if at < since and name not in self._silent]
        self._silent.update(silent)
        self._none_before = min((at for at in self._heard_at.values() if at >= since), default=inf)
        return silent

    def all(self) -> Mapping[NodeName, GpuNode]:
        """Return the last reports, by node; the caller must not keep the value across an await."""
        return self._reports

    def heard_at(self, name: NodeName) -> float | None:
        """Return when the agent of a node last reported, on the caller's clock; None when there is no report."""
        return self._heard_at.get(name)

    def is_trusted(self, name: NodeName) -> bool:
        """Whether the agent of a node has reported recently."""
        return name in self._reports and name not in self._silent

    def reliable(self, name: NodeName) -> GpuNode | None:
        """Return the recent report of an agent that could read its devices; None when there is no such report."""
        report = self._reports.get(name) if self.is_trusted(name) else None
        # Devices that could not be read are not gone: no pod is evicted for that.
        return None if report is None or report.message or report.problem else report

    def last_read(self, name: NodeName) -> GpuNode | None:
        """Return the last report of a node in which the devices could be read."""
        return self._read.get(name)

    def is_unreadable(self, name: NodeName) -> bool:
        """Whether the last report of an agent cannot be read."""
        report = self._reports.get(name)
        return report is not None and bool(report.problem)
