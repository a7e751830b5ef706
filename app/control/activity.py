"""Tells whether this replica is the one that decides: it sits beside the kube-scheduler that leads.

There is no second lease to keep in step with kube-scheduler's own: whoever holds that one calls the Leeboard on its own
loopback, and the holder's identity begins with the name of the host (in a cluster: the pod) that both of them share.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.model.question import Check
from app.model.seam import Cluster, KubeError

log = structlog.get_logger()

LOOK_EVERY_S = 2.0
"""Well within the 15 s after which another kube-scheduler may take over."""


TRUSTED_FOR_S = 10.0
"""How long a look at the lease is good for: kube-scheduler's own renew deadline, after which it may have lost it."""


class Activity:
    """Whether we are active, as of the last look at the lease; without a lease to look at we are the only replica."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cluster: Cluster,
        *,
        lease: str,
        hostname: str,
        on_change: Callable[[], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`lease` is `namespace/name`, or empty; `on_change` is called when we become active or cease to be.

        `clock` is monotonic: a wall clock that is set back must not make us active for longer.
        """
        self._cluster = cluster
        self._namespace, _, self._name = lease.partition("/")
        self._hostname = hostname
        self._on_change = on_change
        self._clock = clock
        self._looked_at = clock()
        self._sleep = sleep
        self._failure = "the lease of kube-scheduler has not been read yet" if lease else ""

    def failure(self) -> str:
        """Return why we are not active, "" when we are."""
        if self._name and self._clock() - self._looked_at > TRUSTED_FOR_S:
            return "the lease of kube-scheduler cannot be read, so another replica may be active"
        return self._failure

    def check(self) -> Check:
        """Return our line of /readyz."""
        return Check("active", self.failure())

    async def run(self) -> None:
        """Look at the lease for ever, if there is one to look at."""
        while True:
            if self._name:
                await self.look()
            await self._sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Look at the lease once; a look that fails changes nothing until the last good one is too old."""
        try:
            holder = await self._cluster.lease_holder(self._namespace, self._name)
        except KubeError as error:
            log.warning("lease not read", lease=f"{self._namespace}/{self._name}", error=str(error))
            return
        self._looked_at = self._clock()
        failure = self._judged(holder)
        if bool(failure) != bool(self._failure):
            log.info("replica became active" if not failure else "replica is no longer active", holder=holder)
            self._failure = failure
            self._on_change()
        self._failure = failure

    def _judged(self, holder: str | None) -> str:
        if not holder:
            return f"nobody holds the lease {self._namespace}/{self._name} of kube-scheduler"
        # kube-scheduler names itself <hostname>_<uuid>.
        if holder.rpartition("_")[0] == self._hostname:
            return ""
        return f"the kube-scheduler that leads is {holder}, not the one beside us ({self._hostname})"
