"""Corrects pod conditions that were true for a moment only, where kube-scheduler does not correct them itself.

* Leeboard could not answer. kube-scheduler asks again within seconds. One that has lost its lease may write this as its
  last word, after the new one has written better (seen: it lived on for five seconds after a stop of ten).
* Leeboard was deciding. kube-scheduler parks the pod, and may not look at it again for 5 minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.leadership.readiness import Precondition
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.reason import Reason, phrase
from app.model.seam import Cluster, KubeError, PodRef

log = structlog.get_logger()

AFTER_S = 15.0
"""For so long at the most kube-scheduler puts a pod off after an error (podMaxBackoffSeconds, 10), and is itself alive
without its lease."""

LOOK_EVERY_S = 1.0

PAUSE_EVERY = 200
"""After so many pods the event loop gets a turn: thousands may wait for a correction at once."""


class Corrections:
    """The pods with such a condition, and since when. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        planning: Planning,
        readiness: Precondition,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._cluster = cluster
        self._planning = planning
        self._readiness = readiness
        self._clock = clock
        self._sleep = sleep
        # Changed by `note_pod` and `amend`.
        self._since: dict[PodUid, float] = {}

    def note_pod(self, pod: Pod, *, is_new: bool) -> None:
        """Note since when a pod of ours says what is true for a moment only."""
        del is_new
        if pod.said.passing and pod.managed:
            self._since.setdefault(pod.uid, self._clock())

    async def run(self) -> None:
        """Correct for ever what has stood for too long."""
        while True:
            await self._sleep(LOOK_EVERY_S)
            await self.amend()

    async def amend(self) -> None:
        """Correct what has stood for too long; who has a place is left to whoever binds it, and to the kubelet."""
        until = self._clock() - AFTER_S
        for number, uid in enumerate([uid for uid, since in self._since.items() if since <= until], start=1):
            if number % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
            pod = self._cache.pods.get(uid)
            if pod is None or not pod.said.passing or pod.node is not None:
                del self._since[uid]
                continue
            reason = self._planning.reason(uid)
            is_known = reason != Reason.DECIDING and self._cache.reservations.promised(uid) is None
            if is_known and not self._readiness.failure():
                del self._since[uid]
                await self._say(pod, reason)

    async def _say(self, pod: Pod, reason: Reason) -> None:
        ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        try:
            await self._cluster.say_unschedulable(ref, phrase(reason))
        except KubeError as error:
            # Words only; kube-scheduler says them too, when it looks at all pods again (after 5 minutes).
            log.warning("condition not corrected", pod=f"{pod.namespace}/{pod.name}", error=str(error))
