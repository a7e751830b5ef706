"""Requests nodes from a cluster autoscaler for held PodGroups, which it cannot see, and reports its answers.

`unmet_demand` finds the PodGroups that lack nodes. `provisioning` and `scaling_pods` send the requests. A request is
removed as soon as its PodGroup waits for something else or no longer waits. Everything is derived from stored objects,
so a restart repeats no request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Protocol

import structlog

from app.control.autoscaler.provisioning import ProvisioningRequests
from app.control.autoscaler.scaling_pods import ScalingPods
from app.control.autoscaler.unmet_demand import UnmetDemand
from app.control.report.waiting import WaitingGroups
from app.model.names import GroupKey
from app.model.scaling import AutoscalerAnswer, CapacityRequest, MadeRequest
from app.model.seam import Cluster, ForbiddenError, KubeError, NotFoundError, RejectedError
from app.settings import Autoscaling as Setting
from app.settings import Settings

log = structlog.get_logger()

LOOK_S = 5.0
LOOK_AGAIN_S = 60.0
"""How often all requests are compared although nothing has changed: another client may have deleted an object of ours.
"""

WRITES_AT_ONCE = 4

AGAIN_AFTER_S = 600.0
"""Pause after an autoscaler has given up: a machine type that is sold out may be available again."""

REFUSED_PAUSE_S = 60.0
"""Pause after the API server has refused a request: a right, a policy or a quota may change."""

EVENT_REASON = "CapacityRequested"


class Way(Protocol):
    """A way to request nodes from an autoscaler."""

    noun: str
    problem: str
    """Why no autoscaler can be asked now, as part of a sentence; empty when one can be asked."""
    version: int
    """Changes whenever `made` changes."""
    is_known: bool
    """Whether `made` is complete."""

    @property
    def made(self) -> Mapping[str, MadeRequest]:
        """The existing requests, by name."""
        ...

    async def run(self) -> None:
        """Watch the existing requests."""
        ...

    async def refresh(self) -> None:
        """Read `made` again, where no watch updates it; raises `KubeError`."""
        ...

    def is_whole(self, ask: CapacityRequest) -> bool:
        """Whether all objects of the request exist."""
        ...

    async def make(self, ask: CapacityRequest) -> bool:
        """Create the missing objects; return whether none existed before; raises `KubeError`."""
        ...

    async def remove(self, made: MadeRequest) -> None:
        """Delete all objects of the request; raises `KubeError`."""
        ...

    def told(self, made: MadeRequest, age_s: int) -> str:
        """Return the state of the request in one sentence."""
        ...


def way_of(cluster: Cluster, settings: Settings, *, timestamp: Callable[[], str]) -> Way | None:
    """Return the way that the settings choose; None when no autoscaler is used. `timestamp` returns RFC 3339."""
    match settings.autoscaling:
        case Setting.OFF:
            return None
        case Setting.PROVISIONING_REQUEST:
            return ProvisioningRequests(cluster, settings)
        case Setting.SCALING_PODS:
            return ScalingPods(cluster, settings, timestamp=timestamp)


class Autoscaler:
    """Looks at unmet demand at intervals; does nothing without a `Way`. Only the event loop calls this class."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        unmet_demand: UnmetDemand,
        waiting: WaitingGroups,
        cluster: Cluster,
        way: Way | None,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic; `wall_clock` is in seconds since the epoch. Each look writes all attributes below."""
        self._unmet_demand = unmet_demand
        self._waiting = waiting
        self._cluster = cluster
        self._way = way
        self._clock = clock
        self._wall_clock = wall_clock
        self._ended: dict[str, float] = {}
        """When each request was first seen to have ended without nodes, by its name."""
        self._refused: dict[str, tuple[float, str]] = {}
        """Until when a refused request is not created again, by its name, and the error of the API server."""
        self._seen: tuple[object, ...] = ()
        self._due_at = 0.0

    async def run(self) -> None:
        """Create and remove requests until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._way is not None:
                tasks.create_task(self._way.run(), name="autoscaler requests")
                tasks.create_task(self._look_on(self._way), name="unmet demand")
            await asyncio.Event().wait()

    def shown(self, key: GroupKey) -> str:
        """Return one sentence on the request for a group; empty when no autoscaler is used or needed."""
        way = self._way
        if way is None:
            return ""
        made = next((one for one in way.made.values() if one.key == key), None)
        if made is not None:
            return way.told(made, max(0, round(self._wall_clock() - made.made_at)))
        if key not in self._unmet_demand:
            return ""
        if way.problem:
            return f"No autoscaler is asked for nodes: {way.problem}."
        ask = self._unmet_demand.of(key)
        _, said = self._refused.get(ask.name, (0.0, "")) if ask is not None else (0.0, "")
        return f"No autoscaler is asked for nodes, since a {way.noun} cannot be written: {said}." if said else ""

    # Looking --------------------------------------------------------------------------------------------------------

    async def _look_on(self, way: Way) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look_or_say(way)

    async def _look_or_say(self, way: Way) -> None:
        try:
            await self._look(way)
        except Exception:
            # An error with one group must not end the service, and must not block the requests of other groups.
            log.exception("autoscaler not asked")

    async def _look(self, way: Way) -> None:
        """Compare the existing requests with the wanted ones and correct the differences."""
        now, version = self._clock(), (*self._waiting.version(), way.version, way.problem)
        if not self._waiting.is_ready() or (version == self._seen and now < self._due_at):
            return
        self._unmet_demand.look()
        self._seen, self._due_at = version, min(now + LOOK_AGAIN_S, self._unmet_demand.due_at() or now + LOOK_AGAIN_S)
        if way.problem or (way.is_known and not self._unmet_demand and not way.made):
            return
        await self._try("capacity requests not listed", way.refresh())
        await self._compare(way)

    async def _compare(self, way: Way) -> None:
        now, made = self._clock(), list(way.made.values())
        wanted = {ask.name: ask for ask in self._unmet_demand.asked({one.key for one in made})}
        self._forget(made, wanted)
        gone = [one for one in made if self._is_over(one, wanted, now)]
        missing = [ask for ask in wanted.values() if not way.is_whole(ask) and self._may_try(ask.name, now)]
        turns = asyncio.Semaphore(WRITES_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for one in gone:
                tasks.create_task(self._in_turn(turns, "capacity request not removed", way.remove(one)))
            for ask in missing:
                tasks.create_task(self._in_turn(turns, "capacity request not made", self._make(way, ask)))

    def _forget(self, made: list[MadeRequest], wanted: Mapping[str, CapacityRequest]) -> None:
        ended = {one.name for one in made if one.answer is AutoscalerAnswer.ENDED}
        self._ended = {name: at for name, at in self._ended.items() if name in ended}
        self._refused = {name: each for name, each in self._refused.items() if name in wanted}

    def _is_over(self, made: MadeRequest, wanted: Mapping[str, CapacityRequest], now: float) -> bool:
        """Whether a request must be removed: it is not wanted any more, or it ended and must be created again."""
        if made.key in self._unmet_demand.undecided:
            return False
        if made.name not in wanted:
            return True
        return made.answer is AutoscalerAnswer.ENDED and not self._is_early(self._again_at(made, now), now)

    def _again_at(self, made: MadeRequest, now: float) -> float:
        # Uses our own clock: with an unreadable time the request would be created again without end.
        return self._ended.setdefault(made.name, now) + AGAIN_AFTER_S

    def _may_try(self, name: str, now: float) -> bool:
        until, _ = self._refused.get(name, (now, ""))
        return not self._is_early(until, now)

    def _is_early(self, at: float, now: float) -> bool:
        """Whether a time is in the future; if so, the next look is due at that time at the latest."""
        if at > now:
            self._due_at = min(self._due_at, at)
        return at > now

    # Writing --------------------------------------------------------------------------------------------------------

    async def _in_turn(self, turns: asyncio.Semaphore, failure: str, write: Coroutine[None, None, None]) -> None:
        async with turns:
            if self._waiting.is_ready():
                await self._try(failure, write)
            else:
                # Two replicas that correct each other would never end.
                write.close()

    async def _try(self, failure: str, write: Awaitable[None]) -> None:
        try:
            await write
        except KubeError as error:
            log.warning(failure, error=str(error))
            self._due_at = 0.0

    async def _make(self, way: Way, ask: CapacityRequest) -> None:
        try:
            is_new = await way.make(ask)
        except (ForbiddenError, RejectedError, NotFoundError) as error:
            log.warning("capacity request refused", podgroup=repr(ask.key), error=str(error))
            until = self._clock() + REFUSED_PAUSE_S
            self._refused[ask.name] = until, str(error).rstrip(".")
            self._due_at = min(self._due_at, until)
            return
        self._refused.pop(ask.name, None)
        if is_new:
            log.info("autoscaler asked for nodes", podgroup=repr(ask.key), request=ask.name, units=ask.units)
            note = f"No node has room for it, so an autoscaler is asked for nodes by {way.noun} {ask.name}."
            await self._cluster.record_event(ask.owner, warning=False, reason=EVENT_REASON, note=note)
