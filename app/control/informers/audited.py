"""Adapters of the kinds that are audited: the kinds that are always followed, and the kinds of owner objects."""

from collections.abc import Callable, Mapping
from typing import Any

from app.cluster import decode
from app.control.groups.owner_watch import OwnerWatch
from app.control.informers.feed import RESTORED, Feed, key_of
from app.grouping import reads
from app.model.owner import Kind
from app.model.seam import Cluster, Depth, Objects, RawObject, Resource, RestoredError


class AuditedResource:
    """A kind that `Feed` follows."""

    def __init__(self, feed: Feed, cluster: Cluster, resource: Resource) -> None:
        self._feed = feed
        self._cluster = cluster
        self._resource = resource
        self.name = repr(resource)

    def shown(self) -> Mapping[Any, int]:
        """Return what the watch has shown."""
        return self._feed.shown(self._resource)

    def has_ended(self, key: Any, version: int) -> bool:
        """Return whether the watch has recently shown that an object was deleted after this version."""
        return self._feed.has_ended(self._resource, key, version)

    def key_of(self, raw: RawObject) -> Any:
        """Return the key by which the watch identifies an object."""
        return key_of(self._resource, raw)

    def place_of(self, key: Any) -> tuple[str, str]:
        """Return the namespace and the name of a shown object."""
        return self._feed.place_of(self._resource, key)

    async def listed(self, take: Callable[[RawObject], None]) -> None:
        """List the metadata of all objects."""
        await self._cluster.listed(self._resource, take, depth=Depth.METADATA)

    async def read(self, namespace: str, name: str) -> RawObject | None:
        """Read one object as the watch should have shown it; None when the watch would not show it."""
        found = await self._cluster.listed(
            self._resource, lambda raw: raw, depth=Depth.WHOLE, namespace=namespace, name=name
        )
        return next(iter(found), None)

    async def mend(self, raw: RawObject) -> None:
        """Apply an object as the watch should have shown it."""
        self._feed.mend(self._resource, raw)

    async def remove(self, key: Any) -> None:
        """Forget an object whose deletion the watch has not shown."""
        self._feed.remove(self._resource, key)

    def note_past(self) -> None:
        """Raise `RestoredError`: a stored version is older than the shown one."""
        raise RestoredError(RESTORED)


class AuditedOwners:
    """A kind of objects that own pods."""

    def __init__(self, watch: OwnerWatch, cluster: Objects, kind: Kind) -> None:
        self._watch = watch
        self._cluster = cluster
        self._kind = kind
        self._path = watch.kinds.path_of(kind)
        self.name = repr(kind)

    def shown(self) -> Mapping[Any, int]:
        """Return what the watch has shown."""
        return self._watch.shown(self._kind).known

    def has_ended(self, key: Any, version: int) -> bool:
        """Return whether the watch has recently shown that an object was deleted after this version."""
        return self._watch.shown(self._kind).has_ended(key, version)

    def key_of(self, raw: RawObject) -> Any:
        """Return the key by which the watch identifies an object."""
        return decode.identity(raw)[1]

    def place_of(self, key: Any) -> tuple[str, str]:
        """Return the namespace and the name of a shown object."""
        return self._watch.place_of(key)

    async def listed(self, take: Callable[[RawObject], None]) -> None:
        """List the metadata of all objects."""
        await self._cluster.list_objects(self._path, take, depth=Depth.METADATA)

    async def read(self, namespace: str, name: str) -> RawObject | None:
        """Read one object as the watch should have shown it; None when it does not exist."""
        return await self._cluster.read_object(self._path, namespace, name, depth=reads(self._kind))

    async def mend(self, raw: RawObject) -> None:
        """Apply an object as the watch should have shown it."""
        await self._watch.mend(self._kind, raw)

    async def remove(self, key: Any) -> None:
        """Forget an object whose deletion the watch has not shown."""
        self._watch.remove(self._kind, key)

    def note_past(self) -> None:
        """Ignore a stored version older than the shown one: an aggregated API server may restart its counter."""
