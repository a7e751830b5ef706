"""Turns a plan into promises and evictions, as far as the cluster is still as the plan saw it.

A deal of which any part is stale is dropped as a whole: then the next plan finds another.
"""

from collections.abc import Collection

from app.cluster.cache import ClusterCache
from app.control.awaiting import Awaiting
from app.control.deals import Deal, deals
from app.control.decisions import Decisions
from app.control.evictor import Evictor
from app.control.promises import Promises
from app.control.recheck import Recheck
from app.control.records import refusal_of, start_of, taken_back, workload_name
from app.model.decision import Eviction, Plan
from app.model.names import GroupKey, PodUid
from app.model.reason import Reason, Refusal
from app.telemetry import Metrics, PlanOutcome


class TakeOver:
    """Carries out plans, and remembers why those wait whom they refused."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        promises: Promises,
        awaiting: Awaiting,
        evictor: Evictor,
        metrics: Metrics,
        decisions: Decisions,
    ) -> None:
        """`refusals`, `taken` and `_news` are changed by `take` and `forget_gone` alone."""
        self._cache = cache
        self._promises = promises
        self._awaiting = awaiting
        self._evictor = evictor
        self._metrics = metrics
        self._decisions = decisions
        self.refusals: dict[GroupKey, Refusal] = {}
        """Why each waiting group waits, as of the last plan that considered it."""
        self.taken = 0
        """How many plans have been taken over."""
        self._news: set[GroupKey] = set()

    def take(self, plan: Plan, considered: Collection[GroupKey], *, settles: bool = True) -> bool:
        """Carry out a plan that considered these groups; return whether nothing of it was stale.

        Unless it `settles`, those of them that have changed are still to be planned.
        """
        self._metrics.plans[PlanOutcome.APPLIED].inc()
        self.taken += 1
        unchanged = self._cache.version == plan.snapshot_version
        # Who is just being bound may not leave, even if nothing has changed.
        recheck = None if unchanged and not plan.evictions else Recheck(self._cache)
        if settles:
            self._cache.considered(considered, plan.snapshot_version)
        before = {key: self.refusals.pop(key, None) for key in considered}
        stale = False
        for deal in deals(plan):
            as_planned = unchanged and not stale
            if recheck is None or (recheck.may_leave(deal) if as_planned else recheck.admits(deal)):
                self._carry_out(deal, plan.snapshot_version)
            else:
                stale = True
                self._metrics.plans[PlanOutcome.STALE].inc()
        for key, refusal in plan.refusals.items():
            self._refuse(key, refusal)
        news = [key for key, old in before.items() if _reason(old) is not _reason(self.refusals.get(key))]
        self._news.update(news)
        self._record_refusals(news, plan.snapshot_version)
        return not stale

    def take_news(self) -> set[GroupKey]:
        """Return, once, the groups whose reason to wait has changed since last asked; new numbers are no news."""
        news, self._news = self._news, set()
        return news

    def forget_gone(self) -> None:
        """Forget why groups waited that wait no more."""
        gone, waiting = self._cache.take_gone(), self._cache.waiting()
        for key in gone:
            if key not in waiting:
                self.refusals.pop(key, None)

    # Carrying out ---------------------------------------------------------------------------------------------------

    def _carry_out(self, deal: Deal, generation: int) -> None:
        for eviction in deal.evictions:
            if self._is_promised(eviction.pod):
                # It runs nowhere yet: taking its promise back is all it takes.
                self._record_taken_back(eviction, generation)
                self._promises.give_up(eviction.pod)
        self._evictor.order(deal.evictions, generation=generation)
        self._record_starts(deal, generation)
        if deal.waits or self._needs_devices(deal):
            self._awaiting.hold(deal.starts, {eviction.pod for eviction in deal.evictions})
            return
        for start in deal.starts:
            self._promises.make(start)

    def _needs_devices(self, deal: Deal) -> bool:
        """Whether a GPU has to be made ready first for somebody to share it."""
        places = [placement for start in deal.starts for placement in start.placements]
        return any(not self._cache.gpus.is_ready(each.node, name) for each in places for name in each.devices)

    def _is_promised(self, uid: PodUid) -> bool:
        held = self._cache.reservations.get(uid)
        return held is not None and held.is_revocable

    # Remembering ----------------------------------------------------------------------------------------------------

    def _record_starts(self, deal: Deal, generation: int) -> None:
        # Who only lost a promise was not told to leave.
        told = (self._cache.pod(eviction.pod) for eviction in deal.evictions)
        victims = sum(pod is not None and pod.node is not None for pod in told)
        for start in deal.starts:
            pods = [self._cache.pod(each.pod) for each in start.placements]
            self._decisions.record(start_of(start, pods, generation=generation, victims=victims))

    def _record_taken_back(self, eviction: Eviction, generation: int) -> None:
        pod, beneficiary = self._cache.pod(eviction.pod), workload_name(self._cache.groups, eviction.beneficiary)
        if pod is not None:
            self._decisions.record(taken_back(eviction, pod, beneficiary=beneficiary, generation=generation))

    def _record_refusals(self, keys: Collection[GroupKey], generation: int) -> None:
        waiting = self._cache.waiting()
        for key in keys:
            refusal, group = self.refusals.get(key), waiting.get(key)
            if refusal is not None and group is not None:
                self._decisions.record(refusal_of(group, refusal, generation=generation))

    # Refusing -------------------------------------------------------------------------------------------------------

    def _refuse(self, key: GroupKey, refusal: Refusal) -> None:
        group = self._cache.waiting().get(key)
        if group is None:
            return
        self.refusals[key] = refusal
        if group.owed > 0 and group.started:
            # The rest of the gang has nowhere to go: what it holds would only keep others out.
            self._promises.release(key, "the gang cannot start as a whole")


def _reason(refusal: Refusal | None) -> Reason | None:
    return refusal.reason if refusal else None
