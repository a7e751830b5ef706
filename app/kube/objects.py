"""Objects of any kind, by their API path: `app.model.seam.Objects` over an API server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import TypeVar

import orjson

from app.kube.discovery import Discovery
from app.kube.errors import BrokenStreamError
from app.kube.pages import pages
from app.kube.places import MANY, ONE, Collection, namespaced, path_of_object
from app.kube.transport import MERGE_PATCH, OWED, ReadTerms, Transport
from app.kube.watch import Watch
from app.model.seam import Depth, NotFoundError, RawObject, WatchEvent

T = TypeVar("T")


class KubeObjects:
    """The part of `KubeCluster` that works for any kind."""

    def __init__(
        self, transport: Transport, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, chance: Random
    ) -> None:
        self._transport = transport
        self._sleep = sleep
        self._chance = chance
        self._discovery = Discovery(transport)

    async def path_of(self, api_version: str, kind: str) -> str | None:
        """Return the API path of a kind; None when the kind is not served or cannot be listed and watched."""
        return await self._discovery.path_of(api_version, kind)

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncGenerator[WatchEvent[T], None]:
        """Follow a kind without end. A refusal is a normal answer here and does not appear in /readyz."""
        return self._watch(Collection.at(path, depth), keep)

    def _watch(self, collection: Collection, keep: Callable[[RawObject], T]) -> AsyncGenerator[WatchEvent[T], None]:
        return Watch(self._transport, collection, keep=keep, sleep=self._sleep, chance=self._chance).events()

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        """Read an object from the store, not from a cache. None when the object or its kind does not exist."""
        try:
            answer = await self._transport.read(path_of_object(path, namespace, name), ONE[depth])
        except NotFoundError:
            return None
        return _object(answer)

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        """List all objects of a kind from the store, page by page. `keep` shrinks each object at once."""
        return await self._list(path, keep, MANY[depth])

    async def _list(
        self, path: str, keep: Callable[[RawObject], T], terms: ReadTerms = OWED, *, selector: str = ""
    ) -> list[T]:
        kept: list[T] = []
        async with aclosing(pages(self._transport, path, terms, selector=selector)) as listed:
            async for page in listed:
                kept += map(keep, page.objects)
                await self._sleep(0)
        return kept

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        """Create an object; `ConflictError` when an object of this name exists."""
        await self._transport.write("POST", namespaced(path, namespace), orjson.dumps(raw))

    async def amend_object(self, path: str, namespace: str, name: str, change: RawObject) -> None:
        """Merge a change into an object (JSON merge patch)."""
        place = path_of_object(path, namespace, name)
        await self._transport.write("PATCH", place, orjson.dumps(change), MERGE_PATCH)

    async def remove_object(self, path: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete this object. Objects that it owns are garbage-collected afterwards."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        await self._transport.write("DELETE", path_of_object(path, namespace, name), orjson.dumps(body))


def _object(answer: bytes) -> RawObject:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise BrokenStreamError("the API server's answer is no object") from error
    if not isinstance(found, dict):
        raise BrokenStreamError("the API server's answer is no object")
    return found
