"""Makes the typical mix for the planner, beside the event loop. No reader of a Snapshot makes one."""

import asyncio

import structlog

from app.cluster.state.cache import ClusterCache
from app.cluster.state.mix_input import MixInput
from app.model.mix import TypicalMix
from app.scheduling.placement.expected_use import expected_use

log = structlog.get_logger()


class Learning:
    """A step of the planning loop. Only the event loop calls in here."""

    def __init__(self, cache: ClusterCache) -> None:
        """Make the mixes of this cache."""
        self._cache = cache
        self._running: asyncio.Task[None] | None = None
        self._is_first = True

    async def learn(self) -> None:
        """Begin to make a new mix if one is due. Only for the first one, return when all later Snapshots have it.

        A fault is logged: planning goes on with the last mix.
        """
        try:
            arrivals, nodes = self._cache.arrivals, self._cache.snapshots.table()
            if self._running is None and arrivals.is_due(nodes):
                arrivals.note_begun(nodes)
                self._running = asyncio.create_task(self._make(), name="learn")
        except Exception:
            log.exception("learning the typical mix failed")
        if self._is_first and self._running is not None:
            await asyncio.shield(self._running)
            self._is_first = False

    async def _make(self) -> None:
        arrivals = self._cache.arrivals
        try:
            arrivals.last = await asyncio.to_thread(_made, arrivals.freeze(self._cache.snapshot().apart()))
        except Exception:
            # Plans go on with the last mix. The next one is made when more pods have started.
            log.exception("learning the typical mix failed")
        finally:
            self._running = None

    def begin(self) -> None:
        """Make sure that a mix exists before a plan is made, even if `learn` has not been called.

        It has only the assumed kind, which takes the event loop about a millisecond. `learn` is due all the same.
        """
        arrivals = self._cache.arrivals
        if arrivals.last is None:
            arrivals.assume(self._cache.snapshots.table())


def _made(arrived: MixInput) -> TypicalMix:
    mix = arrived.mix()
    # The tables for this mix are remembered: no placement on the event loop has to make them.
    expected_use(mix)
    return mix
