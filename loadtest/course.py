"""One run, from the release of everything at one moment to the last bind, and what was measured meanwhile."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import httpx

from loadtest.contender import Contender, Looked, Planned, Planner
from loadtest.ledger import Ledger
from loadtest.programs import Programs
from loadtest.results import Figures, Made, Watched, quantile
from loadtest.scenarios import Arrival, Scenario
from tests.system import audit
from tests.system.api import WRITERS, Api, Object, collection_of
from tests.system.bed import Bed

LOOK_EVERY_S = 0.1
QUIET_S = 1.0
"""Nothing is written for so long: then it is quiet."""
QUIET_WITHIN_S = 10.0
WORKED_ON_S = 60.0
"""For so long at the most a scheduler works on what it cannot do before others come: on a slow machine kube-scheduler
needs more than 20 s to refuse 2,000 pods once, and others never rest."""


class TimeUpError(Exception):
    """Not all pods were bound in time. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What programs tell of themselves at one moment, since they were started."""

    cpu_s: Mapping[str, float]
    attempts: float | None
    planned: Planned | None

    @classmethod
    def of(cls, programs: Programs, contender: Contender) -> Self:
        """Read them all; what a program that is gone would have told is missing."""
        attempts, planned = None, None
        with suppress(httpx.HTTPError):
            attempts = contender.attempts()
            planned = contender.planned() if isinstance(contender, Planner) else None
        return cls(cpu_s=programs.cpu_s(), attempts=attempts, planned=planned)


class Course:
    """Measures one scheduler that has been started and waits for its release."""

    def __init__(self, bed: Bed, api: Api, programs: Programs, contender: Contender, *, limit_s: float) -> None:
        self._api = api
        self._programs = programs
        self._contender = contender
        self._limit_s = limit_s
        self._tail = audit.Tail(bed.audit_log)
        # All below is of the pods that were measured last; changed by `_measure` and `run`.
        self._ledger = Ledger((), since_s=time.time())
        self._count = 1
        self._before = self._after = Readings.of(programs, contender)
        self._empty_pods_per_s: float | None = None
        self._makes_room = False

    def close(self) -> None:
        """Let go of the audit log."""
        self._tail.close()

    @property
    def bound(self) -> int:
        """How many of the pods that count have been bound so far."""
        return self._ledger.bound

    def run(self, scenario: Scenario, work: Mapping[str, Sequence[Object]]) -> None:
        """Do it all; raises `TimeUpError`, or `ChildDiedError` when a program is gone."""
        self._makes_room = scenario.running is not None
        release = partial(self._contender.release, self._api, scenario.queues)
        if scenario.arrival is Arrival.BEFORE:
            self._measure(work[scenario.batch.name], release)
            return
        release()
        self._await_quiet(within_s=WORKED_ON_S)
        if scenario.early:
            self._measure_created(work[scenario.early.name])
            self._empty_pods_per_s = self.figures().pods_per_s
        if scenario.backlog:
            create(self._api, work[scenario.backlog.name])
            self._await_quiet(within_s=WORKED_ON_S)
        self._measure_created(work[scenario.batch.name])

    def figures(self) -> Figures:
        """Return what has been measured, as far as it came."""
        ledger, count = self._ledger, self._count
        binds_s = ledger.binds_s
        cpu_s = {name: spent - self._before.cpu_s.get(name, 0.0) for name, spent in self._after.cpu_s.items()}
        return Figures(
            pods_per_s=count / binds_s[-1] if len(binds_s) == count else None,
            first_bind_s=binds_s[0] if binds_s else None,
            p50_s=quantile(binds_s, 50),
            p99_s=quantile(binds_s, 99),
            last_bind_s=binds_s[-1] if binds_s else None,
            writes_per_pod=ledger.writes / count,
            writes_by_agent={agent: writes / count for agent, writes in ledger.writes_by_agent.items()},
            attempts_per_pod=_grown(self._before.attempts, self._after.attempts, count),
            cpu_ms_per_pod={name: spent * 1000 / count for name, spent in cpu_s.items()},
            peak_mib=self._programs.peak_mib(),
            empty_pods_per_s=self._empty_pods_per_s,
            made=self._made() if self._makes_room else None,
            watched=self._watched(),
        )

    def _watched(self) -> Watched | None:
        if not isinstance(self._contender, Looked) or not self._ledger.binds_s:
            return None
        since = self._ledger.since_s
        return self._contender.watched(since, since + self._ledger.binds_s[-1])

    def _made(self) -> Made:
        evictions_s = self._ledger.evictions_s
        took_s = evictions_s[-1] - evictions_s[0] if evictions_s else 0.0
        before, after = self._before.planned, self._after.planned
        return Made(
            evicted=len(evictions_s),
            last_eviction_s=evictions_s[-1] if evictions_s else None,
            evictions_per_s=(len(evictions_s) - 1) / took_s if took_s else None,
            plans=round(after.plans - before.plans) if before and after else None,
            planned_s=after.seconds - before.seconds if before and after else None,
        )

    # The clock ------------------------------------------------------------------------------------------------------

    def _measure_created(self, objects: Sequence[Object]) -> None:
        self._measure(objects, partial(create, self._api, objects))

    def _measure(self, objects: Sequence[Object], begin: Callable[[], None]) -> None:
        names = [item["metadata"]["name"] for item in objects if item["kind"] == "Pod"]
        self._count = len(names)
        self._before = self._after = Readings.of(self._programs, self._contender)
        self._ledger = Ledger(names, since_s=time.time())
        begin()
        try:
            self._await_bound()
        finally:
            self._after = Readings.of(self._programs, self._contender)
        # Events and status follow the last bind; they are part of what a pod costs. Attempts are counted late, too.
        self._await_quiet(within_s=QUIET_WITHIN_S)
        self._after = replace(self._after, attempts=Readings.of(self._programs, self._contender).attempts)

    def _await_bound(self) -> None:
        deadline_s = time.monotonic() + self._limit_s
        while self._read().bound < self._count:
            if time.monotonic() > deadline_s:
                raise TimeUpError(f"time was up after {self._limit_s:g} s.")
            self._programs.check_alive()
            time.sleep(LOOK_EVERY_S)

    def _await_quiet(self, *, within_s: float) -> None:
        """Wait until nothing is written for a while, or so long."""
        deadline_s, before = time.monotonic() + within_s, -1
        while time.monotonic() < deadline_s and (now := self._read().writes) != before:
            before = now
            self._programs.check_alive()
            time.sleep(QUIET_S)

    def _read(self) -> Ledger:
        for event in self._tail.events():
            self._ledger.note(event)
        return self._ledger


def create(api: Api, objects: Sequence[Object]) -> None:
    """Create objects, pods after what they may name, and give those their status that have one."""
    pods = [item for item in objects if item["kind"] == "Pod"]
    api.create_all([item for item in objects if item["kind"] != "Pod"])
    api.create_all(pods)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(partial(_give_status, api), [item for item in objects if "status" in item]))


def _give_status(api: Api, item: Object) -> None:
    api.patch(f"{collection_of(item)}/{item['metadata']['name']}/status", {"status": item["status"]})


def _grown(before: float | None, after: float | None, count: int) -> float | None:
    return None if before is None or after is None else (after - before) / count
