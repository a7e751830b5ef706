"""Corrects what kube-scheduler has said of pods that we could not answer, where nobody else will.

The kube-scheduler that was told so asks again within seconds, and then says what is true. One that has lost its lease
may say it as its last word, after the new one has said better (seen: it lived on for five seconds after it had been
stopped for ten). The new one does not look at a pod again for that, and its owner would read it for minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.cluster.state.cache import ClusterCache
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.reason import Reason, phrase
from app.model.seam import Cluster, KubeError, PodRef

log = structlog.get_logger()

AFTER_S = 15.0
"""For so long at the most kube-scheduler puts a pod off after an error (podMaxBackoffSeconds, 10), and is itself alive
without its lease."""

LOOK_EVERY_S = 1.0


class Corrections:
    """Who was told that we cannot answer, and since when. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        *,
        reason: Callable[[PodUid], Reason],
        inactive: Callable[[], str],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`reason` says why a pod waits, `inactive` why this replica does not decide; `clock` is monotonic."""
        self._cache = cache
        self._cluster = cluster
        self._reason = reason
        self._inactive = inactive
        self._clock = clock
        self._sleep = sleep
        # Changed by `note` and `amend`.
        self._since: dict[PodUid, float] = {}

    def note(self, uid: PodUid) -> None:
        """Note that a pod's owner reads so."""
        self._since.setdefault(uid, self._clock())

    async def run(self) -> None:
        """Correct for ever what has stood for too long."""
        while True:
            await self._sleep(LOOK_EVERY_S)
            await self.amend()

    async def amend(self) -> None:
        """Correct what has stood for too long; who has a place is left to whoever binds it, and to the kubelet."""
        until = self._clock() - AFTER_S
        for uid in [uid for uid, since in self._since.items() if since <= until]:
            pod = self._cache.pod(uid)
            if pod is None or not pod.said.unready or pod.node is not None:
                del self._since[uid]
            elif not self._inactive() and self._cache.reservations.promised(uid) is None:
                del self._since[uid]
                await self._say(pod)

    async def _say(self, pod: Pod) -> None:
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        try:
            await self._cluster.say_unschedulable(ref, phrase(self._reason(pod.uid)))
        except KubeError as error:
            # Words only; kube-scheduler says them too, when it looks at all pods again (after 5 minutes).
            log.warning("condition not corrected", pod=f"{pod.namespace}/{pod.name}", error=str(error))
