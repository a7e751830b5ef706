"""Tells whether this replica is active: it is when its kube-scheduler, in the same pod or on the same host, leads.

There is no second lease that could differ from the lease of kube-scheduler. The kube-scheduler that holds the lease
calls the Leeboard on its own loopback, and the identity of the holder begins with the name of the host (in a cluster:
the pod) that both share. Leeboard renews nothing: the observed renewals determine how long it may trust the lease.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

import structlog

from app.model.question import Check
from app.model.seam import Cluster, KubeError, Lease, OutcomeUnknownError

log = structlog.get_logger()

LOOK_EVERY_S = 0.5
"""A handover takes this much longer than the handover of kube-scheduler, and a renewal is seen this much later."""

LOOK_WITHIN_S = 5.0
"""kube-scheduler also allows half of its renew deadline for a renewal."""

MARGIN_S = 1.0
"""Margin before another kube-scheduler may take over, so that writes in flight have ended by then."""

NOTICED_WITHIN_S = 1.5
"""Time from the release of a lease until the replica beside the former holder has noticed it."""

POLL_S = 0.05


class Leadership:
    """Whether this replica is active, as of the last look at the lease; without a lease it is the only replica."""

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
        """`lease` is `namespace/name`, or empty; `changed` is set when the replica becomes active or inactive.

        `clock` is monotonic: a wall clock that is set back must not prolong the active time. Only `look` changes the
        other fields.
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
        """From when no other replica trusts the lease, and until when no other replica can have begun to trust it."""
        self._is_vacant = False
        """Whether no other holder was seen since `_from` was set."""

    def failure(self) -> str:
        """Return why this replica is not active, "" when it is."""
        if self._failure:
            return self._failure
        if self._clock() < self._from:
            return "another replica was active until a moment ago and may still be writing"
        if self._clock() >= self._until:
            return "no renewal of the lease of kube-scheduler was seen in time, so another replica may be active"
        return ""

    def other(self) -> str:
        """Return the kube-scheduler that leads beside another replica; empty when none was seen to."""
        lease = self._seen
        return lease.holder if lease is not None and self._is_anothers(lease) else ""

    async def while_sure(self, write: Awaitable[None]) -> None:
        """Run a write, and cancel it when another replica may decide: if this process paused, it may be unsent.

        The other replica sees what was sent before its start, and may assign the same room after it. Raises
        `OutcomeUnknownError` after a cancellation, and the errors of the write.
        """
        if self._until == inf:
            await write
            return
        sure_for_s = self._until - self._clock()
        try:
            async with asyncio.timeout(sure_for_s):
                await write
        except TimeoutError:
            raise OutcomeUnknownError("the lease expired before the API server replied") from None

    def check(self) -> Check:
        """Return our line of /readyz."""
        return Check("active", self.failure())

    async def settled(self, *, within_s: float) -> None:
        """Wait until this replica is active, for `within_s` at most."""
        until = self._clock() + within_s
        while self.failure() and self._clock() < until:
            await self._sleep(POLL_S)

    async def ended(self) -> None:
        """Wait until this replica stops being active; every call waits for the next time."""
        await self._ended.wait()
        self._ended.clear()

    async def run(self) -> None:
        """Read the lease until cancelled, if there is one."""
        while True:
            if self._name:
                await self.look()
            await self._sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Read the lease once; after a failed read, the last one counts until it is too old."""
        # Taken before the read: this process may be paused before it handles the answer, which is then that old.
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
            # It was renewed after the look before this one, which still saw the old lease; the exact time is not known.
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
            # The `_until` of the other replica is not later, since its lease was renewed before this look.
            self._from = self._clock() + lease.duration_s - MARGIN_S

    def _judged(self, lease: Lease | None) -> str:
        if lease is None or not lease.holder:
            return f"the lease {self._namespace}/{self._name} of kube-scheduler has no holder"
        if self._is_anothers(lease):
            return f"the leading kube-scheduler is {lease.holder}, not the one of this replica ({self._hostname})"
        return ""

    def _is_anothers(self, lease: Lease) -> bool:
        # The identity of kube-scheduler is <hostname>_<uuid>.
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
