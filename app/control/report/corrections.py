"""Corrects pod conditions that were true only for a moment, where kube-scheduler does not correct them itself.

* Leeboard could not answer. kube-scheduler retries within seconds. A kube-scheduler that has lost its lease may write
  this condition last, after the new leader has written a better one (seen: it stayed for five seconds after a stop of
  ten).
* Leeboard was deciding. kube-scheduler parks the pod, and may not retry it for 5 minutes.
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
"""Longest time that kube-scheduler puts off a pod after an error (podMaxBackoffSeconds, 10), and that it runs without
its lease.
"""

LOOK_EVERY_S = 1.0

PAUSE_EVERY = 200
"""After so many pods the event loop gets a turn: thousands may need a correction at once."""


class Corrections:
    """The pods with such a condition, and since when. Only the event loop calls this class."""

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

    def note_pod(self, pod: Pod, *, before: Pod | None) -> None:
        """Note since when a pod of ours has such a condition."""
        del before
        if pod.said.passing and pod.managed:
            self._since.setdefault(pod.uid, self._clock())

    async def run(self) -> None:
        """Correct old conditions until cancelled."""
        while True:
            await self._sleep(LOOK_EVERY_S)
            await self.amend()

    async def amend(self) -> None:
        """Correct conditions that are too old; for pods with a place, the bind and the kubelet set the conditions."""
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
            # Only text is lost; kube-scheduler writes the same when it retries all pods (after 5 minutes).
            log.warning("condition not corrected", pod=f"{pod.namespace}/{pod.name}", error=str(error))
