"""Follows one kind without end: lists it page by page, then watches it, and starts again after every fault.

How an attempt ends, and what follows:
clean end (the API server ends each watch in time)      reconnect from the last resourceVersion, at once
410, as HTTP or as ERROR event                          list again, at once
any other ERROR event, or an outdated list              `Lost`, pause, list again
silence, garbage, lost connection, refusal              `Lost`, pause, reconnect from the last resourceVersion
silence or garbage again before any line                `Lost`, pause, list again
404: not served in this API version                     list in the next older version, at once
404 in each version: not installed; 403: not readable   `Lost`, 10-30 s (sooner if it was installed), list
An API server that has just started refuses what it will serve soon. Therefore `Lost.denied` is set only after PATIENCE
refusals in a row, or for a kind that is not installed and never was.
An outdated list comes from an API server that lags, or from a restored store. Only a restored store repeats it:
RESTORED_AFTER such lists, none older than the one before, are accepted as `Listed.restored`. A watch from a
resourceVersion that a restored store has not reached yet is silent without end; hence the list after silence.
"At once" holds for two attempts in a row without a line. Further attempts pause, so no fault causes a busy loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Generic, TypeVar
from urllib.parse import quote

from app.kube.errors import BrokenStreamError, ExpiredError, StaleError, UnauthenticatedError
from app.kube.lines import SLICE, SLICE_BYTES, Batch, Page, batches, decode
from app.kube.pages import pages
from app.kube.places import Collection
from app.kube.transport import Transport
from app.model.seam import (
    ForbiddenError,
    KubeError,
    Listed,
    Lost,
    NotFoundError,
    Progress,
    RawObject,
    UnavailableError,
    WatchEvent,
)

T = TypeVar("T")

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
DENIED_PAUSE_S = (10.0, 30.0)
STREAM_LASTS_S = (270, 330)
FREE_ATTEMPTS = 2
PATIENCE = 3
RESTORED_AFTER = 5
VERSION_DIGITS = 20
DOUBLINGS = 6
"""Enough to reach the longest pause."""


class Watch(Generic[T]):
    """Follows one kind. `events` is iterated once."""

    def __init__(
        self,
        transport: Transport,
        collection: Collection,
        *,
        keep: Callable[[RawObject], T],
        sleep: Callable[[float], Awaitable[None]],
        chance: Random,
    ) -> None:
        self._transport = transport
        self._collection = collection
        self._keep = keep
        self._sleep = sleep
        self._chance = chance
        # These change only while `events` is iterated.
        self._version = ""  # where the next watch starts; empty requests a list
        self._newest = 0  # the highest resourceVersion ever seen
        self._failures = 0  # attempts that have ended since the last line
        self._past: list[int] = []  # resourceVersions, since the last event, of lists older than `_newest`
        self._refusals = 0  # attempts in a row that ended because the kind is not installed or not readable
        self._untried = len(collection.older)  # API versions that have not been tried since the last pause
        self._is_lost = False

    async def events(self) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield the events. Close it (`aclosing`) or cancel its task to end it."""
        while True:
            cause: KubeError | None = None
            try:
                async with aclosing(self._attempt()) as attempt:
                    async for events in attempt:
                        for event in events:
                            yield event
            except ExpiredError:
                self._version = ""
            except KubeError as error:
                if isinstance(error, NotFoundError) and self._has_turned():
                    continue
                cause = error
                self._refusals = self._refusals + 1 if _is_refusal(error) else 0
                yield self._lose(error)
            await self._pause(cause)

    async def _attempt(self) -> AsyncGenerator[list[WatchEvent[T]], None]:
        if not self._version:
            yield [await self._list()]
        async with self._transport.stream(self._watch_path(), self._collection.watched) as content:
            if self._is_lost:
                yield [self._found(Progress())]
            async with aclosing(batches(content, self._transport.limits)) as stream:
                async for lines in stream:
                    yield self._take(decode(lines, self._keep))

    def _has_turned(self) -> bool:
        """Turn to the next API version of the kind; return whether that one has not been tried since the last pause."""
        self._version = ""
        self._collection = self._collection.next_version()
        self._untried -= 1
        if self._untried >= 0:
            return True
        self._untried = len(self._collection.older)
        return False

    def _take(self, batch: Batch[T]) -> list[WatchEvent[T]]:
        self._version = batch.version
        self._newest = max(self._newest, _number(batch.version))
        self._failures = 0
        return batch.events

    def _lose(self, error: KubeError) -> Lost:
        self._is_lost = True
        is_broken_again = isinstance(error, BrokenStreamError) and self._failures > 0
        if is_broken_again or isinstance(error, StaleError | NotFoundError):
            self._version = ""
        if isinstance(error, NotFoundError):
            return Lost(f"{self._collection.kind} is not installed", denied=self._is_denied(error), absent=True)
        return Lost(str(error), denied=self._is_denied(error))

    def _is_denied(self, error: KubeError) -> bool:
        never_was = isinstance(error, NotFoundError) and not self._newest
        return never_was or self._refusals >= PATIENCE

    def _found(self, event: WatchEvent[T]) -> WatchEvent[T]:
        self._is_lost = False
        self._refusals = 0
        return event

    async def _list(self) -> WatchEvent[T]:
        kept, version, restored = list[T](), "", False
        # Without a resourceVersion, the API server answers from the store, or from a cache that it knows to be current.
        collection = self._collection
        listed = pages(self._transport, collection.path, collection.listed, selector=collection.selector)
        async with aclosing(listed):
            async for page in listed:
                if not version:
                    version = page.version
                    restored = self._is_restored(_number(version))
                kept += await self._kept(page)
        self._version, self._past = version, []
        self._newest = _number(version) if restored else max(self._newest, _number(version))
        return self._found(Listed(kept, restored=restored))

    async def _kept(self, page: Page) -> list[T]:
        """Shrink a page slice by slice. It takes tens of milliseconds, so other tasks run in between."""
        kept: list[T] = []
        fitting = SLICE_BYTES * len(page.objects) // page.size_bytes
        size = max(1, min(SLICE, fitting))
        for start in range(0, len(page.objects), size):
            await asyncio.sleep(0)
            kept += map(self._keep, page.objects[start : start + size])
        return kept

    def _is_restored(self, version: int) -> bool:
        """Return whether an outdated list shows a restored store; `StaleError` while the API server may only lag."""
        if not 0 < version < self._newest:
            return False
        if self._past and version < self._past[-1]:
            self._past.clear()
        self._past.append(version)
        if len(self._past) < RESTORED_AFTER:
            # An API server that lags behind the previous one (Sieve's "time travel"): its pods are outdated.
            raise StaleError(f"a list of resourceVersion {version} is older than {self._newest}, seen before")
        return True

    def _watch_path(self) -> str:
        lasts_s = self._chance.randint(*STREAM_LASTS_S)
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={lasts_s}&resourceVersion={quote(self._version)}"
        return f"{self._collection.path}?{query}{self._collection.selector}"

    async def _pause(self, cause: KubeError | None) -> None:
        pause_s = self._pause_s(cause)
        self._failures += 1
        if pause_s:
            await self._sleep(pause_s)

    def _pause_s(self, cause: KubeError | None) -> float:
        # An API server that has just started does not serve custom kinds yet. A kind that existed before comes back
        # soon.
        if cause is not None and self._is_denied(cause) and not self._newest:
            return self._chance.uniform(*DENIED_PAUSE_S)
        if cause is None and self._failures < FREE_ATTEMPTS:
            return 0.0
        longest_s = min(LONGEST_PAUSE_S, SHORTEST_PAUSE_S * 2 ** min(self._failures + 1, DOUBLINGS))
        asked_s = cause.retry_after_s if isinstance(cause, UnavailableError) else 0.0
        return max(asked_s, self._chance.uniform(longest_s / 2, longest_s))


def _number(version: str) -> int:
    # Kubernetes guarantees numeric versions only since 1.35. Any other version is not compared.
    return int(version) if version.isascii() and version.isdigit() and len(version) < VERSION_DIGITS else 0


def _is_refusal(error: KubeError) -> bool:
    # An API server that does not accept the token yet may still allow the read.
    return isinstance(error, NotFoundError | ForbiddenError) and not isinstance(error, UnauthenticatedError)
