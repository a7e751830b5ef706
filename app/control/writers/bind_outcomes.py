"""Finds the outcome of a binding whose write had no clear answer."""

from collections.abc import Awaitable, Callable

import structlog

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.model.names import NodeName, PodUid
from app.model.retry import RetryPolicy
from app.model.seam import Cluster, KubeError, PodRef
from app.telemetry import BindOutcome, Metrics

log = structlog.get_logger()

BOUND = ""
"""The answer to kube-scheduler when the pod is on its node."""

GONE = "the pod does not exist any more"

NOT_KNOWN = "it is not known yet whether the pod is bound; kube-scheduler will try again"

LOOK_UPS = RetryPolicy(first_s=0.5, longest_s=8.0, pauses_until_given_up=10)
"""The pauses between the reads after a write with unknown outcome. After the last read, about a minute later,
kube-scheduler is answered. The reservation stays until the watch shows the outcome, and the next question for the
pod tries again.
"""


class BindOutcomes:
    """Reads pods until it is known where they are."""

    def __init__(
        self, cache: ClusterCache, cluster: Cluster, metrics: Metrics, *, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """Hold the collaborators."""
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._sleep = sleep

    async def find_out(self, pod: PodRef, node: NodeName) -> str | None:
        """Find the state of the pod before anything else happens to it; None if the pod is still unbound.

        The watch may show the state as well: a pod that it shows as gone or bound needs no read.
        """
        for pause_s in LOOK_UPS.pauses():
            try:
                raw = await self._cluster.read_pod(pod)
            except KubeError as error:
                self._metrics.binds[BindOutcome.UNKNOWN].inc()
                log.warning("outcome of a binding is unknown", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                await self._sleep(pause_s)
                shown = self._shown(pod.uid, node)
                if shown is not None:
                    return shown
                continue
            if raw is None:
                return GONE
            bound_to = decode.bound_node(raw)
            return None if bound_to is None else _answer(bound_to, node)
        return NOT_KNOWN

    def _shown(self, uid: PodUid, node: NodeName) -> str | None:
        """Return what the watch shows of a binding; None if the pod is shown unbound, which may be outdated."""
        pod = self._cache.pods.get(uid)
        if pod is None:
            return GONE
        return None if pod.node is None else _answer(pod.node, node)


def _answer(bound_to: NodeName, node: NodeName) -> str:
    return BOUND if bound_to == node else f"the pod is already bound to node {bound_to}"
