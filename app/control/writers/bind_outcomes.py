"""Finds out what became of a binding whose write had no clear answer."""

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

GONE = "the pod is gone"

NOT_KNOWN = "it is not known yet whether the pod is bound; it will be asked for again"

LOOK_UPS = RetryPolicy(first_s=0.5, longest_s=8.0, pauses_until_given_up=10)
"""Before asking again what became of a write whose outcome is unknown. After these, about a minute, kube-scheduler is
answered. The promise stays until the watch tells more, and the next question for the pod tries again."""


class BindOutcomes:
    """Reads pods until it is known where they are."""

    def __init__(
        self, cache: ClusterCache, cluster: Cluster, metrics: Metrics, *, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """Hold what is asked."""
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._sleep = sleep

    async def find_out(self, pod: PodRef, node: NodeName) -> str | None:
        """Find out what became of the pod before anything else happens to it; None when it is still unbound.

        The watch may tell as well: a pod that it shows as gone or bound needs no read.
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
        """Return what the watch shows of a binding; None while it shows the pod unbound, which may be old."""
        pod = self._cache.pods.get(uid)
        if pod is None:
            return GONE
        return None if pod.node is None else _answer(pod.node, node)


def _answer(bound_to: NodeName, node: NodeName) -> str:
    return BOUND if bound_to == node else f"the pod is already bound to {bound_to}"
