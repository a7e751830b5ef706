"""Explains why no pod is evicted for a PodGroup that still has no room after all victim searches.

A cause is given only if it is true of pods that hold the room:
1. running pods would lose more work than the PodGroup has waited for
2. its queue has its fair share, so it reclaims nothing
3. the pods are not preemptible
4. the pods are of its own queue and do not have a lower priority, or preempt is switched off
5. their queues hold no more than their fair share, or reclaim is switched off
6. the pods have not run for their min-runtime
7. none of these, but no set of victims makes enough room in a way that is fair to all queues
"""

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from app.model.decision import Action
from app.model.names import QueueName
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.reason import OfVictims
from app.model.resources import QUOTA_AXES
from app.scheduling.explain.holders import HolderKind, Holders
from app.scheduling.preemption.minruntime import Protection
from app.scheduling.preemption.patience import MOVES
from app.scheduling.preemption.whatif import WhatIf
from app.scheduling.queues.accounts import Account, Quantities, quantities
from app.scheduling.queues.reclaimable import Judgement
from app.scheduling.queues.wording import amount_text

NOT_PREEMPTIBLE = "pods that hold the room are not preemptible"
PRIORITY = "pods of its own queue have the same or a higher priority"
NO_PREEMPT = "the preempt action is switched off"
FAIR_SHARE = "other queues hold no more than their fair share"
NO_RECLAIM = "the reclaim action is switched off"
MIN_RUNTIME = "pods that hold the room have not run for their min-runtime yet"

CAUSES = (NOT_PREEMPTIBLE, PRIORITY, NO_PREEMPT, FAIR_SHARE, NO_RECLAIM, MIN_RUNTIME)
"""In the order in which they appear in the sentence."""

NOTHING_FOUND = "no pod is evicted for it because no pods were found whose eviction would make enough room"


class Unevicted:
    """Explanations for one plan after all its searches."""

    def __init__(self, state: WhatIf, protection: Protection, actions: Collection[Action], now: float) -> None:
        """`now` is in seconds since the epoch."""
        self._state = state
        self._protection = protection
        self._actions = actions
        self._now = now

    @cached_property
    def _holders(self) -> Holders:
        # Building this reads every pod, and many plans need no explanation.
        return Holders(self._state)

    def why(
        self, group: PodGroup, pods: Sequence[Pod], too_dear: Collection[str] = (), patience_s: float = 0.0
    ) -> OfVictims:
        """Return why no pod is evicted for these pods, which start together.

        `too_dear` are the actions by which other pods would lose more work than these have waited for. These wait for
        reclaim for at most `patience_s`.
        """
        kinds = self._holders.of(group, pods)
        if not kinds:
            return OfVictims()
        if Action.RECLAIM in too_dear:
            return OfVictims(clause=_too_dear(patience_s))
        found = self._of(group, pods, kinds)
        if Action.CONSOLIDATE not in too_dear:
            return found
        clauses = () if found.clause == NOTHING_FOUND else (found.clause,)
        return replace(found, clause="; ".join((*clauses, _no_move(patience_s * MOVES))))

    def _of(self, group: PodGroup, pods: Sequence[Pod], kinds: Sequence[HolderKind]) -> OfVictims:
        request = quantities(self._state.most_request(group, pods))
        account, fair = self._state.ledger.accounts[group.queue], quantities(self._state.shares[group.queue].fair_share)
        over = _first_over(account, fair, request)
        asking = _Asking(group, request, is_over=over is not None)
        found = set(self._causes(asking, kinds))
        said = [cause for cause in CAUSES if cause in found]
        if over is None:
            return OfVictims(clause=f"no pod is evicted for it because {_listed(said)}" if said else NOTHING_FOUND)
        return _has_its_share(account, fair, request, over, said)

    def _causes(self, asking: "_Asking", kinds: Sequence[HolderKind]) -> Iterator[str]:
        takeable = frozenset(self._takeable(asking, kinds))
        for kind in kinds:
            if not kind.preemptible:
                yield NOT_PREEMPTIBLE
            elif kind.queue == asking.group.queue:
                yield from self._in_own_queue(asking, kind)
            elif not asking.is_over:
                yield from self._in_another_queue(asking, kind, takeable)

    def _in_own_queue(self, asking: "_Asking", kind: HolderKind) -> Iterator[str]:
        if kind.priority >= asking.group.priority:
            yield PRIORITY
        elif Action.PREEMPT not in self._actions:
            yield NO_PREEMPT
        elif self._is_young(kind, self._protection.preempt_s(kind.queue)):
            yield MIN_RUNTIME

    def _in_another_queue(self, asking: "_Asking", kind: HolderKind, takeable: Container[QueueName]) -> Iterator[str]:
        if kind.queue not in takeable:
            yield FAIR_SHARE
        elif Action.RECLAIM not in self._actions:
            yield NO_RECLAIM
        elif self._is_young(kind, self._protection.reclaim_s(asking.group.queue, kind.queue)):
            yield MIN_RUNTIME

    def _takeable(self, asking: "_Asking", kinds: Sequence[HolderKind]) -> Iterator[QueueName]:
        """Yield the other queues that hold more than their share, so that the asking group may reclaim from them."""
        names = dict.fromkeys(kind.queue for kind in kinds if kind.preemptible and kind.queue != asking.group.queue)
        state = self._state
        judgement = Judgement(state.ledger, state.shares, asking.group, asking.request)
        return judgement.takeable(name for name in names if state.ledger.payer(name) is not None)

    def _is_young(self, kind: HolderKind, min_runtime_s: float) -> bool:
        return self._now < kind.started_at + min_runtime_s


@dataclass(frozen=True, slots=True)
class _Asking:
    """The pending PodGroup."""

    group: PodGroup
    request: Quantities
    is_over: bool
    """Whether its queue would hold more than its fair share."""


def _first_over(account: Account, fair: Quantities, request: Quantities) -> int | None:
    """Return the first resource of which the queue would exceed its fair share. Requested resources are first."""
    over = [axis for axis in QUOTA_AXES if account.allocated[axis] + request[axis] > fair[axis]]
    return min(over, key=lambda axis: (not request[axis], axis), default=None)


def _has_its_share(
    account: Account, fair: Quantities, request: Quantities, axis: int, said: Sequence[str]
) -> OfVictims:
    amounts = {"fair_share": fair[axis], "allocated": account.allocated[axis], "requested": request[axis]}
    told = {name: amount_text(axis, amount) for name, amount in amounts.items()}
    share = f"its fair share of {told['fair_share']}"
    over = f"would exceed {share} with {told['requested']} more" if request[axis] else f"has more than {share}"
    clause = f"queue {account.name} holds {told['allocated']} and {over}, so it reclaims nothing"
    more = f", and {_listed(said)}" if said else ""
    return OfVictims(clause=clause + more, details={"queue": account.name, **told})


def _no_move(longest_s: float) -> str:
    return (
        "no running pod is moved to another node for it until it has waited for as long as the work that moved pods "
        f"would lose, or for {longest_s:g} s"
    )


def _too_dear(patience_s: float) -> str:
    return (
        "no pod is evicted for it yet because running pods would lose too much work; "
        f"they may be evicted after it has waited for {patience_s:g} s"
    )


def _listed(causes: Sequence[str]) -> str:
    *first, last = causes
    return f"{', '.join(first)} and {last}" if first else last
