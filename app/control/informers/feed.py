"""Applies what the watches show to the cache (decode -> event -> apply), and reports how fresh the cache is.

An object that cannot be read never stops the feed and never frees resources. Its record states the problem, or its old
record stays. A list that contains an object without a readable identity removes no object.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.control.groups.shown import Shown
from app.control.informers.kinds import WatchedKind
from app.control.informers.tolerance import Tolerance
from app.control.leadership.freshness import UNSERVED, Freshness
from app.model.dra import ClaimKey
from app.model.names import NATIVE_API, GroupKey, PodUid
from app.model.seam import Changed, Cluster, Deleted, Listed, Lost, RawObject, Resource, RestoredError, WatchEvent
from app.telemetry import Metrics, Step

log = structlog.get_logger()

R = TypeVar("R")

RESTORED = (
    "the API server's store was restored from a backup: the cache may show objects that do not exist;"
    " Leeboard exits, so that it starts again with new lists"
)
"""Each watch notices the restore at a different time; reservations, past decisions and the lease are from before it."""

PAUSE_EVERY = 200
"""After so many objects of a list the event loop gets a turn: 50,000 pods must not delay a webhook."""


class Learner(Protocol):
    """A part that reads each raw object before the cache applies it, and keeps no raw object."""

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Read an object of any kind."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen(Generic[R]):
    """The record of an object that a list or an event shows."""

    record: R
    version: int
    """Its resourceVersion; 0 when it is not a number."""


def key_of(resource: Resource, raw: RawObject) -> Any:
    """Return the key of an object: the uid of a pod, since another pod may have its name; else namespace and name."""
    name, uid = decode.identity(raw)
    if resource is Resource.PODS:
        return PodUid(uid or decode.without_uid(decode.namespace_of(raw), name))
    if resource is Resource.RESOURCE_CLAIMS:
        return ClaimKey(decode.namespace_of(raw), name)
    if resource in {Resource.POD_GROUPS, Resource.NATIVE_POD_GROUPS}:
        api = NATIVE_API if resource is Resource.NATIVE_POD_GROUPS else ""
        return GroupKey(decode.namespace_of(raw), name, api)
    return name


@dataclass(slots=True)
class _Objects:
    """What one watch has shown. Only `Feed` changes it."""

    shown: Shown = field(default_factory=Shown)
    invalid: set[Any] = field(default_factory=set)


class Feed:
    """Follows each kind in one task; all tasks write to one cache."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        metrics: Metrics,
        kinds: Mapping[Resource, WatchedKind[Any, Any]],
        freshness: Freshness,
        tolerance: Tolerance,
        *,
        changed: asyncio.Event,
        learners: Sequence[Learner] = (),
    ) -> None:
        """Start without objects; `changed` is set after each event, `learners` see each object before its event."""
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._kinds = kinds
        self._freshness = freshness
        self._tolerance = tolerance
        self._changed = changed
        self._learners = learners
        self._objects = {resource: _Objects() for resource in Resource}
        cache.topologies.doubt()
        cache.claims.doubt()
        cache.groups.doubt_gpus()

    async def run(self) -> None:
        """Follow every kind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wait_for_optional(), name="optional kinds")
            for resource in Resource:
                tasks.create_task(self._follow(resource), name=f"watch {resource!r}")

    # Calls of the audit ----------------------------------------------------------------------------------------------

    def shown(self, resource: Resource) -> Mapping[Any, int]:
        """Return the shown versions of a kind by `key_of`; the result must not be kept across an await."""
        return self._objects[resource].shown.known

    def has_ended(self, resource: Resource, key: Any, version: int) -> bool:
        """Return whether the watch has recently shown that an object was deleted after this version."""
        return self._objects[resource].shown.has_ended(key, version)

    def place_of(self, resource: Resource, key: Any) -> tuple[str, str]:
        """Return the namespace and the name of the shown object with this key."""
        if resource is Resource.PODS:
            pod = self._cache.pods.get(key)
            return (pod.namespace, pod.name) if pod is not None else ("", str(key))
        return (key.namespace, key.name) if isinstance(key, GroupKey | ClaimKey) else ("", key)

    def mend(self, resource: Resource, raw: RawObject) -> None:
        """Apply an object as the watch should have shown it."""
        seen = self._keep(resource, raw)
        if seen is not None:
            self._apply(resource, seen)
            self._changed.set()

    def remove(self, resource: Resource, key: Any) -> None:
        """Forget an object whose deletion the watch has not shown."""
        self._objects[resource].shown.known.pop(key, None)
        self._forget(resource, key)
        self._changed.set()

    # Following --------------------------------------------------------------------------------------------------------

    async def _follow(self, resource: Resource) -> None:
        async for event in self._cluster.watch(resource, partial(self._keep, resource)):
            await self._take(resource, event)
            if resource is Resource.GPU_NODES:
                await self._trust_gpus()
            self._changed.set()

    async def _wait_for_optional(self) -> None:
        """Stop holding up other pods when the first list of an optional kind takes too long; the list continues."""
        if await self._freshness.tire_of_optional():
            self._changed.set()

    def _keep(self, resource: Resource, raw: RawObject) -> _Seen[Any] | None:
        """Reduce an object to its record; None when the object has no readable identity."""
        record = self._read(resource, raw)
        if record is None:
            return None
        # An error of a learner may lose what it learns; the resources that the object holds are still charged.
        self._tolerance.attempt(resource, Step.LEARN, raw, self._learn, resource, raw)
        return _Seen(record, decode.version(raw))

    def _learn(self, resource: Resource, raw: RawObject) -> None:
        for learner in self._learners:
            learner.learn(resource, raw)

    def _read(self, resource: Resource, raw: RawObject) -> Any | None:
        kind, attempt = self._kinds[resource], self._tolerance.attempt
        try:
            record = attempt(resource, Step.READ, raw, kind.decode, raw)
        except decode.DecodeError as error:
            log.warning("object without a name", resource=repr(resource), error=str(error))
            record = None
        if record is not None:
            return record
        with suppress(decode.DecodeError):
            return attempt(resource, Step.READ, raw, kind.least, raw)
        return None

    async def _take(self, resource: Resource, event: WatchEvent[_Seen[Any] | None]) -> None:
        if isinstance(event, Lost):
            self._freshness.note_lost(resource, event.cause, denied=event.denied, absent=event.absent)
            if event.absent and resource in UNSERVED:
                return
            self._metrics.watch_lost(repr(resource))
            log.warning("watch lost", resource=repr(resource), cause=event.cause)
            return
        match event:
            case Listed(restored=True):
                raise RestoredError(RESTORED)
            case Listed(seen):
                await self._replace(resource, seen)
                if not self._freshness.is_listed(resource):
                    self._kinds[resource].note_first_list()
                self._freshness.note_listed(resource)
            case Changed(seen) if seen is not None and not self._is_old(resource, seen):
                self._apply(resource, seen)
            case Deleted(seen) if seen is not None and not self._is_old(resource, seen):
                self._delete(resource, seen)
            case _:
                pass
        self._freshness.note_heard(resource)

    def _is_old(self, resource: Resource, seen: _Seen[Any]) -> bool:
        """Whether the audit has already found a newer version than the version of this event."""
        return self._objects[resource].shown.is_old(self._kinds[resource].key(seen.record), seen.version)

    async def _trust_gpus(self) -> None:
        """Let pods with GPUs continue, once all unhealthy GPUs are known or GpuNodes are given up."""
        gpu_nodes = Resource.GPU_NODES
        if not self._freshness.is_listed(gpu_nodes) and not self._freshness.is_given_up(gpu_nodes):
            return
        for number, key in enumerate(self._cache.groups.trust_gpus(), start=1):
            self._cache.groups.touched.mark(key)
            if number % PAUSE_EVERY == 0:
                self._cache.groups.form()
                await asyncio.sleep(0)

    # Applying ---------------------------------------------------------------------------------------------------------

    async def _replace(self, resource: Resource, seen: list[_Seen[Any] | None]) -> None:
        """Apply a whole list: objects that it lacks are deleted, if all its objects have a readable identity."""
        shown = self._objects[resource].shown
        gone, shown.known = shown.known, {}
        for number, one in enumerate(seen, start=1):
            if one is not None:
                self._apply(resource, one)
            if number % PAUSE_EVERY == 0:
                # Form the groups of these pods now: the groups of 50,000 pods together would take a second.
                self._cache.groups.form()
                await asyncio.sleep(0)
        if None in seen:
            shown.known = gone | shown.known
            return
        for key in [key for key in gone if key not in shown.known]:
            self._forget(resource, key)

    def _apply(self, resource: Resource, seen: _Seen[Any]) -> None:
        kind, record, known = self._kinds[resource], seen.record, self._objects[resource].shown.known
        key, former = kind.key(record), kind.former_key(record)
        known[key] = seen.version
        self._count_invalid(resource, key, problem=getattr(record, "problem", ""))
        if former is not None and known.pop(former, None) is not None:
            self._forget(resource, former)
        if not self._tolerance.attempt(resource, Step.APPLY, key, _done, kind.apply, record):
            # Version 0 makes the audit try again.
            known[key] = 0
            self._tolerance.attempt(resource, Step.APPLY, key, kind.fail, key)

    def _delete(self, resource: Resource, seen: _Seen[Any]) -> None:
        key = self._kinds[resource].key(seen.record)
        self._objects[resource].shown.end(key, seen.version)
        self._forget(resource, key)

    def _forget(self, resource: Resource, key: Any) -> None:
        self._count_invalid(resource, key, problem="")
        self._tolerance.attempt(resource, Step.APPLY, key, self._kinds[resource].forget, key)

    def _count_invalid(self, resource: Resource, key: object, *, problem: str) -> None:
        invalid = self._objects[resource].invalid
        if bool(problem) == (key in invalid):
            return
        (invalid.add if problem else invalid.discard)(key)
        self._metrics.invalid_objects(repr(resource), len(invalid))


def _done(act: Callable[[R], None], record: R) -> bool:
    act(record)
    return True
