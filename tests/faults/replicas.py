"""One host of the control plane: a Leeboard process and the kube-scheduler that asks it, over one adapter."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from app.control.writers.bind_outcomes import NOT_KNOWN
from app.model.admission import AdmissionAnswer, AdmissionQuestion
from app.model.marks import BIND_MARKER
from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Check, Failed, FilterAnswer, Fits, PodQuestion, Refused, Scores
from app.model.reason import phrase
from app.model.seam import KubeError, PodRef, RawObject
from app.service import Clocks, Components
from app.settings import Settings
from app.simulation.clock import Clock
from app.simulation.scheduler import Scheduler
from app.simulation.webhooks import ExtenderError, Filtered
from tests.faults.api import ApiServer, pod_ref
from tests.faults.owned_shell import OwnedShell, Said
from tests.faults.port import Port, Witness, at_once, told
from tests.faults.processes import Process, WorldLoop
from tests.faults.trouble import Troubles

T = TypeVar("T")
FILTER_TIMEOUT_S, BIND_TIMEOUT_S = 5.0, 60.0
"""`httpTimeout` of Leeboard's entries in kube-scheduler's configuration."""
RENEW_EVERY_S, RENEW_DEADLINE_S, LEASE_S = 2.0, 10.0, 15.0
MOST_LOOKS_AT_ONCE = 100_000


class Observer(Witness, Protocol):
    """Sees also what Leeboard answers and orders."""

    def asked_to_bind(self, process: Process, pod: PodRef, node: str) -> None: ...

    def bind_ended(self, process: Process, pod: PodRef, error: str) -> None: ...

    def answered(self, process: Process, pod: RawObject, offered: Sequence[str], nodes: Sequence[str]) -> None: ...

    def ordered(self, process: Process, evictions: Sequence[Any]) -> None: ...


@dataclass(slots=True)
class Shared:
    """What all hosts have in common."""

    api: ApiServer
    loop: WorldLoop
    troubles: Troubles
    observer: Observer
    chance: Random
    clock: Clock
    settings: dict[str, Any]
    has_lease: bool
    has_admission: bool
    said: Said = field(default_factory=Said)


class Leeboard:
    """One life of Leeboard: its shell and its core, built from the cluster alone. All that it does belongs to it."""

    def __init__(self, shared: Shared, host: str, wall: Callable[[], float]) -> None:
        self.process = Process("leeboard", host)
        port = Port(shared.api, shared.loop, self.process, shared.troubles, shared.observer, shared.chance)
        self.port = port
        settings = Settings(**shared.settings, **_place(shared, host))
        clocks = Clocks(monotonic=Patience(shared.loop.time), wall=wall)
        self.began_at = shared.loop.time()
        self._shell = self.process.within(partial(OwnedShell, self.process, shared.said, settings, port, clocks))
        self.components: Components = self._shell.components
        """For one who only reads."""
        self.process.at_end(self._shell.end_recording)
        shared.loop.at_end(self._shell.end)
        self._show_answers(shared.observer)
        self._show_orders(shared.observer)
        self._running = shared.loop.spawn(self.process, self._shell.run())

    def _show_answers(self, observer: Observer) -> None:
        """Show answers when the core gives them: the books may change before the asker gets them."""
        verbs: dict[str, Any] = dict(self._shell.core._verbs)

        async def answered(question: PodQuestion) -> FilterAnswer:
            answer: FilterAnswer = await verbs["filter"](question)
            if isinstance(answer, Fits):
                observer.answered(self.process, question.pod, question.offered, answer.nodes)
            return answer

        async def bound(question: BindQuestion) -> str:
            observer.asked_to_bind(self.process, question.pod, question.node)
            error: str = NOT_KNOWN
            try:
                error = await verbs["bind"](question)
                return error
            finally:
                observer.bind_ended(self.process, question.pod, error)

        self._shell.core._verbs = {"filter": answered, "bind": bound}
        extender = self.components.extender
        filter_at_once = extender.filter_at_once

        def answered_at_once(question: PodQuestion) -> FilterAnswer | None:
            answer = filter_at_once(question)
            if isinstance(answer, Fits):
                observer.answered(self.process, question.pod, question.offered, answer.nodes)
            return answer

        extender.filter_at_once = answered_at_once  # type: ignore[method-assign]

    def _show_orders(self, observer: Observer) -> None:
        evictor = self.components.evictor
        order = evictor.order

        def observed(evictions: Any, *, generation: int = 0) -> None:
            listed = list(evictions)
            observer.ordered(self.process, listed)
            order(listed, generation=generation)

        # A wrapper on this one object shows who an eviction is for; no answer of Leeboard tells that.
        evictor.order = observed  # type: ignore[method-assign]

    async def filter(self, question: PodQuestion) -> FilterAnswer:
        return await self._shell.filter(question)

    async def bind(self, question: BindQuestion) -> str:
        return await self._shell.bind(question)

    def prioritize(self, question: PodQuestion) -> Scores:
        return self.process.within(partial(self._shell.prioritize, question))

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        return self.process.within(partial(self._shell.mutate, question))

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        return self.process.within(partial(self._shell.validate, question))

    def read(self, act: Callable[[Components], T]) -> T:
        """Read as the operations port does."""

        def reads() -> T:
            with self._shell.reading():
                return act(self.components)

        return self.process.within(reads)

    def checks(self) -> tuple[Check, ...]:
        """Read as a probe of /readyz does."""
        return self.process.within(self._shell.checks)

    def failed(self) -> list[str]:
        """Return how components have ended, which none may."""
        tasks = [self._running, *self._shell.core._parts]
        return [repr(task.exception()) for task in tasks if task.done() and not task.cancelled()]


class Patience:
    """A clock that raises when the core never waits: a turn of the shell ends only when its time is up."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last, self._asked = -1.0, 0

    def __call__(self) -> float:
        now = self._now()
        self._asked = self._asked + 1 if now == self._last else 0
        self._last = now
        if self._asked > MOST_LOOKS_AT_ONCE:
            raise RuntimeError(f"livelock: the core has looked at the clock {self._asked} times without waiting")
        return now


def _place(shared: Shared, host: str) -> dict[str, Any]:
    lease = {"scheduler_lease": "leeboard/leeboard-scheduler"} if shared.has_lease else {}
    markers = {"markers": "leeboard.dev/ask,leeboard.dev/bind"} if shared.has_admission else {}
    return {"hostname": host, **lease, **markers}


@dataclass(slots=True)
class Host:
    """Both processes of one host; either may be down."""

    name: str
    shared: Shared
    wall: Callable[[], float]
    leeboard: Leeboard | None = None
    scheduler: Process | None = None
    scheduler_task: "asyncio.Task[None] | None" = None
    past: list[object] = field(default_factory=list)
    """Killed processes: they stay referenced, so that nothing of them is collected at a time of its own."""
    lives: int = 0
    cannot_renew_until: float = 0.0

    def start_leeboard(self) -> None:
        if self.leeboard is None:
            self.leeboard = Leeboard(self.shared, self.name, self.wall)

    def kill_leeboard(self) -> None:
        if self.leeboard is not None:
            self.leeboard.process.kill()
            self.past.append(self.leeboard)
            self.leeboard = None

    def start_scheduler(self) -> None:
        if self.scheduler is None:
            self.lives += 1
            self.scheduler = Process("kube-scheduler", self.name)
            self.scheduler_task = self.shared.loop.spawn(self.scheduler, self._schedule(self.lives))

    def kill_scheduler(self) -> None:
        if self.scheduler is not None:
            self.scheduler.kill()
            self.past.append((self.scheduler, self.scheduler_task))
            self.scheduler = self.scheduler_task = None

    def release_lease(self) -> None:
        """End kube-scheduler in good order: it gives the lease up."""
        lease = self.shared.api.lease
        if lease.host == self.name:
            lease.holder = lease.host = ""
        self.kill_scheduler()

    async def _schedule(self, life: int) -> None:
        scheduler = Scheduler(self.shared.api, Door(self), self.shared.clock)
        if not self.shared.has_lease:
            await scheduler.run()
            return
        await self._acquire(life)
        scheduling = asyncio.create_task(scheduler.run())
        renewed_at = self.shared.loop.time()
        while not scheduling.done():
            await asyncio.sleep(RENEW_EVERY_S)
            now, lease = self.shared.loop.time(), self.shared.api.lease
            if lease.host != self.name or now > renewed_at + RENEW_DEADLINE_S:
                # Like kube-scheduler, which exits when it has lost the lease, and is started again.
                self.shared.loop.call_later(1.0, self.start_scheduler, context=Context())
                self.kill_scheduler()
            elif now >= self.cannot_renew_until:
                lease.renewals += 1
                renewed_at = now
        await scheduling

    async def _acquire(self, life: int) -> None:
        lease, loop = self.shared.api.lease, self.shared.loop
        seen, seen_at = -1, loop.time()
        while True:
            if lease.renewals != seen:
                seen, seen_at = lease.renewals, loop.time()
            is_over = not lease.holder or loop.time() > seen_at + LEASE_S
            if is_over and loop.time() >= self.cannot_renew_until:
                lease.holder, lease.host, lease.held_since = f"{self.name}_{life}", self.name, loop.time()
                lease.renewals += 1
                return
            await asyncio.sleep(RENEW_EVERY_S)


class Door:
    """The extender entries in kube-scheduler's configuration. A call may be delayed, lost, or answered too late."""

    def __init__(self, host: Host) -> None:
        self._host, self._shared = host, host.shared

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        if not _is_asked_about(self._shared, pod):
            return Filtered(names=tuple(names))
        bare = {name: value for name, value in pod.items() if name not in ("apiVersion", "kind")}
        question = PodQuestion(pod=bare, uid=PodUid(pod["metadata"]["uid"]), offered=tuple(map(NodeName, names)))

        match await self._call("filter", lambda it: it.filter(question), FILTER_TIMEOUT_S):
            case Fits(nodes):
                return Filtered(names=tuple(nodes))
            case Refused(reason):
                return Filtered(names=(), reasons=dict.fromkeys(names, phrase(reason)))
            case Failed(error):
                raise ExtenderError(error)

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        if self._host.leeboard is None:
            return {}
        question = PodQuestion(pod=pod, uid=PodUid(pod["metadata"]["uid"]), offered=tuple(map(NodeName, names)))
        return {str(name): score for name, score in self._host.leeboard.prioritize(question).items()}

    async def bind(self, pod: RawObject, node: str) -> None:
        if not self._is_bound_by_leeboard(pod):
            await self._bind_itself(pod, node)
            return
        question = BindQuestion(pod=pod_ref(pod), node=NodeName(node))

        if error := await self._call("bind", lambda it: it.bind(question), BIND_TIMEOUT_S):
            raise ExtenderError(error)

    def _is_bound_by_leeboard(self, pod: RawObject) -> bool:
        return not self._shared.has_admission or _requests(pod, BIND_MARKER)

    async def _bind_itself(self, pod: RawObject, node: str) -> None:
        await asyncio.sleep(self._shared.chance.uniform(0.001, 0.02))
        ref = pod_ref(pod)
        self._shared.observer.before_bind(self._host.scheduler, ref, NodeName(node), {})
        outcome = "done"
        try:
            at_once(self._shared.api.bind(ref, NodeName(node), {}))
        except KubeError as error:
            outcome = type(error).__name__
            raise ExtenderError(str(error)) from error
        finally:
            self._shared.observer.done(self._host.scheduler, "bind", f"{told(ref)} to {node}", outcome)

    async def _call(self, verb: str, ask: Callable[[Leeboard], Coroutine[Any, Any, T]], limit_s: float) -> T:
        """Ask over HTTP; raise `ExtenderError` after a time-out or a lost connection. Leeboard goes on meanwhile."""
        loop, troubles, about = self._shared.loop, self._shared.troubles, {"host": self._host.name, "verb": verb}
        late_at = loop.time() + limit_s
        slow = troubles.take("call_slow", loop.time(), **about)
        await asyncio.sleep(self._shared.chance.uniform(0.001, 0.01) + (slow.args["by_s"] if slow else 0.0))
        leeboard = self._host.leeboard
        if leeboard is None:
            raise ExtenderError(f"{verb}: connection refused")
        if troubles.take("call_lost", loop.time(), **about):
            await asyncio.sleep(late_at - loop.time())
            raise ExtenderError(f"{verb}: timed out before it arrived")
        answer: asyncio.Future[T] = loop.create_future()
        leeboard.process.at_end(partial(_reset, answer, verb))
        task = loop.spawn(leeboard.process, ask(leeboard), verb)
        task.add_done_callback(partial(_pass_on, answer), context=Context())
        try:
            async with asyncio.timeout(max(0.0, late_at - loop.time())):
                result = await answer
        except TimeoutError:
            raise ExtenderError(f"{verb}: timed out") from None
        if troubles.take("answer_lost", loop.time(), **about):
            await asyncio.sleep(max(0.0, late_at - loop.time()))
            raise ExtenderError(f"{verb}: the answer was lost")
        return result


def _is_asked_about(shared: Shared, pod: RawObject) -> bool:
    return not shared.has_admission or _requests(pod, "leeboard.dev/ask")


def _requests(pod: RawObject, marker: str) -> bool:
    containers = pod["spec"]["containers"]
    return any(marker in one.get("resources", {}).get("requests", {}) for one in containers)


def _pass_on(answer: "asyncio.Future[Any]", task: "asyncio.Task[Any]") -> None:
    if answer.done():
        return
    if task.cancelled() or task.exception() is not None:
        answer.set_exception(ExtenderError(f"the handler failed: {None if task.cancelled() else task.exception()!r}"))
    else:
        answer.set_result(task.result())
    answer.exception()


def _reset(answer: "asyncio.Future[Any]", verb: str) -> None:
    if not answer.done():
        answer.set_exception(ExtenderError(f"{verb}: connection reset"))
        answer.exception()
