"""Turns a plan into reservations and evictions, as far as the cluster still is as the plan saw it.

A batch with any stale part is dropped as a whole. The next plan then finds another solution.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence

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

STEP = 16
"""Pods that are decided before the event loop serves other tasks; this takes some 3 ms. One plan may decide for ten
thousand pods, and one answer to kube-scheduler takes several turns of the loop.
"""

Wording = Callable[[GroupKey, Refusal, int], Refusal]
"""Returns the message for a group that a plan on a snapshot of this version refused."""


class PlanApplier:
    """Applies plans, and remembers why the refused groups wait."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        reserver: Reserver,
        preemptions: PendingPreemptions,
        evictor: Evictor,
        metrics: Metrics,
        decisions: Decisions,
    ) -> None:
        """Only `take`, `take_by_steps` and `forget_gone` change `refusals`, `taken` and `claims`."""
        self._cache = cache
        self._reserver = reserver
        self._preemptions = preemptions
        self._evictor = evictor
        self._metrics = metrics
        self._decisions = decisions
        self.refusals: dict[GroupKey, Refusal] = {}
        """The reason why each waiting group waits, from the last plan that considered the group."""
        self.taken = 0
        """The number of plans that have been applied."""
        self.claims = 0
        """Counts changes among the refused groups that may find victims: a group was added, has changed, or waits no
        more.
        """
        self._gone: dict[GroupKey, None] = {}
        self._words = Words()

    def take(self, plan: Plan, considered: Collection[GroupKey], *, settles: bool = True) -> bool:
        """Apply a plan that considered these groups; return whether no part of the plan was stale.

        Without `settles`, the considered groups that have changed must still be planned.
        """
        whole = True
        for is_whole in self._steps(plan, considered, settles=settles, pods=sys.maxsize):
            whole = whole and is_whole
        return whole

    async def take_by_steps(self, plan: Plan, considered: Collection[GroupKey], *, readiness: Precondition) -> bool:
        """Apply a plan in steps; return whether no part of the plan was stale.

        Other questions are answered between two steps, and the answers may change what the next step can apply. No
        reservation may move to another node meanwhile: a node that seems to have room may be a place of a later step.
        The method ends early and returns False when `readiness` says that this replica may not decide any more.
        """
        whole = True
        for is_whole in self._steps(plan, considered, settles=True, pods=STEP):
            whole = whole and is_whole
            # Form the changed groups now: the next reader of the waiting groups would have to form all of them at once.
            self._cache.groups.form()
            await asyncio.sleep(0)
            if readiness.failure():
                return False
        return whole

    def somebody_waits(self) -> bool:
        """Return whether any waiting group may be helped by a search for victims."""
        return any(refusal.may_find_victims for refusal in self.refusals.values())

    def note_changes(self, changes: Changes) -> None:
        """Note which groups have stopped waiting."""
        self._gone |= changes.gone

    def forget_gone(self) -> None:
        """Forget the refusals of groups that wait no more; a noted group may wait again."""
        waiting = self._cache.groups.waiting()
        gone, self._gone = self._gone, {}
        for key in gone:
            before = self._no_longer_refused(key) if key not in waiting else None
            self.claims += before is not None and before.may_find_victims

    def _steps(self, plan: Plan, considered: Collection[GroupKey], *, settles: bool, pods: int) -> Iterator[bool]:
        """Apply a plan in steps of this many pods; yield after each step whether no part of the step was stale."""
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
        """Carry out the batches that are still valid; yield after each step whether all its batches were."""
        as_planned, expected = True, plan.snapshot_version
        recheck: Recheck | None = None
        for some in _by_steps(deals(plan), pods):
            # The reservations of the steps before are no change: the plan counts on them.
            if self._cache.changes.version != expected:
                as_planned, recheck = False, None
            # A pod that is just being bound cannot be a victim, even if nothing has changed.
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
                # The pod runs on no node yet: it is enough to cancel its reservation.
                self._record_taken_back(eviction, generation)
                self._reserver.give_up(eviction.pod)
        self._evictor.order(deal.evictions, generation=generation)
        self._record_starts(deal, generation)
        if deal.waits or self._needs_devices(deal):
            self._preemptions.hold(deal.starts, tuple(dict.fromkeys(eviction.pod for eviction in deal.evictions)))
            return
        for start in deal.starts:
            self._reserver.make(start)

    def _needs_devices(self, deal: PlanBatch) -> bool:
        """Whether a GPU must first be made ready for sharing."""
        places = [placement for start in deal.starts for placement in start.placements]
        return any(not self._cache.gpus.is_ready(each.node, name) for each in places for name in each.devices)

    def _is_promised(self, uid: PodUid) -> bool:
        held = self._cache.reservations.get(uid)
        return held is not None and held.is_revocable

    # Remembering ----------------------------------------------------------------------------------------------------

    def _record_starts(self, deal: PlanBatch, generation: int) -> None:
        # A pod that only lost its reservation was not evicted.
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

    def _judge(self, key: GroupKey, plan: Plan, changed: Container[GroupKey], word: Wording) -> None:
        """Note the plan's result for a group that the plan has considered; report the result if the reason is new."""
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
            # The rest of the gang has no place, so its reservations would only block other pods. If the gang has
            # changed since, the next plan decides instead.
            self._reserver.release(key, "the gang can no longer start as a whole")


def _by_steps(found: Iterable[PlanBatch], pods: int) -> Iterator[Sequence[PlanBatch]]:
    """Yield the batches in their order, grouped into steps of about this many pods; no batch is split."""
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
