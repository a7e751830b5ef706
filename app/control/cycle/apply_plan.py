"""Turns a plan into promises and evictions, as far as the cluster is still as the plan saw it.

A deal of which any part is stale is dropped as a whole: then the next plan finds another.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from app.cluster.changes import Changes
from app.cluster.state.cache import ClusterCache
from app.control.cycle.batches import PlanBatch, deals
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.recheck import Recheck
from app.control.cycle.reserver import Reserver
from app.control.journal.decisions import Decisions
from app.control.journal.records import refusal_of, start_of, taken_back, workload_name
from app.control.journal.wording import Words
from app.control.leadership.readiness import Precondition
from app.control.writers.evictor import Evictor
from app.model.decision import Eviction, Plan
from app.model.names import GroupKey, PodUid
from app.model.reason import Refusal
from app.telemetry import Metrics, PlanOutcome

STEP = 40
"""Pods that are decided for before the event loop gets a turn, in some 3 ms: one plan may decide for ten thousand, and
an answer takes the loop several turns."""

Wording = Callable[[GroupKey, Refusal, int], Refusal]
"""Returns what people are told after a plan on a snapshot of this version refused a group."""


class PlanApplier:
    """Carries out plans, and remembers why those wait whom they refused."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        reserver: Reserver,
        preemptions: PendingPreemptions,
        evictor: Evictor,
        metrics: Metrics,
        decisions: Decisions,
    ) -> None:
        """`refusals`, `taken` and `claims` are changed by `take`, `take_by_steps` and `forget_gone` alone."""
        self._cache = cache
        self._reserver = reserver
        self._preemptions = preemptions
        self._evictor = evictor
        self._metrics = metrics
        self._decisions = decisions
        self.refusals: dict[GroupKey, Refusal] = {}
        """Why each waiting group waits, as of the last plan that considered it."""
        self.taken = 0
        """How many plans have been taken over."""
        self.claims = 0
        """How often that has changed who is refused what others have: somebody came or changed, or waits no more."""
        self._gone: set[GroupKey] = set()
        self._words = Words()

    def take(self, plan: Plan, considered: Collection[GroupKey], *, settles: bool = True) -> bool:
        """Carry out a plan that considered these groups; return whether nothing of it was stale.

        Unless it `settles`, those of them that have changed are still to be planned.
        """
        whole = True
        for is_whole in self._steps(plan, considered, settles=settles, pods=sys.maxsize):
            whole = whole and is_whole
        return whole

    async def take_by_steps(self, plan: Plan, considered: Collection[GroupKey], *, readiness: Precondition) -> bool:
        """Do the same, a step at a time: others are answered meanwhile, and may change what the next step may do.

        No promise may move meanwhile: where there seems to be room a later step may have put somebody. It ends early,
        as one of which something was stale, when nothing may be decided any more, which `readiness` tells.
        """
        whole = True
        for is_whole in self._steps(plan, considered, settles=True, pods=STEP):
            whole = whole and is_whole
            # Else the next who asks who waits has to form all of them at once.
            self._cache.groups.form()
            await asyncio.sleep(0)
            if readiness.failure():
                return False
        return whole

    def somebody_waits(self) -> bool:
        """Return whether a group waits that a search for victims may help."""
        return any(refusal.may_find_victims for refusal in self.refusals.values())

    def note_changes(self, changes: Changes) -> None:
        """Note which groups have stopped waiting."""
        self._gone |= changes.gone

    def forget_gone(self) -> None:
        """Forget why groups waited that wait no more; some may wait again."""
        waiting = self._cache.groups.waiting()
        gone, self._gone = self._gone, set()
        for key in gone:
            before = self._no_longer_refused(key) if key not in waiting else None
            self.claims += before is not None and before.may_find_victims

    def _steps(self, plan: Plan, considered: Collection[GroupKey], *, settles: bool, pods: int) -> Iterator[bool]:
        """Carry out a plan, and yield after each step, which is for so many pods, whether nothing in it was stale."""
        self._metrics.plans[PlanOutcome.APPLIED].inc()
        changed = self._cache.groups.unsettled.keys() & considered if settles else frozenset()
        if settles:
            self._cache.groups.unsettled.considered(considered, plan.snapshot_version)
        yield from self._carried_out(plan, pods)
        judged, word = list(considered), self._words.of_short_plan if settles else self._words.of_full_plan
        for begin in range(0, len(judged), pods):
            for key in judged[begin : begin + pods]:
                self._judge(key, plan, changed, word)
            yield True
        self.taken += 1

    # Carrying out ---------------------------------------------------------------------------------------------------

    def _carried_out(self, plan: Plan, pods: int) -> Iterator[bool]:
        """Carry out what may still be done of a plan; yield after each step whether that was all of it."""
        as_planned, expected = True, plan.snapshot_version
        recheck: Recheck | None = None
        for some in _by_steps(deals(plan), pods):
            # What the steps before have promised is no change: the plan counts on it.
            if self._cache.changes.version != expected:
                as_planned, recheck = False, None
            # Who is just being bound may not leave, even if nothing has changed.
            if recheck is None and (plan.evictions or not as_planned):
                recheck = Recheck(self._cache)
            is_whole = True
            for deal in some:
                if recheck is None or (recheck.may_leave(deal) if as_planned else recheck.admits(deal)):
                    self._carry_out(deal, plan.snapshot_version)
                else:
                    as_planned = is_whole = False
                    self._metrics.plans[PlanOutcome.STALE].inc()
            expected = self._cache.changes.version
            yield is_whole

    def _carry_out(self, deal: PlanBatch, generation: int) -> None:
        for eviction in deal.evictions:
            if self._is_promised(eviction.pod):
                # It runs nowhere yet: taking its promise back is all it takes.
                self._record_taken_back(eviction, generation)
                self._reserver.give_up(eviction.pod)
        self._evictor.order(deal.evictions, generation=generation)
        self._record_starts(deal, generation)
        if deal.waits or self._needs_devices(deal):
            self._preemptions.hold(deal.starts, {eviction.pod for eviction in deal.evictions})
            return
        for start in deal.starts:
            self._reserver.make(start)

    def _needs_devices(self, deal: PlanBatch) -> bool:
        """Whether a GPU has to be made ready first for somebody to share it."""
        places = [placement for start in deal.starts for placement in start.placements]
        return any(not self._cache.gpus.is_ready(each.node, name) for each in places for name in each.devices)

    def _is_promised(self, uid: PodUid) -> bool:
        held = self._cache.reservations.get(uid)
        return held is not None and held.is_revocable

    # Remembering ----------------------------------------------------------------------------------------------------

    def _record_starts(self, deal: PlanBatch, generation: int) -> None:
        # Who only lost a promise was not told to leave.
        told = (self._cache.pods.get(eviction.pod) for eviction in deal.evictions)
        victims = sum(pod is not None and pod.node is not None for pod in told)
        for start in deal.starts:
            pods = [self._cache.pods.get(each.pod) for each in start.placements]
            self._decisions.record(start_of(start, pods, generation=generation, victims=victims))

    def _record_taken_back(self, eviction: Eviction, generation: int) -> None:
        pod, beneficiary = self._cache.pods.get(eviction.pod), workload_name(self._cache.groups, eviction.beneficiary)
        if pod is not None:
            self._decisions.record(taken_back(eviction, pod, beneficiary=beneficiary, generation=generation))

    # Refusing -------------------------------------------------------------------------------------------------------

    def _no_longer_refused(self, key: GroupKey) -> Refusal | None:
        self._words.forget(key)
        return self.refusals.pop(key, None)

    def _judge(self, key: GroupKey, plan: Plan, changed: Collection[GroupKey], word: Wording) -> None:
        """Note what the plan says of a group that it has considered, and tell it where that is another reason."""
        before, refusal = self.refusals.get(key), plan.refusals.get(key)
        group = self._cache.groups.waiting().get(key) if refusal else None
        if refusal is None or group is None:
            if self._no_longer_refused(key) is not None and before is not None:
                self._cache.groups.touched.note_news(key)
                self.claims += before.may_find_victims
            return
        self.refusals[key] = refusal = word(key, refusal, plan.snapshot_version)
        is_news = before is None or before.reason is not refusal.reason
        self.claims += refusal.may_find_victims and (is_news or key in changed)
        if is_news:
            self._cache.groups.touched.note_news(key)
            self._decisions.record(refusal_of(group, refusal, generation=plan.snapshot_version))
        if group.owed > 0 and group.started and key not in self._cache.groups.unsettled:
            # The rest of the gang has nowhere to go: what it holds would only keep others out. Of one that has changed
            # since the next plan knows better.
            self._reserver.release(key, "the gang cannot start as a whole")


def _by_steps(found: Iterable[PlanBatch], pods: int) -> Iterator[Sequence[PlanBatch]]:
    """Yield the deals in their order, at once those for so many pods; each stays whole."""
    some: list[PlanBatch] = []
    size = 0
    for deal in found:
        some.append(deal)
        size += len(deal.evictions) + sum(len(start.placements) for start in deal.starts)
        if size >= pods:
            yield some
            some, size = [], 0
    if some:
        yield some
