"""The cluster as one Leeboard process sees it: the API server over a network that delays, cuts, loses and repeats.

What a real watch guarantees holds here, too: the events of one kind arrive in the order of their writes. Only the
order between kinds, and between watches and answers, is open. An event may be lost or repeated, which an API server
does not do: the audit must find it, or the next list.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from app.model.names import NodeName
from app.model.seam import (
    BudgetError,
    Changed,
    Deleted,
    Depth,
    KubeError,
    Lease,
    Listed,
    Lost,
    OutcomeUnknownError,
    PodRef,
    Progress,
    RawObject,
    Resource,
    UnavailableError,
    WatchEvent,
)
from app.simulation.store import PROGRESS_EVERY_S, News
from tests.faults.api import ApiServer, ref_of
from tests.faults.processes import Process, WorldLoop
from tests.faults.trouble import ERRORS, Fault, Troubles

T = TypeVar("T")
REBORN_AFTER_S = 1.3
WAYS_S = (0.001, 0.02)
"""How long a request, an answer or an event is on its way without a fault."""


class Witness(Protocol):
    """Sees every write when the API server carries it out, and every write that is sent."""

    def sent(self, process: Process, verb: str, target: str) -> None: ...

    def before_bind(self, process: Process | None, pod: PodRef, node: NodeName, marks: Mapping[str, str]) -> None: ...

    def after_bind(self, process: Process | None, pod: PodRef, node: NodeName) -> None: ...

    def ended(self, process: Process, verb: str, target: str) -> None: ...

    def done(self, process: Process | None, verb: str, target: str, outcome: str) -> None: ...


class Port:
    """Implements `model.seam.Cluster` for one process."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self, api: ApiServer, loop: WorldLoop, process: Process, troubles: Troubles, witness: Witness, chance: Random
    ) -> None:
        self._api, self._loop, self._process = api, loop, process
        self._troubles, self._witness, self._chance = troubles, witness, chance
        self.streams: list[Stream[Any]] = []
        self._open: dict[int, Callable[[], None]] = {}
        """Requests that the API server has not carried out yet."""
        self._numbers = 0
        process.at_end(self._close)

    def _close(self) -> None:
        """The connections are gone: each open request is carried out now, or never."""
        for carry_out in list(self._open.values()):
            if self._chance.random() < 0.5:
                carry_out()
        self._open.clear()
        for stream in self.streams:
            stream.end()

    # Requests -------------------------------------------------------------------------------------------------------

    async def _ask(self, verb: str, target: str, act: Callable[[], Coroutine[Any, Any, T]], *, is_write: bool) -> T:
        """Send a request, and wait for the answer."""
        if self._process.is_dead:
            raise asyncio.CancelledError
        now = self._loop.time()
        if is_write:
            self._witness.sent(self._process, verb, target)
        about = {"host": self._process.host, "verb": verb}
        refused = self._troubles.take("refuse", now, **about) if is_write else None
        refused = refused or self._troubles.take("outage", now, host=self._process.host)
        slow = self._troubles.take("slow", now, **about)
        await asyncio.sleep(self._way_s())
        if refused is not None:
            self._witness.done(self._process, verb, target, "refused")
            raise _error(refused, verb)
        unknown = self._troubles.take("unknown", now, **about) if is_write else None
        carry_out, answer = self._open_request(verb, target, act, is_write=is_write)
        if unknown is not None:
            if not unknown.args["done"]:
                self._witness.ended(self._process, verb, target)
            raise await self._lose_answer(unknown, carry_out)
        return await self._answered(carry_out, answer, slow)

    def _open_request(
        self, verb: str, target: str, act: Callable[[], Coroutine[Any, Any, T]], *, is_write: bool
    ) -> tuple[Callable[[], None], "asyncio.Future[T]"]:
        number = self._numbers = self._numbers + 1
        answer: asyncio.Future[T] = self._loop.create_future()

        def carry_out() -> None:
            if self._open.pop(number, None) is None:
                return
            outcome = "done"
            try:
                result = at_once(act())
                if not answer.done():
                    answer.set_result(result)
            except KubeError as error:
                outcome = type(error).__name__
                if not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # Nobody may wait for it any more.
            if is_write:
                self._witness.done(self._process, verb, target, outcome)

        self._open[number] = carry_out
        return carry_out, answer

    async def _answered(self, carry_out: Callable[[], None], answer: "asyncio.Future[T]", slow: Fault | None) -> T:
        way_s = self._way_s() + (slow.args["by_s"] if slow else 0.0)
        # The API server is no part of the process: it goes on when the process is killed.
        handle = self._loop.call_later(way_s, carry_out, context=Context())
        try:
            return await answer
        except asyncio.CancelledError:
            # The connection is closed: what is carried out is carried out by now, or never.
            handle.cancel()
            if self._chance.random() < 0.5:
                carry_out()
            raise

    async def _lose_answer(self, unknown: Fault, carry_out: Callable[[], None]) -> KubeError:
        done, after_s = unknown.args["done"], unknown.args.get("late_s", 0.0)
        if done:
            self._loop.call_later(after_s, carry_out, context=Context())
        await asyncio.sleep(unknown.args.get("noticed_s", 1.0))
        return OutcomeUnknownError("the connection was lost before the answer")

    def _way_s(self) -> float:
        return self._chance.uniform(*WAYS_S)

    # Watches --------------------------------------------------------------------------------------------------------

    async def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        stream = Stream(self._api, resource, keep, self)
        self.streams.append(stream)
        await asyncio.sleep(self._way_s())
        while True:
            yield await stream.event()

    def lag_s(self, resource: Resource) -> float:
        fault = self._troubles.take("lag", self._loop.time(), host=self._process.host, kind=repr(resource))
        return self._way_s() + (fault.args["by_s"] if fault else 0.0)

    def takes(self, kind: str, resource: Resource) -> bool:
        """Whether a fault of this kind hits an event of this resource."""
        return self._troubles.take(kind, self._loop.time(), host=self._process.host, kind=repr(resource)) is not None

    @property
    def loop(self) -> WorldLoop:
        return self._loop

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        return self._api.follow(path, keep, depth=depth)

    # Reads ----------------------------------------------------------------------------------------------------------

    async def path_of(self, api_version: str, kind: str) -> str | None:
        return await self._ask("discover", kind, partial(self._api.path_of, api_version, kind), is_write=False)

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        act = partial(self._api.read_object, path, namespace, name, depth=depth)
        return await self._ask("read_object", name, act, is_write=False)

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        act = partial(self._api.list_objects, path, keep, depth=depth)
        return await self._ask("list_objects", path, act, is_write=False)

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        act = partial(self._api.listed, resource, keep, depth=depth, namespace=namespace, name=name)
        return await self._ask("listed", repr(resource), act, is_write=False)

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        return await self._ask("read_pod", pod.name, partial(self._api.read_pod, pod), is_write=False)

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        return await self._ask("finished_pods", "", partial(self._api.finished_pods, keep), is_write=False)

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        return await self._ask("read_lease", name, partial(self._api.read_lease, namespace, name), is_write=False)

    async def tight_budgets(self) -> frozenset[str]:
        return await self._ask("tight_budgets", "", self._api.tight_budgets, is_write=False)

    async def may_evict(self, pod: PodRef) -> bool:
        return await self._ask("may_evict", pod.name, partial(self._api.may_evict, pod), is_write=False)

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        return await self._ask("pods_in", namespace, partial(self._api.pods_in, namespace, keep), is_write=False)

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        return await self._ask("find_pod", name, partial(self._api.find_pod, namespace, name), is_write=False)

    # Writes ---------------------------------------------------------------------------------------------------------

    async def _write(self, verb: str, target: str, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await self._ask(verb, target, act, is_write=True)

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        about = {"host": self._process.host, "verb": "bind"}
        if self._troubles.take("reborn", self._loop.time(), **about) and await self._api.read_pod(pod):
            # Its user deletes the pod just now, and the binding is so slow that the next pod of this name finds it.
            self._api._have_it_leave(ref_of(pod))
            await asyncio.sleep(REBORN_AFTER_S)

        async def act() -> None:
            self._witness.before_bind(self._process, pod, node, annotations)
            await self._api.bind(pod, node, annotations)
            self._witness.after_bind(self._process, pod, node)

        await self._write("bind", f"{told(pod)} to {node}", act)

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        await self._write("nominate", f"{told(pod)} to {node}", partial(self._api.nominate, pod, node))

    async def release(self, pod: PodRef) -> None:
        await self._write("release", told(pod), partial(self._api.release, pod))

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        await self._write("say_unschedulable", told(pod), partial(self._api.say_unschedulable, pod, message))

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        act = partial(self._api.mark_disrupted, pod, reason=reason, message=message)
        await self._write("mark_disrupted", told(pod), act)

    async def evict(self, pod: PodRef) -> None:
        await self._write("evict", told(pod), partial(self._api.evict, pod))

    async def delete_pod(self, pod: PodRef) -> None:
        await self._write("delete_pod", told(pod), partial(self._api.delete_pod, pod))

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        target = f"{namespace}/{pod['metadata']['name']}"
        await self._write("create_pod", target, partial(self._api.create_pod, namespace, pod))

    async def remove_pod(self, pod: PodRef) -> None:
        await self._write("remove_pod", told(pod), partial(self._api.remove_pod, pod))

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        await self._write("annotate_pod", told(pod), partial(self._api.annotate_pod, pod, annotations))

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        act = partial(self._api.write_status, resource, namespace, name, status)
        await self._write(f"status of {resource!r}", f"{namespace}/{name}", act)

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        act = partial(self._api.record_event, regarding, warning=warning, reason=reason, note=note)
        await self._write("record_event", f"{regarding.get('name')} {reason}", act)

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        target = f"{namespace}/{raw['metadata'].get('name')}"
        await self._write("create_object", target, partial(self._api.create_object, path, namespace, raw))

    async def amend_object(self, path: str, namespace: str, name: str, change: RawObject) -> None:
        act = partial(self._api.amend_object, path, namespace, name, change)
        await self._write("amend_object", f"{namespace}/{name}", act)

    async def remove_object(self, path: str, namespace: str, name: str, *, uid: str) -> None:
        act = partial(self._api.remove_object, path, namespace, name, uid=uid)
        await self._write("remove_object", f"{namespace}/{name}", act)


class Stream(Generic[T]):
    """One watch of one process. It lists first, and after each cut that loses its place."""

    def __init__(self, api: ApiServer, resource: Resource, keep: Callable[[RawObject], T], port: Port) -> None:
        self._api, self.resource, self._keep, self._port = api, resource, keep, port
        self._mail: deque[tuple[float, News]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._must_list, self._cause, self._is_lost = True, "", False
        self._back_at = 0.0
        self._stop: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Nobody reads any more."""
        self._stop()
        self._stop = lambda: None

    def cut(self, for_s: float, *, relists: bool) -> None:
        """Break the connection. It comes back after this time, at its place or with a new list."""
        self._cause, self._back_at = "connection lost", self._port.loop.time() + for_s
        if relists:
            self._must_list = True
            self._mail.clear()
            self.end()
        self._rouse()

    async def event(self) -> WatchEvent[T]:
        """Return the next event when it arrives."""
        began = self._port.loop.time()
        while True:
            now = self._port.loop.time()
            if self._cause:
                cause, self._cause, self._is_lost = self._cause, "", True
                return Lost(cause)
            if now < self._back_at:
                await self._rest(self._back_at - now)
            elif self._must_list:
                return self._list()
            elif self._mail and self._mail[0][0] <= now:
                return self._take(self._mail.popleft()[1])
            elif self._is_lost or now >= began + PROGRESS_EVERY_S:
                self._is_lost = False
                return Progress()
            else:
                due_at = self._mail[0][0] if self._mail else began + PROGRESS_EVERY_S
                await self._rest(due_at - now)

    def _list(self) -> WatchEvent[T]:
        self._must_list = self._is_lost = False
        self._stop = self._api.listen(self.resource, self._push)
        return Listed([self._keep(item) for item in self._api.watched(self.resource)])

    def _take(self, news: News) -> WatchEvent[T]:
        self._is_lost = False
        match news:
            case Changed(item):
                return Changed(self._keep(item))
            case Deleted(item):
                return Deleted(self._keep(item))

    def _push(self, news: News) -> None:
        if self._port.takes("lose", self.resource):
            return
        due_at = self._port.loop.time() + self._port.lag_s(self.resource)
        if self._mail:
            due_at = max(due_at, self._mail[-1][0])
        for _ in range(2 if self._port.takes("repeat", self.resource) else 1):
            self._mail.append((due_at, news))
        self._rouse()

    async def _rest(self, seconds: float) -> None:
        self._wake = self._port.loop.create_future()
        handle = self._port.loop.call_later(seconds, self._rouse)
        try:
            await self._wake
        finally:
            handle.cancel()
            self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def told(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name} {pod.uid[-6:]}"


def at_once(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, as those of the simulated API server."""
    try:
        coro.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the API server waited for something")


def _error(fault: Fault, verb: str) -> KubeError:
    kind = ERRORS[fault.args.get("error", "unavailable")]
    if kind is BudgetError and verb != "evict":
        kind = UnavailableError
    return kind(f"{verb} fails on purpose")
