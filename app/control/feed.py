"""Carries what the watches show into the cache: decode -> event -> apply, and knows how fresh the picture is.

An object that cannot be read never stops the feed: without a name it is left out, otherwise its record says what is
wrong with it and its owner is told.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from app.cluster import decode
from app.cluster.cache import ClusterCache
from app.control.endings import Endings
from app.control.podgrouper import PodGrouper, keeps_of
from app.control.sharing import rules_of
from app.model.device import GpuNode
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.question import Check
from app.model.seam import Changed, Cluster, Deleted, Listed, Lost, RawObject, Resource, WatchEvent
from app.settings import Settings
from app.telemetry import Metrics

log = structlog.get_logger()

R = TypeVar("R")
K = TypeVar("K")

STALE_AFTER_S = 90.0
"""A watch that has shown nothing for so long, not even a bookmark (about one a minute), is not trusted."""

PAUSE_EVERY = 200
"""After so many objects of a list the event loop gets a turn: 50,000 pods must not hold up a webhook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[R, K]):
    """How objects of one kind get into the cache and out of it: first shrunk to a record, then applied."""

    decode: Callable[[RawObject], R]
    key: Callable[[R], K]
    apply: Callable[[R], None]
    forget: Callable[[K], None]


@dataclass(slots=True)
class _Watch:
    """How one watch is doing. Changed by `Feed` alone."""

    listed: bool = False
    lost: str = ""
    heard_at: float = 0.0
    known: set[Any] = field(default_factory=set)
    """Keys of what it has shown, so that a relist can tell what has gone."""
    invalid: set[Any] = field(default_factory=set)


class Feed:
    """One task a kind; all of them write to one cache."""

    def __init__(  # noqa: PLR0913 - one argument a collaborator; only the composition root calls it
        self,
        cache: ClusterCache,
        cluster: Cluster,
        metrics: Metrics,
        settings: Settings,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        on_parked: Callable[[PodUid], None],
        on_unready: Callable[[PodUid], None],
        on_object: Callable[[Resource, RawObject], None],
        grouper: PodGrouper,
    ) -> None:
        """`on_change` is called after each event and `on_parked` for a pod that was refused by us before we started.

        `on_unready` is called for a pod of ours of which kube-scheduler says that we could not answer.
        `on_object` is called with each object as it arrives, before its event, and must not hold on to it.
        """
        self._cache = cache
        self._cluster = cluster
        self._metrics = metrics
        self._profiles = settings.profiles
        self._rules = rules_of(settings)
        self._clock = clock
        self._on_change = on_change
        self._on_parked = on_parked
        self._on_unready = on_unready
        self._on_object = on_object
        self._grouper = grouper
        self._keeps = keeps_of(settings)
        self._endings = Endings(
            cache, cluster, grouper, profiles=settings.profiles, keeps=self._keeps, on_change=on_change
        )
        self._watches = {resource: _Watch() for resource in Resource}
        self._kinds: Mapping[Resource, _Kind[Any, Any]] = self._table()
        self._awaited: dict[PodUid, set[asyncio.Future[None]]] = {}
        self._synced = asyncio.Event()

    async def run(self) -> None:
        """Follow every kind, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._endings.run(), name="endings")
            tasks.create_task(self._grouper.run(), name="owners")
            tasks.create_task(self._endings.recover(self.synced), name="recover")
            for resource in Resource:
                tasks.create_task(self._follow(resource), name=f"watch {resource!r}")

    async def synced(self) -> None:
        """Wait until every kind has been listed once."""
        await self._synced.wait()

    def unready(self) -> str:
        """Return why no question can be answered now, "" when all can: not listed yet, lost, or silent."""
        # Asked with every question: the checks, which a person reads, say it in more words.
        return self._unheard() or self._grouper.check().failure

    def _unheard(self) -> str:
        return next((said for watch in self._watches.values() if (said := self._failure(watch))), "")

    def checks(self) -> list[Check]:
        """Return one check a kind."""
        watches = [Check(f"watch-{resource!r}", self._failure(watch)) for resource, watch in self._watches.items()]
        return [*watches, self._grouper.check()]

    async def pod(self, uid: PodUid, *, within_s: float) -> Pod | None:
        """Return the pod of this uid, waiting a moment for a watch that lags behind kube-scheduler's, or its owners."""
        known = self._cache.pod(uid)
        if known is not None and not known.ungrouped:
            return known
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(uid, set()).add(arrival)
        try:
            async with asyncio.timeout(within_s):
                await arrival
        except TimeoutError:
            pass
        finally:
            self._give_up_waiting(uid, arrival)
        return self._cache.pod(uid)

    def _give_up_waiting(self, uid: PodUid, arrival: asyncio.Future[None]) -> None:
        waiting = self._awaited.get(uid, set())
        waiting.discard(arrival)
        if not waiting:
            self._awaited.pop(uid, None)

    async def _follow(self, resource: Resource) -> None:
        async for event in self._cluster.watch(resource, partial(self._keep, resource)):
            await self._take(resource, event)
            self._on_change()

    def _keep(self, resource: Resource, raw: RawObject) -> Any | None:
        """Shrink an object to its record; None when it cannot be read."""
        try:
            record = self._kinds[resource].decode(raw)
            self._on_object(resource, raw)
        except decode.DecodeError as error:
            log.warning("object without a name", resource=repr(resource), error=str(error))
            return None
        except Exception:
            # A mistake of ours that one object brings out: without that object we still serve all the others.
            log.exception("object cannot be read", resource=repr(resource))
            return None
        return record

    async def _take(self, resource: Resource, event: WatchEvent[Any | None]) -> None:
        watch = self._watches[resource]
        if isinstance(event, Lost):
            watch.lost = event.cause
            self._metrics.watch_lost(repr(resource))
            log.warning("watch lost", resource=repr(resource), cause=event.cause)
            return
        match event:
            case Listed(records):
                await self._replace(resource, records)
                self._note_listed(watch)
            case Changed(record) if record is not None:
                self._apply(resource, record)
            case Deleted(record) if record is not None:
                self._delete(resource, record)
            case _:
                pass
        watch.lost = ""
        watch.heard_at = self._clock()

    def _note_listed(self, watch: _Watch) -> None:
        watch.listed = True
        if watch is self._watches[Resource.PODS]:
            self._grouper.note_pods_listed()
        if all(each.listed for each in self._watches.values()):
            self._synced.set()

    def _failure(self, watch: _Watch) -> str:
        if not watch.listed:
            return watch.lost or "not listed yet"
        if watch.lost:
            return watch.lost
        silent_s = self._clock() - watch.heard_at
        return f"silent for {silent_s:.0f} s" if silent_s > STALE_AFTER_S else ""

    async def _replace(self, resource: Resource, records: list[Any | None]) -> None:
        """Take over a whole list: what it does not hold is gone."""
        watch = self._watches[resource]
        gone, watch.known = watch.known, set()
        for number, record in enumerate(records, start=1):
            if record is not None:
                self._apply(resource, record)
            if number % PAUSE_EVERY == 0:
                # Form the groups of these now: those of 50,000 pods together would take a second.
                self._cache.form_groups()
                await asyncio.sleep(0)
        for key in gone - watch.known:
            self._forget(resource, key)

    def _apply(self, resource: Resource, record: Any) -> None:
        kind = self._kinds[resource]
        key = kind.key(record)
        self._watches[resource].known.add(key)
        self._count_invalid(resource, key, problem=getattr(record, "problem", ""))
        kind.apply(record)

    def _delete(self, resource: Resource, record: Any) -> None:
        key = self._kinds[resource].key(record)
        self._watches[resource].known.discard(key)
        self._forget(resource, key)

    def _forget(self, resource: Resource, key: Any) -> None:
        self._count_invalid(resource, key, problem="")
        self._kinds[resource].forget(key)

    def _count_invalid(self, resource: Resource, key: object, *, problem: str) -> None:
        invalid = self._watches[resource].invalid
        if bool(problem) == (key in invalid):
            return
        (invalid.add if problem else invalid.discard)(key)
        self._metrics.invalid_objects(repr(resource), len(invalid))

    def _apply_pod(self, seen: decode.SeenPod) -> None:
        pod = self._grouper.settle(seen.pod)
        before = self._cache.pod(pod.uid)
        self._cache.apply_pod(pod, seen.started_at)
        if before is not None and before.group != pod.group:
            self._grouper.forget_if_over(before.group)
        if before is None and pod.said.by_us:
            self._on_parked(pod.uid)
        if pod.said.unready and pod.managed:
            self._on_unready(pod.uid)
        if not pod.ungrouped:
            self._note_arrival(pod.uid)

    def note_regrouped(self) -> None:
        """Note that pods may belong to their groups now: whoever waits for one of them goes on."""
        for uid in list(self._awaited):
            pod = self._cache.pod(uid)
            if pod is not None and not pod.ungrouped:
                self._note_arrival(uid)
        self._on_change()

    def _note_arrival(self, uid: PodUid) -> None:
        for arrival in self._awaited.pop(uid, ()):
            if not arrival.done():
                arrival.set_result(None)

    def _apply_group(self, spec: GroupSpec) -> None:
        self._cache.apply_group(self._grouper.settle_object(spec) if self._keeps.is_on else spec)

    def _forget_group(self, key: GroupKey) -> None:
        self._cache.delete_group(key)
        self._grouper.note_object_gone(key)

    def _apply_gpu_node(self, node: GpuNode) -> None:
        self._cache.apply_gpu_node(node, heard_at=self._clock())

    def _forget_pod(self, uid: PodUid) -> None:
        pod = self._cache.pod(uid)
        # What it held is free at once, however it ended: that is looked up behind.
        self._cache.delete_pod(uid)
        if pod is not None:
            self._grouper.forget(pod)
            self._endings.look_up(pod)

    def _table(self) -> Mapping[Resource, _Kind[Any, Any]]:
        cache = self._cache
        return {
            Resource.NODES: _Kind(
                decode=decode.node, key=lambda node: node.name, apply=cache.apply_node, forget=cache.delete_node
            ),
            Resource.QUEUES: _Kind(
                decode=decode.queue, key=lambda queue: queue.name, apply=cache.apply_queue, forget=cache.delete_queue
            ),
            Resource.PRIORITY_CLASSES: _Kind(
                decode=decode.priority_class,
                key=lambda one: one.name,
                apply=cache.apply_class,
                forget=cache.delete_class,
            ),
            Resource.POD_GROUPS: _Kind(
                decode=decode.pod_group, key=lambda spec: spec.key, apply=self._apply_group, forget=self._forget_group
            ),
            Resource.TOPOLOGIES: _Kind(
                decode=decode.topology,
                key=lambda one: one.name,
                apply=cache.apply_topology,
                forget=cache.delete_topology,
            ),
            Resource.GPU_NODES: _Kind(
                decode=decode.gpu_node,
                key=lambda node: node.name,
                apply=self._apply_gpu_node,
                forget=cache.delete_gpu_node,
            ),
            Resource.PODS: _Kind(
                decode=partial(decode.seen_pod, profiles=self._profiles, rules=self._rules, keeps=self._keeps),
                key=lambda seen: seen.pod.uid,
                apply=self._apply_pod,
                forget=self._forget_pod,
            ),
        }
