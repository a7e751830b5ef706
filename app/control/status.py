"""Keeps the status of Queues and PodGroups true, and tells owners once why their pods wait.

Written on change only, and never more than once an interval per object: a write wakes nobody, but is not free.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog
from cachetools import TTLCache

from app.cluster import encode
from app.cluster.cache import ClusterCache
from app.control.inspect import Inspect
from app.model.names import GroupKey, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import Resources
from app.model.seam import Cluster, KubeError, NotFoundError, RawObject, Resource, UnavailableError
from app.settings import Settings

log = structlog.get_logger()

WRITES_AT_ONCE = 4
EVENTS_PER_ROUND = 20
"""Ten thousand pods that wait for one cause must not become a storm of events."""

TOLD_FOR_S = 1800.0
"""How long the same reason is not told again for the same group."""

PASSING = frozenset({Reason.DECIDING, Reason.BACKING_OFF})
"""Reasons that are over before anybody could read of them, or repeat what was told already."""


@dataclass(frozen=True, slots=True)
class _Target:
    """One object whose status is ours."""

    resource: Resource
    namespace: str
    name: str


class Status:
    """Compares what objects say with what they should say, once an interval."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        inspect: Inspect,
        cluster: Cluster,
        settings: Settings,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], str],
    ) -> None:
        """`clock` is monotonic, `wall_clock` returns RFC 3339. `_written` is what each object is known to say."""
        self._cache = cache
        self._inspect = inspect
        self._cluster = cluster
        self._interval_s = settings.status_interval_s
        self._now = wall_clock
        self._written: dict[_Target, RawObject] = {}
        self._version = -1
        self._waited_before: dict[GroupKey, Reason] = {}
        self._told: TTLCache[tuple[GroupKey, Reason], bool] = TTLCache(100_000, TOLD_FOR_S, timer=clock)

    async def run(self) -> None:
        """Bring statuses up to date for ever, when something changed."""
        while True:
            await asyncio.sleep(self._interval_s)
            if all(check.passed for check in self._inspect.readiness()):
                await self.round()

    async def round(self) -> None:
        """Write every status that is no longer true, then tell of what still waits."""
        if self._version != self._cache.version:
            self._version = self._cache.version
            await self._write(dict(self._outdated()))
        await self._tell(dict(self._inspect.waiting_by_key()))

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Note what an object says already, so that a restart writes only what is wrong."""
        if resource in {Resource.QUEUES, Resource.POD_GROUPS}:
            namespace, name, status = encode.stated(raw)
            self._written[_Target(resource, namespace, name)] = status

    # What should be said --------------------------------------------------------------------------------------------

    def _outdated(self) -> Iterator[tuple[_Target, RawObject]]:
        for target, status in (*self._queues(), *self._pod_groups()):
            said = self._written.get(target, {})
            if not encode.same({key: said.get(key) for key in status}, status):
                yield target, status

    def _queues(self) -> Iterator[tuple[_Target, RawObject]]:
        shares, queues = self._inspect.queues(), self._cache.queues()
        children: dict[QueueName, list[QueueName]] = {}
        for queue in queues.values():
            if queue.parent is not None:
                children.setdefault(queue.parent, []).append(queue.name)
        for name, queue in queues.items():
            status = encode.queue_status(queue, shares.get(name), children.get(name, ()), now=self._now())
            yield _Target(Resource.QUEUES, "", name), status

    def _pod_groups(self) -> Iterator[tuple[_Target, RawObject]]:
        waiting = self._inspect.waiting_by_key()
        for spec in list(self._cache.groups.specs()):
            group, refusal = waiting.get(spec.key, (None, None))
            status = encode.pod_group_status(self._standing(spec.key), group, refusal, now=self._now())
            status |= encode.invalid_pod_group_status(spec.problem, now=self._now())
            yield _Target(Resource.POD_GROUPS, spec.key.namespace, spec.key.name), status

    def _standing(self, key: GroupKey) -> encode.Standing:
        members = list(self._cache.groups.pods(key))
        allocated, on = self._cache.holding(key), self._cache.groups.terms(key)
        bound = sum(pod.node is not None for pod in members)
        return encode.Standing(
            allocated=allocated,
            requested=sum((pod.request for pod in members), Resources()),
            non_preemptible=Resources() if on is None or on.preemptible else allocated,
            running=bound,
            pending=len(members) - bound,
        )

    # Writing --------------------------------------------------------------------------------------------------------

    async def _write(self, statuses: Mapping[_Target, RawObject]) -> None:
        turns = asyncio.Semaphore(WRITES_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for target, status in statuses.items():
                tasks.create_task(self._write_one(target, status, turns))

    async def _write_one(self, target: _Target, status: RawObject, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._cluster.write_status(target.resource, target.namespace, target.name, status)
            except NotFoundError:
                self._written.pop(target, None)
            except KubeError as error:
                log.warning("status not written", object=target.name, error=str(error))
                self._version = -1  # The next round looks again, whether or not anything has changed by then.
            else:
                self._written[target] = status

    # Telling --------------------------------------------------------------------------------------------------------

    async def _tell(self, waiting: Mapping[GroupKey, tuple[PodGroup, Refusal | None]]) -> None:
        """Record one event for each cause that has lasted from one round to the next."""
        lasting, self._waited_before = self._waited_before, {}
        news = 0
        for key, (_, refusal) in waiting.items():
            if refusal is None or refusal.reason in PASSING:
                continue
            self._waited_before[key] = refusal.reason
            if lasting.get(key) is refusal.reason and (key, refusal.reason) not in self._told:
                news += 1
                if news <= EVENTS_PER_ROUND:
                    self._told[key, refusal.reason] = True
                    await self._record(key, refusal)

    async def _record(self, key: GroupKey, refusal: Refusal) -> None:
        regarding = self._regarding(key)
        if regarding is None:
            return
        try:
            await self._cluster.record_event(
                regarding, warning=True, reason=refusal.reason.value, note=refusal.sentence
            )
        except KubeError as error:
            log.warning("event not recorded", podgroup=repr(key), error=str(error))
            if isinstance(error, UnavailableError):
                self._told.pop((key, refusal.reason), None)

    def _regarding(self, key: GroupKey) -> RawObject | None:
        """Name the PodGroup, or the pod that is a group of its own; None when it went while others were told of."""
        spec, pod = self._cache.groups.spec(key), next(iter(self._cache.groups.pods(key)), None)
        if spec is not None:
            return _pod_group_reference(spec)
        return None if pod is None else _pod_reference(pod)


def _pod_group_reference(spec: GroupSpec) -> RawObject:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "uid": spec.uid,
    }


def _pod_reference(pod: Pod) -> RawObject:
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
