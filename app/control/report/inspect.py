"""Reads state, decisions and waiting pods for health checks, metrics and the read API. Changes nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from app.cluster.gpus.agents import AgentReports
from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.gpus.occupancy import by_health, occupancy, shared_memory
from app.control.leadership.readiness import Readiness
from app.control.report import messages
from app.control.report.pod_state import KnownPod, known
from app.control.report.waiting import WaitingGroups
from app.control.report.why import Explainer
from app.model.decision import Share
from app.model.device import GpuNode, Health
from app.model.explanation import Explanation, QueueStand, Subject, Unknown
from app.model.names import NodeName, QueueName
from app.model.occupancy import AgentState, FreeGpus, NodeUse, SharedMemory
from app.model.resources import GPU
from app.model.snapshot import Snapshot
from app.scheduling.explain.free_gpus import free_gpus
from app.scheduling.explain.queue_summary import stands
from app.scheduling.explain.unsatisfiable import judged_at_once
from app.scheduling.queues.fairshare import fair_shares

__all__ = ["Inspect", "KnownPod"]


class Inspect(WaitingGroups):
    """The views that health checks, metrics and the read API use."""

    def __init__(
        self,
        cache: ClusterCache,
        planning: Planning,
        readiness: Readiness,
        explainer: Explainer,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        super().__init__(cache, planning, readiness)
        self._explainer = explainer
        self._clock = clock

    def queues(self) -> Callable[[], Mapping[QueueName, Share]]:
        """Take a snapshot of the cluster; the returned function divides it among the queues.

        The function may run in any thread: ten thousand queues take 0.2 s.
        """
        return partial(_shares, self._cache.snapshot().apart())

    def queue_stands(self) -> Callable[[], Sequence[QueueStand]]:
        """Take a snapshot; the returned function gives the summary of each queue, by name."""
        return partial(stands, self._cache.snapshot().apart())

    def free_gpus(self) -> Callable[[], FreeGpus]:
        """Take a snapshot; the returned function counts its free GPUs."""
        return partial(free_gpus, self._cache.snapshot().apart())

    def explain(self, namespace: str, name: str, subject: Subject | None = None) -> Explanation | Unknown:
        """Explain the state of a pod or a PodGroup; without a subject, it is found by the name."""
        told = self._explainer.explain(namespace, name, subject)
        failed = next((check for check in self.checks() if not check.passed), None)
        return told if failed is None else messages.undecided(told, failed)

    def promises(self) -> Mapping[str, int]:
        """Return how many reservations are in each state."""
        return Counter(held.state.value for held in self._cache.reservations)

    def pod(self, namespace: str, name: str) -> KnownPod | None:
        """Return the state of one pod."""
        found = (pod for pod in self._cache.pods.all() if pod.namespace == namespace and pod.name == name)
        pod = next(found, None)
        planning = self._planning
        if pod is None:
            return None
        stalled, awaited = planning.attempts.stalled(), planning.attempts.awaited(pod.group)
        on = self._cache.groups.terms.of(pod.group) if pod.managed else None
        # The queue that is charged; labels of a running pod do not change it.
        pod = replace(pod, queue=on.queue) if on is not None else pod
        return known(self._cache, planning.refusals_to_tell, pod, stalled=stalled, awaited=awaited)

    def gpu_nodes(self) -> Sequence[NodeName]:
        """Return the nodes with GPUs that an agent or a driver of DRA reports, in order; not those that are deleted."""
        reported = self._cache.gpus.agents.all().keys() | self._cache.claims.pools.nodes()
        return sorted(reported & self._cache.snapshots.table().index.keys())

    def gpu_node(self, name: NodeName) -> NodeUse | None:
        """Return the use of the GPUs of a node; None when nothing reports any."""
        return occupancy(self._cache, name, now=self._clock()) if name in self._cache.snapshots.table().index else None

    def gpu_health(self) -> Mapping[Health, int]:
        """Return the number of GPUs of each health."""
        return by_health(self._reports())

    def agents(self) -> Mapping[AgentState, int]:
        """Return the number of nodes with GPUs by the state of their agent."""
        nodes, agents = self._cache.snapshots.table(), self._cache.gpus.agents
        names = (nodes.nodes[column].name for column in (nodes.allocatable[GPU] > 0).nonzero()[0].tolist())
        found = Counter(_agent_state(name, agents) for name in dict.fromkeys((*names, *self.gpu_nodes())))
        return {state: found[state] for state in AgentState}

    def shared_gpus(self) -> Iterable[SharedMemory]:
        """Return the memory of the GPUs in shared use."""
        return shared_memory(self._cache.gpus, self._reports())

    def _reports(self) -> Mapping[NodeName, GpuNode]:
        reports = self._cache.gpus.agents.all()
        return {name: reports[name] for name in self.gpu_nodes() if name in reports}


def _agent_state(node: NodeName, agents: AgentReports) -> AgentState:
    if agents.is_trusted(node):
        return AgentState.REPORTS
    return AgentState.MISSING if agents.heard_at(node) is None else AgentState.SILENT


def _shares(snapshot: Snapshot) -> Mapping[QueueName, Share]:
    return fair_shares(judged_at_once(snapshot))
