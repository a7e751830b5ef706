"""Faults planted in the code, one at a time, and how many seeds it takes to find each: a check must be able to fail.

`python -m tests.faults.planted` runs them; it leaves no trace in the code.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from app.cluster.gpus import judgement
from app.cluster.gpus.gpu_books import GpuBooks
from app.cluster.groups.staleness import Staleness
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.cluster.state.limits import QueueLimits
from app.cluster.state.promises import Promises
from app.cluster.state.unread import UnreadPods
from app.control.cycle.preemptions import PendingPreemptions
from app.control.cycle.waker import Waker
from app.control.informers.feed import Feed
from app.control.leadership.leadership import Leadership
from app.control.webhooks.extender import Extender
from app.control.writers.barrier import GangBarrier
from app.control.writers.bind_outcomes import BindOutcomes
from app.model.names import NodeName
from app.model.question import Fits
from app.scheduling.queues.quota import QueueLedger
from tests.faults.api import ApiServer, pod_ref
from tests.faults.generate import generate
from tests.faults.world import Outcome, World

SEEDS = 200


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault: attributes that are replaced while it is in the code."""

    name: str
    replaced: tuple[tuple[Any, str, Any], ...]

    @contextmanager
    def in_code(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, value in self.replaced:
                stack.callback(setattr, owner, attribute, getattr(owner, attribute))
                setattr(owner, attribute, value)
            yield


def found_by(planted: Planted, seeds: range) -> Outcome | None:
    """Return the first run that notices the fault, and that is clean without it."""
    for seed in seeds:
        with planted.in_code():
            outcome = _run(seed)
        if outcome.violations and not _run(seed).violations:
            return outcome
    return None


def _run(seed: int) -> Outcome:
    return World(generate(seed)).run()


# What is replaced -----------------------------------------------------------------------------------------------------


def _always(value: object) -> Any:
    def same(*_: object, **__: object) -> object:
        return value

    return same


_bind: Callable[..., Any] = ApiServer.bind
_hold: Callable[..., Any] = Promises._hold
_answer: Callable[..., Any] = Extender._answer_promised
_part: Callable[..., Any] = GpuBooks._part


async def _bind_by_name(self: ApiServer, pod: Any, node: NodeName, annotations: Mapping[str, str]) -> None:
    current = self.pod(pod.namespace, pod.name)
    await _bind(self, pod if current is None else pod_ref(current), node, annotations)


def _hold_without_charge(self: Promises, uid: Any, at: Any, state: ReservationState, expires_at: float) -> None:
    settle = self._settlement.settle
    self._settlement.settle = _always(None)  # type: ignore[method-assign] # planted
    try:
        _hold(self, uid, at, state, expires_at)
    finally:
        self._settlement.settle = settle  # type: ignore[method-assign]


def _answer_another(self: Extender, held: Reservation, question: Any) -> Any:
    answer = _answer(self, held, question)
    others = [name for name in question.offered if name != held.node]
    return Fits((others[0],)) if isinstance(answer, Fits) and others else answer


def _half_a_part(self: GpuBooks, pod: Any, charge: Any) -> Any:
    part = _part(self, pod, charge)
    return None if part is None else replace(part, parts=part.parts // 2, memory_mib=part.memory_mib // 2)


async def _stand_nowhere(self: GangBarrier, key: Any, uid: Any, node: Any, *, within_s: float | None = None) -> str:
    del key, within_s
    if not self._is_promised(uid, node):
        return "gone"
    self._cache.reservations.binding(uid)
    return ""


async def _surely_undone(self: BindOutcomes, pod: Any, node: Any) -> str | None:
    del self, pod, node
    return "the API server did not answer"


FAULTS: tuple[Planted, ...] = (
    Planted("the uid of a Binding is not checked", ((ApiServer, "bind", _bind_by_name),)),
    Planted("a reservation is not charged", ((Promises, "_hold", _hold_without_charge),)),
    Planted("the lease is ignored", ((Leadership, "failure", _always("")),)),
    Planted("filter answers another node", ((Extender, "_answer_promised", _answer_another),)),
    Planted("held room is forgotten", ((PendingPreemptions, "hold", _always(None)),)),
    Planted("a part of a GPU counts half", ((GpuBooks, "_part", _half_a_part),)),
    Planted(
        "the limit of a queue is ignored",
        (
            (QueueLedger, "over_limit", _always(None)),
            (QueueLimits, "admit", _always(value=True)),
            (QueueLimits, "admit_later", _always(value=True)),
        ),
    ),
    Planted("non-preemptible pods exceed the quota", ((QueueLedger, "over_quota", _always(None)),)),
    Planted("a gang binds without its barrier", ((GangBarrier, "stand", _stand_nowhere),)),
    Planted("the beneficiary of an eviction never starts", ((PendingPreemptions, "_fulfil", _always(value=False)),)),
    Planted("unhealthy GPUs are used", ((judgement, "_obstacle", _always("")),)),
    Planted("stale gangs stay", ((Staleness, "age", _always(())),)),
    Planted("an unknown outcome counts as a refusal", ((BindOutcomes, "find_out", _surely_undone),)),
    Planted("deletions are not applied", ((Feed, "_delete", _always(None)),)),
    Planted("a node with a pod that cannot be read takes pods", ((UnreadPods, "replace", _always([])),)),
    Planted("nobody is woken", ((Waker, "wake", _always(None)),)),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.planted", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds to try for each fault")
    parser.add_argument("--only", default="", help="only faults with these words in their name")
    asked = parser.parse_args()
    missed = 0
    for planted in FAULTS:
        if asked.only not in planted.name:
            continue
        began = time.monotonic()
        outcome = found_by(planted, range(asked.seeds))
        missed += outcome is None
        told = "NOT FOUND" if outcome is None else f"seed {outcome.seed}: {str(outcome.violations[0])[:160]}"
        print(f"{planted.name}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
