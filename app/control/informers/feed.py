"""Carries what the watches show into the cache: decode -> event -> apply, and knows how fresh the picture is.

An object that cannot be read never stops the feed and never frees anything: its record says what is wrong with it, or
what was known of it stays, and a list with an object that nobody can name removes none.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.cluster.state.lasting import lasting, plain
from app.control.gpus.shared_gpus import rules_of
from app.control.groups.completions import CompletionLookup
from app.control.groups.owner_watch import OwnerWatch
from app.control.groups.pod_grouper import PodGrouper, keeps_of
from app.control.groups.shown import Shown
from app.model.device import GpuNode
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.priority import PriorityClass
from app.model.question import Check
from app.model.queue import Queue
from app.model.seam import Changed, Cluster, Deleted, Listed, Lost, RawObject, Resource, RestoredError, WatchEvent
from app.model.topology import Topology
from app.settings import Settings
from app.telemetry import Metrics, Step

log = structlog.get_logger()

R = TypeVar("R")
K = TypeVar("K")

STALE_AFTER_S = 90.0
"""A watch that has shown nothing for so long, not even a bookmark (about one a minute), is not trusted."""

RESTORED = (
    "the API server's store was restored from a backup: what was seen before may not exist; Leeboard ends, so"
    " that it is started again and reads everything again"
)
"""Each watch learns of it at a time of its own, and promises, past decisions and the lease are from before."""

OPTIONAL = frozenset({Resource.TOPOLOGIES, Resource.GPU_NODES})
"""Kinds that only some pods need: those with a topology, and those with GPUs. The others do not wait for them."""

OPTIONAL_WITHIN_S = 5.0
"""How long after the required kinds were listed all pods wait for the first lists of the optional ones: the API server
may accept the request and never answer, which counts as a failure only after half a minute."""

LOSSES_UNTIL_OPTIONAL = 3
"""Failures in a row before the first list of such a kind until nobody else waits for it. Pods with GPUs go on then as
well, without GpuNodes: before, a sick GPU would look free."""

PAUSE_EVERY = 200
"""After so many objects of a list the event loop gets a turn: 50,000 pods must not hold up a webhook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[R, K]):
    """How objects of one kind get into the cache and out of it: first shrunk to a record, then applied."""

    decode: Callable[[RawObject], R]
    key: Callable[[R], K]
    least: Callable[[RawObject], R]
    """Read what must be known of an object on which `decode` has failed; may raise as well."""
    apply: Callable[[R], None]
    forget: Callable[[K], None]
    fail: Callable[[K], None] = lambda _: None
    """Close what may hold less than is known, after `apply` has failed."""


@dataclass(frozen=True, slots=True)
class _Seen(Generic[R]):
    """What is kept of an object that a list or an event shows."""

    record: R
    version: int
    """Its resourceVersion; 0 when that is no number."""


def key_of(resource: Resource, raw: RawObject) -> Any:
    """Return by what an object is known: a pod by its uid, since another may have its name, others by their name."""
    name, uid = decode.identity(raw)
    if resource is Resource.PODS:
        return PodUid(uid or decode.without_uid(decode.namespace_of(raw), name))
    return GroupKey(decode.namespace_of(raw), name) if resource is Resource.POD_GROUPS else name


@dataclass(slots=True)
class _Watch:
    """How one watch is doing. Changed by `Feed` alone."""

    listed: bool = False
    lost: str = ""
    losses: int = 0
    """How often it was lost since it last showed anything."""
    is_late: bool = False
    """Whether only the pods that need the kind wait any longer for its first list."""
    heard_at: float = 0.0
    shown: Shown = field(default_factory=Shown)
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
        on_passing: Callable[[PodUid], None],
        on_object: Callable[[Resource, RawObject], None],
        grouper: PodGrouper,
    ) -> None:
        """`on_change` is called after each event and `on_parked` for a pod that was refused by us before we started.

        `on_passing` is called for a pod of ours whose condition says what is true for a moment only.
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
        self._on_passing = on_passing
        self._on_object = on_object
        self._grouper = grouper
        self._keeps = keeps_of(settings)
        self._endings = CompletionLookup(
            cache, cluster, grouper, profiles=settings.profiles, keeps=self._keeps, on_change=on_change
        )
        self._watches = {resource: _Watch() for resource in Resource}
        self._kinds: Mapping[Resource, _Kind[Any, Any]] = self._table()
        cache.doubt_topologies()
        cache.doubt_gpus()
        self._awaited: dict[PodUid, set[asyncio.Future[None]]] = {}
        self._has_required = asyncio.Event()
        """Set once every required kind has been listed."""
        self._synced = asyncio.Event()
        self._told: set[tuple[Resource, Step, type[Exception]]] = set()

    async def run(self) -> None:
        """Follow every kind, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._endings.run(), name="endings")
            tasks.create_task(self._grouper.run(), name="owners")
            tasks.create_task(self._endings.recover(self.synced), name="recover")
            tasks.create_task(self._wait_for_optional(), name="optional kinds")
            for resource in Resource:
                tasks.create_task(self._follow(resource), name=f"watch {resource!r}")

    async def synced(self) -> None:
        """Wait until every kind has been listed once, or is optional and cannot be."""
        await self._synced.wait()

    def unready(self) -> str:
        """Return why no question can be answered now, "" when all can: not listed yet, lost, or silent."""
        # Asked with every question: the checks, which a person reads, say it in more words.
        return self._unheard() or self._grouper.check().failure

    def _unheard(self) -> str:
        return next((said for resource in self._watches if (said := self._check(resource).failure)), "")

    def checks(self) -> list[Check]:
        """Return one check a kind."""
        return [*map(self._check, self._watches), self._grouper.check()]

    def _check(self, resource: Resource) -> Check:
        watch = self._watches[resource]
        name, failure = f"watch-{resource!r}", self._failure(watch)
        return Check(name, degraded=failure) if self._is_dispensable(resource) else Check(name, failure)

    def _is_dispensable(self, resource: Resource) -> bool:
        """Whether a kind is optional, and was listed or cannot be for now."""
        watch = self._watches[resource]
        return resource in OPTIONAL and (watch.listed or watch.is_late or watch.losses >= LOSSES_UNTIL_OPTIONAL)

    # What the audit asks and repairs ---------------------------------------------------------------------------------

    def is_listed(self, resource: Resource) -> bool:
        """Return whether the watch of a kind has begun."""
        return self._watches[resource].listed

    def shown(self, resource: Resource) -> Mapping[Any, int]:
        """Return what the watch of a kind has shown: version by `key_of`; not to be kept across an await."""
        return self._watches[resource].shown.known

    def has_ended(self, resource: Resource, key: Any, version: int) -> bool:
        """Return whether the watch has shown lately that an object ended after this version of it."""
        return self._watches[resource].shown.has_ended(key, version)

    def place_of(self, resource: Resource, key: Any) -> tuple[str, str]:
        """Return the namespace and the name of what the watch has shown by this key."""
        if resource is Resource.PODS:
            pod = self._cache.pod(key)
            return (pod.namespace, pod.name) if pod is not None else ("", str(key))
        return (key.namespace, key.name) if isinstance(key, GroupKey) else ("", key)

    def mend(self, resource: Resource, raw: RawObject) -> None:
        """Take over an object as the watch should have shown it."""
        seen = self._keep(resource, raw)
        if seen is not None:
            self._apply(resource, seen)
            self._on_change()

    def remove(self, resource: Resource, key: Any) -> None:
        """Forget an object of whose end the watch has shown nothing."""
        self._watches[resource].shown.known.pop(key, None)
        self._forget(resource, key)
        self._on_change()

    @property
    def owners(self) -> OwnerWatch:
        """What follows the kinds of objects that own pods."""
        return self._grouper.owner_watch

    # What the extender asks ------------------------------------------------------------------------------------------

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
            if resource is Resource.GPU_NODES:
                await self._trust_gpus()
            self._on_change()

    def _keep(self, resource: Resource, raw: RawObject) -> _Seen[Any] | None:
        """Shrink an object to its record; None when nothing tells which object it is."""
        record = self._read(resource, raw)
        if record is None:
            return None
        # What others learn of it may be lost; what it holds is not.
        self._try(resource, Step.LEARN, decode.full_name(raw), partial(self._on_object, resource, raw))
        return _Seen(record, decode.version(raw))

    def _read(self, resource: Resource, raw: RawObject) -> Any | None:
        kind = self._kinds[resource]
        try:
            record = self._try(resource, Step.READ, decode.full_name(raw), partial(kind.decode, raw))
        except decode.DecodeError as error:
            log.warning("object without a name", resource=repr(resource), error=str(error))
            record = None
        with suppress(decode.DecodeError):
            return record or self._try(resource, Step.READ, decode.full_name(raw), partial(kind.least, raw))
        return None

    def _try(self, resource: Resource, step: Step, name: object, act: Callable[[], R]) -> R | None:
        """Return what comes of it; None when the object brings out a mistake of ours, which costs no other one."""
        try:
            return act()
        except decode.DecodeError:
            raise
        except Exception as error:  # noqa: BLE001 # whatever one object brings out, the others are served
            self._metrics.object_failed(repr(resource), step)
            what = (resource, step, type(error))
            # Where it happened is told once: thousands of objects may be of one template.
            tell = log.warning if what in self._told else log.exception
            tell("object cannot be used", resource=repr(resource), object=name, step=step.value, error=repr(error))
            self._told.add(what)
            return None

    async def _take(self, resource: Resource, event: WatchEvent[_Seen[Any] | None]) -> None:
        watch = self._watches[resource]
        if isinstance(event, Lost):
            watch.lost = event.cause
            watch.losses += LOSSES_UNTIL_OPTIONAL if event.denied else 1
            self._note_synced()
            self._metrics.watch_lost(repr(resource))
            log.warning("watch lost", resource=repr(resource), cause=event.cause)
            return
        match event:
            case Listed(restored=True):
                raise RestoredError(RESTORED)
            case Listed(seen):
                await self._replace(resource, seen)
                self._note_listed(resource)
            case Changed(seen) if seen is not None and not self._is_old(resource, seen):
                self._apply(resource, seen)
            case Deleted(seen) if seen is not None and not self._is_old(resource, seen):
                self._delete(resource, seen)
            case _:
                pass
        watch.lost, watch.losses = "", 0
        watch.heard_at = self._clock()

    def _is_old(self, resource: Resource, seen: _Seen[Any]) -> bool:
        """Whether the audit has already found a newer version than this event shows."""
        return self._watches[resource].shown.is_old(self._kinds[resource].key(seen.record), seen.version)

    def _note_listed(self, resource: Resource) -> None:
        watch = self._watches[resource]
        if resource is Resource.TOPOLOGIES and not watch.listed:
            self._cache.trust_topologies()
        watch.listed = True
        if resource is Resource.PODS:
            self._grouper.note_pods_listed()
        self._note_synced()

    async def _wait_for_optional(self) -> None:
        """Let the other pods go on when the first list of an optional kind takes too long; it goes on as well."""
        await self._has_required.wait()
        await asyncio.sleep(OPTIONAL_WITHIN_S)
        late = [watch for resource, watch in self._watches.items() if resource in OPTIONAL and not watch.listed]
        for watch in late:
            watch.is_late = True
        if late:
            self._note_synced()
            self._on_change()

    async def _trust_gpus(self) -> None:
        """Let pods with GPUs go on, once every sick GPU is known or nobody waits for that any longer."""
        agents = self._watches[Resource.GPU_NODES]
        if not agents.listed and agents.losses < LOSSES_UNTIL_OPTIONAL:
            return
        for number, key in enumerate(self._cache.trust_gpus(), start=1):
            self._cache.touch(key)
            if number % PAUSE_EVERY == 0:
                self._cache.form_groups()
                await asyncio.sleep(0)

    def _note_synced(self) -> None:
        if all(self._watches[resource].listed for resource in set(Resource) - OPTIONAL):
            self._has_required.set()
        if all(watch.listed or self._is_dispensable(resource) for resource, watch in self._watches.items()):
            self._synced.set()

    def _failure(self, watch: _Watch) -> str:
        if not watch.listed:
            return watch.lost or "not listed yet"
        if watch.lost:
            return watch.lost
        silent_s = self._clock() - watch.heard_at
        return f"silent for {silent_s:.0f} s" if silent_s > STALE_AFTER_S else ""

    async def _replace(self, resource: Resource, seen: list[_Seen[Any] | None]) -> None:
        """Take over a whole list: what it does not hold is gone, if it can be told what it holds."""
        shown = self._watches[resource].shown
        gone, shown.known = shown.known, {}
        for number, one in enumerate(seen, start=1):
            if one is not None:
                self._apply(resource, one)
            if number % PAUSE_EVERY == 0:
                # Form the groups of these now: those of 50,000 pods together would take a second.
                self._cache.form_groups()
                await asyncio.sleep(0)
        if None in seen:
            shown.known = gone | shown.known
            return
        for key in gone.keys() - shown.known.keys():
            self._forget(resource, key)

    def _apply(self, resource: Resource, seen: _Seen[Any]) -> None:
        kind, record = self._kinds[resource], seen.record
        key = kind.key(record)
        self._watches[resource].shown.known[key] = seen.version
        self._count_invalid(resource, key, problem=getattr(record, "problem", ""))
        if not self._try(resource, Step.APPLY, key, partial(_done, partial(kind.apply, record))):
            # No version of it is known, so that the audit tries again.
            self._watches[resource].shown.known[key] = 0
            self._try(resource, Step.APPLY, key, partial(kind.fail, key))

    def _delete(self, resource: Resource, seen: _Seen[Any]) -> None:
        key = self._kinds[resource].key(seen.record)
        self._watches[resource].shown.end(key, seen.version)
        self._forget(resource, key)

    def _forget(self, resource: Resource, key: Any) -> None:
        self._count_invalid(resource, key, problem="")
        self._try(resource, Step.APPLY, key, partial(self._kinds[resource].forget, key))

    def _count_invalid(self, resource: Resource, key: object, *, problem: str) -> None:
        invalid = self._watches[resource].invalid
        if bool(problem) == (key in invalid):
            return
        (invalid.add if problem else invalid.discard)(key)
        self._metrics.invalid_objects(repr(resource), len(invalid))

    def _apply_pod(self, seen: decode.SeenPod) -> None:
        before = self._cache.pod(seen.pod.uid)
        shown = lasting(self._cache.pod_as_shown(seen.pod.uid), seen.pod)
        self._forget_nameless(shown)
        pod = self._group(shown)
        if not self._try(Resource.PODS, Step.APPLY, repr(pod), partial(self._apply_whole, pod, seen.started_at)):
            self._cache.apply_pod(plain(pod))
        if before is not None and before.group != pod.group:
            self._grouper.forget_if_over(before.group)
        if before is None and pod.said.by_us:
            self._on_parked(pod.uid)
        if pod.said.passing and pod.managed:
            self._on_passing(pod.uid)
        if not pod.ungrouped:
            self._note_arrival(pod.uid)

    def _apply_whole(self, pod: Pod, started_at: float | None) -> bool:
        self._cache.apply_pod(pod, started_at)
        return True

    def _group(self, pod: Pod) -> Pod:
        found = self._try(Resource.PODS, Step.APPLY, repr(pod), partial(self._grouper.settle, pod))
        # Where its owners bring out a mistake of ours, it is charged and not started.
        return found or lasting(self._cache.pod_as_shown(pod.uid), replace(pod, problem=decode.LEAST))

    def _forget_nameless(self, pod: Pod) -> None:
        """Forget a pod as it was known without its uid, now that it shows one."""
        nameless = PodUid(decode.without_uid(pod.namespace, pod.name))
        if pod.uid != nameless and self._watches[Resource.PODS].shown.known.pop(nameless, None) is not None:
            self._forget(Resource.PODS, nameless)

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

    def _least_node(self, raw: RawObject) -> Node:
        name = NodeName(decode.name_of(raw))
        return replace(self._cache.node_as_shown(name) or Node(name=name), problem=decode.LEAST)

    def _least_queue(self, raw: RawObject) -> Queue:
        name = QueueName(decode.name_of(raw))
        return replace(self._cache.queues().get(name) or Queue(name=name), problem=decode.LEAST)

    def _least_group(self, raw: RawObject) -> GroupSpec:
        key = GroupKey(decode.namespace_of(raw), decode.name_of(raw))
        return replace(self._cache.groups.object(key) or GroupSpec(key=key), problem=decode.LEAST)

    def _table(self) -> Mapping[Resource, _Kind[Any, Any]]:
        cache, name_of, problem = self._cache, decode.name_of, decode.LEAST
        return {
            Resource.NODES: _Kind(
                decode=decode.node,
                key=lambda node: node.name,
                least=self._least_node,
                apply=cache.apply_node,
                forget=cache.delete_node,
                fail=cache.fail_node,
            ),
            Resource.QUEUES: _Kind(
                decode=decode.queue,
                key=lambda queue: queue.name,
                least=self._least_queue,
                apply=cache.apply_queue,
                forget=cache.delete_queue,
            ),
            Resource.PRIORITY_CLASSES: _Kind(
                decode=decode.priority_class,
                key=lambda one: one.name,
                least=lambda raw: PriorityClass(name=name_of(raw), value=0, problem=problem),
                apply=cache.apply_class,
                forget=cache.delete_class,
            ),
            Resource.POD_GROUPS: _Kind(
                decode=decode.pod_group,
                key=lambda spec: spec.key,
                least=self._least_group,
                apply=self._apply_group,
                forget=self._forget_group,
            ),
            Resource.TOPOLOGIES: _Kind(
                decode=decode.topology,
                key=lambda one: one.name,
                least=lambda raw: Topology(name=name_of(raw), levels=(), problem=problem),
                apply=cache.apply_topology,
                forget=cache.delete_topology,
            ),
            Resource.GPU_NODES: _Kind(
                decode=decode.gpu_node,
                key=lambda node: node.name,
                least=lambda raw: GpuNode(name=NodeName(name_of(raw)), problem=problem),
                apply=self._apply_gpu_node,
                forget=cache.delete_gpu_node,
                fail=cache.fail_gpu_node,
            ),
            Resource.PODS: _Kind(
                decode=partial(decode.seen_pod, profiles=self._profiles, rules=self._rules, keeps=self._keeps),
                key=lambda seen: seen.pod.uid,
                least=partial(decode.least_pod, profiles=self._profiles),
                apply=self._apply_pod,
                forget=self._forget_pod,
            ),
        }


def _done(act: Callable[[], None]) -> bool:
    act()
    return True
