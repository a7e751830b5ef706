"""A cluster that lists `scale_objects` page by page, then sends what it is told to; it times how each is taken.

The pages are written by a process of their own, as an API server is one: what they cost is not what is measured.
"""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Mapping
from multiprocessing.connection import Connection
from typing import TypeVar

import orjson

from app.kube.lines import decode, decode_page
from app.model.seam import Depth, Listed, RawObject, Resource, WatchEvent
from app.simulation.cluster import SimulatedCluster
from loadtest.scale_objects import JOBS, job, line, page, stock_of
from loadtest.scale_pods import ALONE, Size

T = TypeVar("T")

SLICE = 100
"""Objects of a page that are reduced without a pause, as `kube` does it."""


class Wire(SimulatedCluster):
    """Sends JSON through the decoding of `kube`. Writes are kept in memory, and no watch shows them."""

    def __init__(self, size: Size, *, first: Resource | None = None) -> None:
        """`first` is listed before any other kind, which is what costs most where it names pods."""
        super().__init__()
        self.serve("batch/v1", "Job", JOBS)
        self.decoding_s: dict[str, float] = {}
        """What JSON became Python objects in, by path: the part of a list that is not ours."""
        self._pages, theirs = multiprocessing.Pipe()
        self._turn = asyncio.Lock()
        writer = multiprocessing.get_context("spawn").Process(target=_write_pages, args=(theirs, size), daemon=True)
        writer.start()
        theirs.close()  # so that its end is noticed
        self._first = first
        self._first_listed = asyncio.Event()
        self._mail: Mapping[Resource, asyncio.Queue[tuple[bytes, asyncio.Future[float]]]] = {
            resource: asyncio.Queue() for resource in Resource
        }

    async def send(self, resource: Resource, kind: str, raw: bytes) -> float:
        """Send an event; return what it took, in seconds, from its JSON until the feed had taken it over."""
        taken: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._mail[resource].put_nowait((line(kind, raw), taken))
        return await taken

    async def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """List the kind, then show what is sent."""
        if self._first not in {None, resource}:
            await self._first_listed.wait()
        yield Listed(await self._list(resource.value, keep))
        if resource is self._first:
            self._first_listed.set()
        while True:
            sent, taken = await self._mail[resource].get()
            began = time.thread_time()
            for event in decode([sent], keep).events:
                yield event
            if not taken.done():  # the sender may have been cancelled
                taken.set_result(time.thread_time() - began)

    async def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        """List the kind; nothing changes about it."""
        del depth
        yield Listed(await self._list(path, keep))
        await asyncio.Event().wait()

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Accept the status and drop it: the writer remembers it."""

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        """Read a Job by its name, which tells its number; nothing else is asked for."""
        if path != JOBS:
            return await super().read_object(path, namespace, name, depth=depth)
        block, index = map(int, name.split("-")[1:])
        raw: RawObject = orjson.loads(job(block * ALONE + index))
        return raw

    async def _list(self, path: str, keep: Callable[[RawObject], T]) -> list[T]:
        kept: list[T] = []
        self.decoding_s[path] = 0.0
        more = "0"
        while more:
            body = await self._page(path, int(more))
            began = time.thread_time()
            found = decode_page(body)
            self.decoding_s[path] += time.thread_time() - began
            for start in range(0, len(found.objects), SLICE):
                await asyncio.sleep(0)
                kept += map(keep, found.objects[start : start + SLICE])
            more = found.next
        return kept

    async def _page(self, path: str, start: int) -> bytes:
        async with self._turn:
            return await asyncio.to_thread(self._ask, path, start)

    def _ask(self, path: str, start: int) -> bytes:
        self._pages.send((path, start))
        return self._pages.recv_bytes()


def _write_pages(pipe: Connection, size: Size) -> None:
    stock = stock_of(size)
    while True:
        pipe.send_bytes(page(stock, *pipe.recv()))
