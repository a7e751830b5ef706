"""The cluster as the core sees it: each call leaves as a Command, and its outcome comes back as an input.

The shell carries the Commands out, in any order and at any speed. Only the order in which it delivers the outcomes can
change what the core does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar

from app.core.loop import DeterministicLoop
from app.model.names import NodeName
from app.model.seam import Cluster, Depth, Lease, PodRef, RawObject, Resource, WatchEvent

T = TypeVar("T")

Keep = Callable[[RawObject], Any]
"""Reduces a raw object to its record. It is a part of the core, and the shell calls it there."""


READS = frozenset(
    {
        "watch",
        "follow",
        "path_of",
        "read_object",
        "list_objects",
        "listed",
        "read_pod",
        "finished_pods",
        "read_lease",
        "tight_budgets",
        "may_evict",
        "pods_in",
        "find_pod",
    }
)
"""The verbs that change nothing in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One call of a cluster's method."""

    verb: str
    """The name of the method of `Cluster`."""
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: Keep | None = None
    follows: bool = False
    """Whether the outcome is a stream of watch events."""


class Executes(Protocol):
    """The shell."""

    def execute(self, number: int, command: Command) -> None:
        """Begin a Command; its outcome is delivered under its number."""
        ...

    def withdraw(self, number: int) -> None:
        """Stop a Command: nobody waits for its outcome any more. What was sent stays sent."""
        ...

    def consumed(self, number: int) -> None:
        """Note that the core has taken one event of a watch."""
        ...


@dataclass(frozen=True, slots=True)
class _Broken:
    """A watch ended with an error, which no watch should."""

    error: Exception


class CommandCluster(Cluster):
    """Numbers the Commands in the order in which the core sends them. Outcomes are delivered inside a round."""

    def __init__(self, loop: DeterministicLoop, shell: Executes) -> None:
        self._loop = loop
        self._shell = shell
        self._numbers = count(1)
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._watches: dict[int, asyncio.Queue[Any]] = {}

    # Inputs -----------------------------------------------------------------------------------------------------------

    def deliver(self, number: int, result: Any) -> None:
        """Take the result of a Command. One that was withdrawn has no use for it."""
        outcome = self._unanswered.get(number)
        if outcome is not None and not outcome.done():
            outcome.set_result(result)

    def fail(self, number: int, error: Exception) -> None:
        """Take the error of a Command or of a watch."""
        outcome = self._unanswered.get(number)
        if outcome is not None and not outcome.done():
            outcome.set_exception(error)
        elif number in self._watches:
            self._watches[number].put_nowait(_Broken(error))

    def show(self, number: int, event: WatchEvent[Any]) -> None:
        """Take the next event of a watch."""
        if number in self._watches:
            self._watches[number].put_nowait(event)

    # Commands ---------------------------------------------------------------------------------------------------------

    async def _ask(self, verb: str, *arguments: Any, keep: Keep | None = None, **options: Any) -> Any:
        number = next(self._numbers)
        outcome = self._unanswered[number] = self._loop.create_future()
        self._shell.execute(number, Command(verb=verb, arguments=arguments, options=options, keep=keep))
        try:
            return await outcome
        except asyncio.CancelledError:
            self._shell.withdraw(number)
            raise
        finally:
            del self._unanswered[number]

    async def _follow(self, verb: str, *arguments: Any, keep: Keep, **options: Any) -> AsyncIterator[WatchEvent[Any]]:
        number = next(self._numbers)
        shown = self._watches[number] = asyncio.Queue()
        command = Command(verb=verb, arguments=arguments, options=options, keep=keep, follows=True)
        self._shell.execute(number, command)
        try:
            while True:
                event = await shown.get()
                if isinstance(event, _Broken):
                    raise event.error
                self._shell.consumed(number)
                yield event
        finally:
            del self._watches[number]
            self._shell.withdraw(number)

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind."""
        return self._follow("watch", resource, keep=keep)

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind that is unknown at build time."""
        return self._follow("follow", path, keep=keep, depth=depth)

    async def path_of(self, api_version: str, kind: str) -> str | None:
        """Ask for the API path of a kind."""
        found: str | None = await self._ask("path_of", api_version, kind)
        return found

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        """Read an object."""
        found: RawObject | None = await self._ask("read_object", path, namespace, name, depth=depth)
        return found

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        """List all objects of a kind."""
        found: list[T] = await self._ask("list_objects", path, keep=keep, depth=depth)
        return found

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        """Create an object."""
        await self._ask("create_object", path, namespace, raw)

    async def amend_object(self, path: str, namespace: str, name: str, change: RawObject) -> None:
        """Merge a change into an object."""
        await self._ask("amend_object", path, namespace, name, change)

    async def remove_object(self, path: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete an object."""
        await self._ask("remove_object", path, namespace, name, uid=uid)

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        """List a watched kind."""
        found: list[T] = await self._ask("listed", resource, keep=keep, depth=depth, namespace=namespace, name=name)
        return found

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind a pod."""
        await self._ask("bind", pod, node, annotations)

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        """Read a pod."""
        found: RawObject | None = await self._ask("read_pod", pod)
        return found

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """List the succeeded pods."""
        found: list[T] = await self._ask("finished_pods", keep=keep)
        return found

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Read a Lease."""
        found: Lease | None = await self._ask("read_lease", namespace, name)
        return found

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Nominate a pod for a node."""
        await self._ask("nominate", pod, node)

    async def release(self, pod: PodRef) -> None:
        """Take the gate off a pod."""
        await self._ask("release", pod)

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        """Write why a pod is not scheduled."""
        await self._ask("say_unschedulable", pod, message)

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Mark a pod that is going to be evicted."""
        await self._ask("mark_disrupted", pod, reason=reason, message=message)

    async def evict(self, pod: PodRef) -> None:
        """Evict a pod."""
        await self._ask("evict", pod)

    async def tight_budgets(self) -> frozenset[str]:
        """Ask for the namespaces with a tight PodDisruptionBudget."""
        found: frozenset[str] = await self._ask("tight_budgets")
        return found

    async def may_evict(self, pod: PodRef) -> bool:
        """Ask whether a pod could be evicted."""
        found: bool = await self._ask("may_evict", pod)
        return found

    async def delete_pod(self, pod: PodRef) -> None:
        """Delete a pod."""
        await self._ask("delete_pod", pod)

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        """Create a pod."""
        await self._ask("create_pod", namespace, pod)

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods of a namespace."""
        found: list[T] = await self._ask("pods_in", namespace, keep=keep)
        return found

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        """Read the pod of a name."""
        found: RawObject | None = await self._ask("find_pod", namespace, name)
        return found

    async def remove_pod(self, pod: PodRef) -> None:
        """Delete a pod at once."""
        await self._ask("remove_pod", pod)

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Merge annotations into those of a pod."""
        await self._ask("annotate_pod", pod, annotations)

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Write the status of a Queue or PodGroup."""
        await self._ask("write_status", resource, namespace, name, status)

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Write an event about an object."""
        await self._ask("record_event", regarding, warning=warning, reason=reason, note=note)
