"""Removes pods as fast as the API server allows. The evictions of each scheduler are compared with this rate.

An eviction costs the API server more than a deletion: it looks up the budgets and writes a condition first.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

import aiohttp

from app.control.writers.evictor import WRITERS
from loadtest.results import OURSELVES
from tests.system.api import DEFAULT_PODS
from tests.system.bed import Bed
from tests.system.identities import User

Remove = Callable[[aiohttp.ClientSession, str], Awaitable[None]]
"""Has the pod of this name leave without any grace."""


async def delete(session: aiohttp.ClientSession, name: str) -> None:
    """Delete the pod."""
    async with session.delete(f"{DEFAULT_PODS}/{name}?gracePeriodSeconds=0") as answer:
        await answer.read()


async def evict(session: aiohttp.ClientSession, name: str) -> None:
    """Ask the Eviction API."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name},
        "deleteOptions": {"gracePeriodSeconds": 0},
    }
    async with session.post(f"{DEFAULT_PODS}/{name}/eviction", json=eviction) as answer:
        await answer.read()


def removals_per_s(bed: Bed, names: Iterable[str], remove: Remove) -> float:
    """Have pods of the namespace `default` leave, as many at once as Leeboard evicts; return how many went a second."""
    waiting = list(names)
    return len(waiting) / asyncio.run(_remove_all(bed, waiting, remove))


async def _remove_all(bed: Bed, names: Iterable[str], remove: Remove) -> float:
    """Return how long it took."""
    headers = {"Authorization": f"Bearer {bed.token(User.ADMIN)}", "User-Agent": OURSELVES.replace(" ", "-")}
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=bed.ca), limit=WRITERS)
    async with aiohttp.ClientSession(bed.url, connector=connector, headers=headers, raise_for_status=True) as session:
        left, began_s = iter(names), time.monotonic()
        await asyncio.gather(*(_work(session, left, remove) for _ in range(WRITERS)))
        return time.monotonic() - began_s


async def _work(session: aiohttp.ClientSession, left: Iterator[str], remove: Remove) -> None:
    """Remove one after the other of those that all workers share."""
    for name in left:
        await remove(session, name)
