"""Objects of one kind in memory, with their watchers. `cluster` gives writes their meaning."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

from app.model.seam import Changed, Deleted, Listed, NotFoundError, Progress, RawObject, WatchEvent

T = TypeVar("T")

News = Changed[RawObject] | Deleted[RawObject]

Tell = Callable[[News], None]
"""Receives each change at the time of its write. It must not raise."""

Key = tuple[str, str]
"""Namespace and name. The namespace of a cluster-wide object is empty."""

PROGRESS_EVERY_S = 10.0
"""How long a watch stays silent before it sends a sign of life."""


def key_of(item: RawObject) -> Key:
    """Return the key of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def merged(target: RawObject, change: Mapping[str, object]) -> RawObject:
    """Return `target` with a JSON merge patch applied (RFC 7386): None removes, mappings merge, all else replaces."""
    result = dict(target)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[name] = value
    return result


class Store:
    """Stores objects by name and notifies every watcher of those that are `watched`."""

    def __init__(self, watched: Callable[[RawObject], bool]) -> None:
        # Only `put` and `remove` change these. An object is replaced, never edited, so readers may keep their copy.
        self._objects: dict[Key, RawObject] = {}
        self._watchers: list[Tell] = []
        self._watched = watched

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def get(self, key: Key) -> RawObject:
        """Return the object; raise `NotFoundError`."""
        if key not in self._objects:
            raise NotFoundError(f"{'/'.join(filter(None, key))} does not exist")
        return self._objects[key]

    def objects(self) -> list[RawObject]:
        """Return all objects, in the order of their creation."""
        return list(self._objects.values())

    def put(self, item: RawObject) -> None:
        """Add or replace an object. One that is no longer watched counts as deleted for the watchers."""
        before = self._objects.get(key_of(item))
        self._objects[key_of(item)] = item
        if self._watched(item):
            self._tell(Changed(item))
        elif before is not None and self._watched(before):
            # Like kube-apiserver, send the last watched state. It does not show why the object is no longer watched.
            version = item["metadata"]["resourceVersion"]
            self._tell(Deleted(before | {"metadata": before["metadata"] | {"resourceVersion": version}}))

    def remove(self, key: Key) -> None:
        """Remove an object; raise `NotFoundError`."""
        before = self.get(key)
        del self._objects[key]
        if self._watched(before):
            self._tell(Deleted(before))

    def follow(self, tell: Tell) -> Callable[[], None]:
        """Tell of every change from now on, in the order of the writes; return what ends this."""
        self._watchers.append(tell)
        return lambda: self._watchers.remove(tell)

    def watched(self) -> list[RawObject]:
        """Return the objects that a watch shows."""
        return [item for item in self._objects.values() if self._watched(item)]

    async def watch(self, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """List, then follow without end. There is no await between the two, so no change is lost."""
        mail: asyncio.Queue[News] = asyncio.Queue()
        end = self.follow(mail.put_nowait)
        try:
            yield Listed([keep(item) for item in self.watched()])
            while True:
                match await _next(mail):
                    case Changed(item):
                        yield Changed(keep(item))
                    case Deleted(item):
                        yield Deleted(keep(item))
                    case Progress() as nothing:
                        yield nothing
        finally:
            end()

    def _tell(self, event: News) -> None:
        for tell in list(self._watchers):
            tell(event)


async def _next(mail: asyncio.Queue[News]) -> News | Progress:
    try:
        async with asyncio.timeout(PROGRESS_EVERY_S):
            return await mail.get()
    except TimeoutError:
        return Progress()
