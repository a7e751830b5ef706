"""Tells whether this replica is the one that decides: it sits beside the kube-scheduler that leads.

There is no second lease to keep in step with kube-scheduler's own: whoever holds that one calls the Leeboard on its own
loopback, and the holder's identity begins with the name of the host (in a cluster: the pod) that both of them share.
We renew nothing, so how long we may trust the lease follows from the renewals that we see.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

import structlog

from app.model.question import Check
from app.model.seam import Cluster, KubeError, Lease, OutcomeUnknownError

log = structlog.get_logger()

LOOK_EVERY_S = 0.5
"""A handover takes so much longer than kube-scheduler's own, and a renewal is seen so much later."""

LOOK_WITHIN_S = 5.0
"""kube-scheduler, too, gives a renewal half of its renew deadline."""

MARGIN_S = 1.0
"""Before another kube-scheduler may take over, so that writes which have been begun are over by then."""

NOTICED_WITHIN_S = 1.5
"""Between the moment in which a lease is given back and that in which the replica beside its holder has seen it."""

POLL_S = 0.05


class Leadership:
    """Whether we are active, as of the last look at the lease; without a lease to look at we are the only replica."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cluster: Cluster,
        *,
        lease: str,
        hostname: str,
        clock: Callable[[], float],
        changed: asyncio.Event | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`lease` is `namespace/name`, or empty; `changed` is set when we become active or cease to be.

        `clock` is monotonic: a wall clock that is set back must not make us active for longer. All else is changed by
        `look` alone.
        """
        self._cluster = cluster
        self._namespace, _, self._name = lease.partition("/")
        self._hostname = hostname
        self._changed = changed or asyncio.Event()
        self._ended = asyncio.Event()
        self._clock = clock
        self._sleep = sleep
        self._failure = "the lease of kube-scheduler has not been read yet" if lease else ""
        self._was_active = not lease
        self._seen: Lease | None = None
        self._asked_at = -inf
        self._from, self._until = (inf, -inf) if lease else (-inf, inf)
        """When no other replica trusts the lease any more, and until when none can have begun to."""
        self._is_vacant = False
        """Whether no other holder was seen since `_from` was set."""

    def failure(self) -> str:
        """Return why we are not active, "" when we are."""
        if self._failure:
            return self._failure
        if self._clock() < self._from:
            return "another replica was active until a moment ago and may not know yet that it is not"
        if self._clock() >= self._until:
            return "the lease of kube-scheduler was not seen renewed in time, so another replica may be active"
        return ""

    async def while_sure(self, write: Awaitable[None]) -> None:
        """Write, and end the write when another replica may decide: it may not have been sent yet, if we were stopped.

        The other one sees what was sent before, and gives what is sent after that to others. Raises
        `OutcomeUnknownError` then, and what the write raises.
        """
        sure_for_s = None if self._until == inf else self._until - self._clock()
        try:
            async with asyncio.timeout(sure_for_s):
                await write
        except TimeoutError:
            raise OutcomeUnknownError("the lease was over before the reply was here") from None

    def check(self) -> Check:
        """Return our line of /readyz."""
        return Check("active", self.failure())

    async def settled(self, *, within_s: float) -> None:
        """Return when we are active, or when this has taken too long."""
        until = self._clock() + within_s
        while self.failure() and self._clock() < until:
            await self._sleep(POLL_S)

    async def ended(self) -> None:
        """Return when we cease to be active, each time."""
        await self._ended.wait()
        self._ended.clear()

    async def run(self) -> None:
        """Look at the lease for ever, if there is one to look at."""
        while True:
            if self._name:
                await self.look()
            await self._sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Look at the lease once; a look that fails changes nothing until what was seen last is too old."""
        # Not when the answer is read: we may have been stopped in between, and it be as old as that.
        asked_at = self._clock()
        try:
            async with asyncio.timeout(LOOK_WITHIN_S):
                lease = await self._cluster.read_lease(self._namespace, self._name)
        except (KubeError, TimeoutError) as error:
            log.warning("lease not read", lease=f"{self._namespace}/{self._name}", error=str(error) or "timed out")
        else:
            self._take(lease, asked_at)
        self._tell_of_change()

    def _take(self, lease: Lease | None, asked_at: float) -> None:
        self._failure = self._judged(lease)
        if lease is not None and lease != self._seen:
            # It was renewed after the look before this one, which still saw the old one; when, is not known.
            self._until = self._asked_at + lease.duration_s - MARGIN_S
        if lease is not None and self._is_anothers(lease):
            self._note_other(lease)
        elif not self._is_vacant:
            self._is_vacant = True
            self._from = min(self._from, self._clock() + NOTICED_WITHIN_S)
        self._seen, self._asked_at = lease, asked_at

    def _note_other(self, lease: Lease) -> None:
        self._is_vacant = False
        if lease != self._seen:
            # The other one's own `_until` is not later, since it was renewed before we saw it.
            self._from = self._clock() + lease.duration_s - MARGIN_S

    def _judged(self, lease: Lease | None) -> str:
        if lease is None or not lease.holder:
            return f"nobody holds the lease {self._namespace}/{self._name} of kube-scheduler"
        if self._is_anothers(lease):
            return f"the kube-scheduler that leads is {lease.holder}, not the one beside us ({self._hostname})"
        return ""

    def _is_anothers(self, lease: Lease) -> bool:
        # kube-scheduler names itself <hostname>_<uuid>.
        return bool(lease.holder) and lease.holder.rpartition("_")[0] != self._hostname

    def _tell_of_change(self) -> None:
        failure = self.failure()
        if self._was_active == (not failure):
            return
        self._was_active = not failure
        log.info("replica is no longer active" if failure else "replica became active", why=failure)
        self._changed.set()
        if failure:
            self._ended.set()
