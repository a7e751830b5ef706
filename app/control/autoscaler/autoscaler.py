"""Has a cluster autoscaler bring nodes for PodGroups that are held, which it cannot see, and tells what it answers.

`unmet_demand` knows who lacks nodes; `provisioning` and `scaling_pods` ask an autoscaler. What was asked
is taken back as soon as its PodGroup waits for something else, or for nothing. All of it follows from what is stored,
so a restart asks nothing twice.
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
"""How often everything is looked at although nothing has changed: somebody may have removed what we made."""

WRITES_AT_ONCE = 4

AGAIN_AFTER_S = 600.0
"""After an autoscaler has given up: a kind of machine that is sold out may be had again."""

REFUSED_PAUSE_S = 60.0
"""After the API server would not have it: a right, a policy or a quota may change."""

EVENT_REASON = "CapacityRequested"


class Way(Protocol):
    """How an autoscaler is asked."""

    noun: str
    problem: str
    """Why nobody can be asked now, as part of a sentence; empty when somebody can."""
    version: int
    """Changes whenever `made` does."""
    is_known: bool
    """Whether `made` tells of all that there may be."""

    @property
    def made(self) -> Mapping[str, MadeRequest]:
        """What there is, by name."""
        ...

    async def run(self) -> None:
        """Follow what there is."""
        ...

    async def refresh(self) -> None:
        """Bring `made` up to date, where nothing follows it; raises `KubeError`."""
        ...

    def is_whole(self, ask: CapacityRequest) -> bool:
        """Whether all that is to be made for it is there."""
        ...

    async def make(self, ask: CapacityRequest) -> bool:
        """Make what is missing; return whether nothing was there; raises `KubeError`."""
        ...

    async def remove(self, made: MadeRequest) -> None:
        """Remove all of it; raises `KubeError`."""
        ...

    def told(self, made: MadeRequest, age_s: int) -> str:
        """Return what has become of it, in one sentence."""
        ...


def way_of(cluster: Cluster, settings: Settings, *, timestamp: Callable[[], str]) -> Way | None:
    """Return how these settings want an autoscaler to be asked; None: not at all. `timestamp` is RFC 3339."""
    match settings.autoscaling:
        case Setting.OFF:
            return None
        case Setting.PROVISIONING_REQUEST:
            return ProvisioningRequests(cluster, settings)
        case Setting.SCALING_PODS:
            return ScalingPods(cluster, settings, timestamp=timestamp)


class Autoscaler:
    """Looks at who lacks nodes once in a while; without a `Way` it does nothing. Only the event loop calls in here."""

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
        """`clock` is monotonic, `wall_clock` in seconds since the epoch. Each look writes all that follows."""
        self._unmet_demand = unmet_demand
        self._waiting = waiting
        self._cluster = cluster
        self._way = way
        self._clock = clock
        self._wall_clock = wall_clock
        self._ended: dict[str, float] = {}
        """When it was first seen that nothing comes of a request, by its name."""
        self._refused: dict[str, tuple[float, str]] = {}
        """Until when it is not tried again to make a request, by its name, and what the API server said."""
        self._seen: tuple[object, ...] = ()
        self._due_at = 0.0

    async def run(self) -> None:
        """Ask, and take back, for ever."""
        async with asyncio.TaskGroup() as tasks:
            if self._way is not None:
                tasks.create_task(self._way.run(), name="what autoscalers are asked")
                tasks.create_task(self._look_on(self._way), name="who lacks nodes")
            await asyncio.Event().wait()

    def shown(self, key: GroupKey) -> str:
        """Return one sentence on what an autoscaler was asked for a group; empty when nobody is to be asked."""
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
            # One group that cannot be asked for must not end the service, nor keep the others unasked for.
            log.exception("autoscaler not asked")

    async def _look(self, way: Way) -> None:
        """Compare what there is with what there should be, and put right a difference."""
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
        """Whether it is to be removed: nobody wants it, or it is to be made anew."""
        if made.key in self._unmet_demand.undecided:
            return False
        if made.name not in wanted:
            return True
        return made.answer is AutoscalerAnswer.ENDED and not self._is_early(self._again_at(made, now), now)

    def _again_at(self, made: MadeRequest, now: float) -> float:
        # By our own clock: a time that cannot be read must not have it made anew without end.
        return self._ended.setdefault(made.name, now) + AGAIN_AFTER_S

    def _may_try(self, name: str, now: float) -> bool:
        until, _ = self._refused.get(name, (now, ""))
        return not self._is_early(until, now)

    def _is_early(self, at: float, now: float) -> bool:
        """Whether a time is yet to come; then all is looked at again when it has."""
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
