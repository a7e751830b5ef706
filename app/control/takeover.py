"""Turns a plan into promises and evictions, as far as the cluster is still as the plan saw it.

A deal is what belongs together: the starts of one group that wait for room, and the victims that have to leave it; or
the pods of a stale gang, which leave for nobody.
It is carried out as a whole, or dropped as a whole when any part of it is stale: then the next plan finds another.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from app.cluster.cache import ClusterCache
from app.cluster.reservations import State
from app.control.awaiting import Awaiting
from app.control.evictor import Evictor
from app.control.promises import Promises
from app.model.decision import Eviction, Plan, Start
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason, Refusal
from app.model.resources import NOTHING, Resources
from app.telemetry import Metrics, PlanOutcome


@dataclass(frozen=True, slots=True)
class Deal:
    """Starts and evictions that are carried out together or not at all."""

    starts: tuple[Start, ...]
    evictions: tuple[Eviction, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether others have to leave first."""
        return bool(self.evictions) or any(start.awaits_release for start in self.starts)


def deals(plan: Plan) -> Iterator[Deal]:
    """Yield what belongs together, in the order of the plan: later deals may count on what earlier ones free."""
    waiting: dict[GroupKey, list[Start]] = {}
    for start in plan.starts:
        if start.awaits_release:
            waiting.setdefault(start.group, []).append(start)
    victims: dict[GroupKey | None, list[Eviction]] = {}
    for eviction in plan.evictions:
        victims.setdefault(eviction.beneficiary, []).append(eviction)
    for start in plan.starts:
        if not start.awaits_release:
            yield Deal((start,))
        elif start.group in waiting:
            yield Deal(tuple(waiting.pop(start.group)), tuple(victims.get(start.group, ())))
    stale: dict[GroupKey, list[Eviction]] = {}
    for eviction in victims.get(None, ()):
        stale.setdefault(eviction.group, []).append(eviction)
    for evictions in stale.values():
        yield Deal((), tuple(evictions))


class TakeOver:
    """Carries out plans, and remembers why those wait whom they refused."""

    def __init__(
        self, cache: ClusterCache, promises: Promises, awaiting: Awaiting, evictor: Evictor, metrics: Metrics
    ) -> None:
        """`refusals` and `_news` are changed by `take` and `forget_gone` alone."""
        self._cache = cache
        self._promises = promises
        self._awaiting = awaiting
        self._evictor = evictor
        self._metrics = metrics
        self.refusals: dict[GroupKey, Refusal] = {}
        """Why each waiting group waits, as of the last plan that considered it."""
        self._news: set[GroupKey] = set()

    def take(self, plan: Plan, considered: Collection[GroupKey]) -> bool:
        """Carry out a plan that considered these groups; return whether nothing of it was stale."""
        self._metrics.plans[PlanOutcome.APPLIED].inc()
        unchanged = self._cache.version == plan.snapshot_version
        self._cache.considered(considered, plan.snapshot_version)
        before = {key: self.refusals.pop(key, None) for key in considered}
        stale = False
        for deal in deals(plan):
            if all(map(self._still_there, deal.evictions)) and (unchanged or self._is_possible(deal)):
                self._carry_out(deal)
            else:
                stale = True
                self._metrics.plans[PlanOutcome.STALE].inc()
        for key, refusal in plan.refusals.items():
            self._refuse(key, refusal)
        self._news.update(key for key, old in before.items() if _reason(old) is not _reason(self.refusals.get(key)))
        return not stale

    def take_news(self) -> set[GroupKey]:
        """Return, once, the groups whose reason to wait has changed since last asked; new numbers are no news."""
        news, self._news = self._news, set()
        return news

    def forget_gone(self) -> None:
        """Forget why groups waited that wait no more."""
        waiting = self._cache.waiting()
        for key in [key for key in self.refusals if key not in waiting]:
            del self.refusals[key]

    # Carrying out ---------------------------------------------------------------------------------------------------

    def _carry_out(self, deal: Deal) -> None:
        for eviction in deal.evictions:
            if self._is_promised(eviction.pod):
                # It runs nowhere yet: taking its promise back is all it takes.
                self._promises.give_up(eviction.pod)
        self._evictor.order(deal.evictions)
        if deal.waits:
            self._awaiting.hold(deal.starts, {eviction.pod for eviction in deal.evictions})
            return
        for start in deal.starts:
            self._promises.make(start)

    def _is_promised(self, uid: PodUid) -> bool:
        held = self._cache.reservations.get(uid)
        return held is not None and held.is_revocable

    # Checking against what is known now -----------------------------------------------------------------------------

    def _is_possible(self, deal: Deal) -> bool:
        """Whether those who start still wait, and their nodes have room, now or once the others have left."""
        placements = [placement for start in deal.starts for placement in start.placements]
        if not all(self._still_waits(placement.pod) for placement in placements):
            return False
        wanted = _summed((placement.node, self._request(placement.pod)) for placement in placements)
        if not deal.waits:
            return all(self._cache.has_room(node, request) for node, request in wanted.items())
        freed = _summed((eviction.node, self._request(eviction.pod)) for eviction in deal.evictions)
        missing = {node: _beyond(request, freed.get(node, NOTHING)) for node, request in wanted.items()}
        return all(self._cache.has_room_later(node, request) for node, request in missing.items())

    def _still_waits(self, uid: PodUid) -> bool:
        pod = self._cache.pod(uid)
        return pod is not None and pod.node is None and not pod.deleting and not self._cache.reservations.get(uid)

    def _still_there(self, eviction: Eviction) -> bool:
        """Whether a victim is where the plan saw it, neither leaving nor just being bound."""
        pod, held = self._cache.pod(eviction.pod), self._cache.reservations.get(eviction.pod)
        if pod is None or pod.deleting or (held is not None and held.state is State.BINDING):
            return False
        return eviction.node == (pod.node or (held.node if held else None))

    def _request(self, uid: PodUid) -> Resources:
        pod = self._cache.pod(uid)
        return NOTHING if pod is None else pod.request

    # Refusing -------------------------------------------------------------------------------------------------------

    def _refuse(self, key: GroupKey, refusal: Refusal) -> None:
        group = self._cache.waiting().get(key)
        if group is None:
            return
        self.refusals[key] = refusal
        if group.owed > 0 and group.started:
            # The rest of the gang has nowhere to go: what it holds would only keep others out.
            self._promises.release(key, "the gang cannot start as a whole")


def _summed(amounts: Iterable[tuple[NodeName, Resources]]) -> dict[NodeName, Resources]:
    sums: dict[NodeName, Resources] = {}
    for node, request in amounts:
        sums[node] = sums.get(node, NOTHING) + request
    return sums


def _beyond(request: Resources, freed: Resources) -> Resources:
    return Resources.of(max(0, asked - left) for asked, left in zip(request.amounts, freed.amounts, strict=True))


def _reason(refusal: Refusal | None) -> Reason | None:
    return refusal.reason if refusal else None
