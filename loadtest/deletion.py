"""Deletes pods for nobody, as fast as the API server takes it: what those who make room are measured against."""

import asyncio
import ssl
import time
from collections.abc import Iterable, Iterator

import aiohttp

from loadtest.results import OURSELVES
from tests.system.bed import Bed
from tests.system.identities import User

DELETERS = 8
"""As many evictions as Leeboard has in flight."""


def deletions_per_s(bed: Bed, names: Iterable[str]) -> float:
    """Delete pods of the namespace `default` without any grace; return how many went a second."""
    paths = [f"{bed.url}/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0" for name in names]
    return len(paths) / asyncio.run(_delete_all(bed, paths))


async def _delete_all(bed: Bed, paths: Iterable[str]) -> float:
    """Return how long it took."""
    headers = {"Authorization": f"Bearer {bed.token(User.ADMIN)}", "User-Agent": OURSELVES.replace(" ", "-")}
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=bed.ca), limit=DELETERS)
    async with aiohttp.ClientSession(connector=connector, headers=headers, raise_for_status=True) as session:
        left, began_s = iter(paths), time.monotonic()
        await asyncio.gather(*(_delete(session, left) for _ in range(DELETERS)))
        return time.monotonic() - began_s


async def _delete(session: aiohttp.ClientSession, left: Iterator[str]) -> None:
    """Delete one after the other of those that all workers share."""
    for path in left:
        async with session.delete(path) as answer:
            await answer.read()
