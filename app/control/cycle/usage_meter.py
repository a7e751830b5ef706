"""Measures what queues use: looks often, publishes to the planner and the statuses seldom.

Each publication may move fair shares, and is written to every queue with past usage; a look has no such cost. Published
usage survives a restart in the status. Usage that was only measured is lost, for all queues alike.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from app.cluster import decode
from app.cluster.queues.usage import UsageHistory
from app.cluster.state.cache import ClusterCache
from app.control.leadership.readiness import Precondition
from app.model.names import QueueName
from app.model.past import MICRO
from app.model.resources import QUOTA_AXES
from app.model.seam import RawObject, Resource
from app.model.snapshot import Snapshot
from app.scheduling.queues.accounts import Account, Quantities, quantities
from app.scheduling.queues.quota import QueueLedger
from app.settings import Settings

log = structlog.get_logger()

LOOK_S = 10.0

UNSEEN_AFTER_S = 60.0
"""If two looks are further apart than this, the process stood still or the clock was set forward, so the usage in
between is unknown.
"""


def history_of(settings: Settings) -> UsageHistory:
    """Return an empty history with the parameters of the settings."""
    return UsageHistory(k_micro=round(settings.fair_share_k * MICRO), half_life_s=settings.usage_half_life_s)


class UsageMeter:
    """Does nothing if past usage does not count (`fair_share_k` is 0). Only the event loop calls in here."""

    def __init__(
        self,
        cache: ClusterCache,
        settings: Settings,
        readiness: Precondition,
        *,
        wall_clock: Callable[[], float],
    ) -> None:
        """`wall_clock` is in seconds since the epoch; the cache is not trusted while `readiness` fails."""
        self._cache = cache
        self._history = cache.history
        self._is_on = self._history.k_micro > 0
        self._interval_ms = settings.usage_interval_s * 1000
        self._wall_clock = wall_clock
        self._readiness = readiness
        self._told_at_ms: int | None = None
        self._looked_at_ms = 0
        self._unread: dict[QueueName, str] = {}
        """The error of each queue's past usage that could not be read."""

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:
                # An error here must not end the service: the past usage stays as last published.
                log.exception("usage not counted")

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Read new past usage from a queue's status: after a start, or after a write by another replica."""
        if not self._is_on or resource is not Resource.QUEUES:
            return
        tally, problem = decode.tally(raw)
        name = QueueName(raw["metadata"]["name"])
        if tally is not None:
            self._history.learn(name, tally, self._now_ms())
        if problem and self._unread.get(name) != problem:
            log.warning("past usage cannot be read, counted as zero", queue=name, problem=problem)
        self._unread.pop(name, None)
        if problem:
            self._unread[name] = problem

    def look(self) -> None:
        """Measure what queues hold now, and publish it when it is time."""
        if not self._is_on:
            return
        if self._readiness.failure():
            self._history.lose_sight()
            return
        now_ms, snapshot = self._now_ms(), self._cache.snapshot()
        if now_ms - self._looked_at_ms > UNSEEN_AFTER_S * 1000:
            self._history.lose_sight()
        self._looked_at_ms = now_ms
        accounts = QueueLedger(snapshot).accounts
        held = {name: _held(account) for name, account in accounts.items()}
        self._history.see(now_ms, held, _capacity(snapshot, accounts.values()))
        if self._told_at_ms is None:
            self._told_at_ms = now_ms
        if abs(now_ms - self._told_at_ms) >= self._interval_ms:
            self._told_at_ms = now_ms
            if self._history.tell():
                self._cache.changes.note()

    def _now_ms(self) -> int:
        return round(self._wall_clock() * 1000)


def _held(account: Account) -> Quantities:
    cpu, memory, gpu = account.allocated
    return cpu, memory, gpu


def _capacity(snapshot: Snapshot, accounts: Iterable[Account]) -> Quantities:
    # Resources on nodes that accept no more pods were usable too, so queues never use more than the capacity.
    tops = [account for account in accounts if account.queue.parent is None]
    cpu, memory, gpu = (
        max(there, sum(account.allocated[axis] for account in tops))
        for axis, there in zip(QUOTA_AXES, quantities(snapshot.total), strict=True)
    )
    return cpu, memory, gpu
