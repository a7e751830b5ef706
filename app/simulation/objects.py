"""Objects of any kind in memory: writes, reads and watches. `cluster` adds the behaviour of pods."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

from app.model.seam import ConflictError, Depth, Lost, NotFoundError, RawObject, Resource, WatchEvent, rfc3339
from app.simulation.store import Store, Tell, key_of, merged

T = TypeVar("T")

Place = Resource | str
"""A kind that always exists, or the path of any kind."""

KINDS = {
    ("v1", "Node"): Resource.NODES,
    ("v1", "Pod"): Resource.PODS,
    ("scheduling.run.ai/v2alpha2", "PodGroup"): Resource.POD_GROUPS,
    ("scheduling.k8s.io/v1beta1", "PodGroup"): Resource.NATIVE_POD_GROUPS,
}
"""The kinds that always exist and that are looked up by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """An object to be written. A non-empty `uid` is a precondition."""

    resource: Place
    name: str
    namespace: str = ""
    uid: str = ""

    @staticmethod
    def of(resource: Place, item: RawObject) -> "Ref":
        """Return the reference to this object. A new object of the same name does not match it."""
        namespace, name = key_of(item)
        return Ref(resource=resource, name=name, namespace=namespace, uid=item["metadata"]["uid"])


class SimulatedObjects:
    """Implements `model.seam.Objects`. Methods that are not coroutines, except `follow`, are for the actors."""

    def __init__(self, watched: Callable[[Resource, RawObject], bool], *, now: Callable[[], float] = time.time) -> None:
        # Only the write methods and `serve` change these, on the event loop, never across an await.
        self._stores = {resource.value: _store(resource, watched) for resource in Resource}
        self._paths = {kind: resource.value for kind, resource in KINDS.items()}
        self._served: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._versions = itertools.count(1)
        self._now = now

    # The interface for `control`.

    async def path_of(self, api_version: str, kind: str) -> str | None:
        """Return the path of a kind; None before `serve`."""
        return self._paths.get((api_version, kind))

    async def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind without end. It waits for a kind that is not served yet."""
        if path not in self._stores:
            yield Lost(f"{_kind(path)} is not installed", denied=True, absent=True)
            await self._served[path].wait()
        async for event in self._at(path).watch(lambda item: keep(_as_deep(item, depth))):
            yield event

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        """Read an object. None when the object or its kind does not exist."""
        try:
            return _as_deep(self._get(Ref(resource=path, namespace=namespace, name=name)), depth)
        except NotFoundError:
            return None

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        """Return all objects of a kind."""
        return [keep(_as_deep(item, depth)) for item in self.objects(path)]

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        """Create an object."""
        place = {"namespace": namespace} if namespace else {}
        self.create(path, raw | {"metadata": raw["metadata"] | place})

    async def amend_object(self, path: str, namespace: str, name: str, change: RawObject) -> None:
        """Merge a change into an object."""
        uid = change.get("metadata", {}).get("uid", "")
        self.patch(Ref(resource=path, namespace=namespace, name=name, uid=uid), change)

    async def remove_object(self, path: str, namespace: str, name: str, *, uid: str) -> None:
        """Remove an object at once. Objects that it owns stay."""
        self.delete(Ref(resource=path, namespace=namespace, name=name, uid=uid))

    # The methods for the actors.

    def serve(self, api_version: str, kind: str, path: str) -> None:
        """Install a kind, as a CRD does."""
        self._paths[api_version, kind] = path
        self._stores.setdefault(path, Store(lambda _: True))
        self._served[path].set()

    def objects(self, resource: Place) -> list[RawObject]:
        """Return all objects of a kind, including finished pods."""
        return self._at(resource).objects()

    def listen(self, resource: Place, tell: Tell) -> Callable[[], None]:
        """Tell of every watched change of a kind at the time of its write; return what ends this."""
        return self._at(resource).follow(tell)

    def watched(self, resource: Place) -> list[RawObject]:
        """Return the objects of a kind that a watch shows."""
        return self._at(resource).watched()

    def create(self, resource: Place, item: RawObject) -> RawObject:
        """Create an object and return it as stored; raise `ConflictError` when the name exists."""
        if key_of(item) in self._at(resource):
            raise ConflictError(f"{item['metadata']['name']} already exists")
        uid = f"00000000-0000-4000-8000-{next(self._versions):012x}"
        metadata = {"uid": uid, "creationTimestamp": self._timestamp()} | item["metadata"]
        return self._write(resource, item | {"metadata": metadata}, {})

    def patch(self, ref: Ref, change: RawObject) -> RawObject:
        """Apply a JSON merge patch and return the result; raise `NotFoundError`."""
        return self._write(ref.resource, self._get(ref), change)

    def delete(self, ref: Ref) -> None:
        """Remove an object at once; raise `NotFoundError`."""
        self._at(ref.resource).remove(key_of(self._get(ref)))

    def _at(self, resource: Place) -> Store:
        path = resource.value if isinstance(resource, Resource) else resource
        if path not in self._stores:
            raise NotFoundError(f"{_kind(path)} is not installed")
        return self._stores[path]

    def _get(self, ref: Ref) -> RawObject:
        item = self._at(ref.resource).get((ref.namespace, ref.name))
        if ref.uid and item["metadata"]["uid"] != ref.uid:
            raise NotFoundError(f"{ref.name} has uid {item['metadata']['uid']}, not {ref.uid}")
        return item

    def _write(self, resource: Place, current: RawObject, change: RawObject) -> RawObject:
        result = merged(current, change)
        if result == current and "resourceVersion" in current["metadata"]:
            return current  # Like an API server, which writes and notifies nothing then.
        result["metadata"] = result["metadata"] | {"resourceVersion": str(next(self._versions))}
        self._at(resource).put(result)
        return result

    def _timestamp(self) -> str:
        return rfc3339(self._now())


def _store(resource: Resource, watched: Callable[[Resource, RawObject], bool]) -> Store:
    return Store(lambda item: watched(resource, item))


def _kind(path: str) -> str:
    group, *_, plural = path.split("/")[1:]
    return f"{plural}.{group}"


def _as_deep(item: RawObject, depth: Depth) -> RawObject:
    return item if depth is Depth.WHOLE else {"metadata": item["metadata"]}
