"""Keeps the status of Queues and PodGroups up to date.

A status is written only when it changes, and once an interval per object at most: a write triggers nothing in Leeboard,
but has a cost.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from app.cluster.encode import status_fields
from app.cluster.state.cache import ClusterCache
from app.control.cycle.planning import Planning
from app.control.report.inspect import Inspect
from app.model.decision import Share
from app.model.names import NATIVE_API, GroupKey, QueueName
from app.model.podgroup import GroupSpec
from app.model.reason import FREEING, Reason, Refusal
from app.model.resources import Resources
from app.model.retry import RetryPolicy
from app.model.seam import Cluster, KubeError, NotFoundError, RawObject, Resource
from app.model.sentence import tenant
from app.model.snapshot import Usage
from app.settings import Settings

log = structlog.get_logger()

WRITES_AT_ONCE = 4

FREE_TRIES = 2
"""Failures in a row after which a status is still written in the next round; after more, the pause doubles."""

LONGEST_PAUSE_S = 120.0

POD_GROUPS = frozenset({Resource.POD_GROUPS, Resource.NATIVE_POD_GROUPS})

AT_ONCE = 100
"""Objects that are compared before the event loop gets a turn: there may be ten thousand."""

RENEWED_AT_ONCE = 20
"""Waiting PodGroups per round whose numbers are updated although their reason has not changed."""


@dataclass(frozen=True, slots=True)
class _Target:
    """An object whose status Leeboard writes."""

    resource: Resource
    namespace: str
    name: str


class Status:
    """Compares the stored status of objects with the current one at intervals; of PodGroups only those that changed."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        planning: Planning,
        inspect: Inspect,
        cluster: Cluster,
        settings: Settings,
        *,
        wall_clock: Callable[[], str],
    ) -> None:
        """`wall_clock` returns RFC 3339. `_said` is the known status of each object; `_touched` is what to compare."""
        self._cache = cache
        self._planning = planning
        self._inspect = inspect
        self._cluster = cluster
        self._interval_s = settings.status_interval_s
        self._retry = RetryPolicy(first_s=2 * settings.status_interval_s, longest_s=LONGEST_PAUSE_S)
        self._now = wall_clock
        self._is_told_by_scheduler = settings.kube_scheduler_groups
        """Whether kube-scheduler writes the status of native PodGroups."""
        self._said: dict[_Target, RawObject] = {}
        self._failures: Counter[_Target] = Counter()
        """Failures in a row, of objects whose last write failed."""
        self._resting: set[_Target] = set()
        """Objects that are not written until their pause is over."""
        self._touched: dict[GroupKey, None] = {}
        """This dict object is never replaced: the cache adds the groups that have changed."""
        cache.groups.touched.tell(self._touched)
        self._to_renew: Iterator[GroupKey] = iter(())
        """The groups whose numbers are updated next, as long as anything changes."""
        self._renewed_at = -1
        self._version = -1

    async def run(self) -> None:
        """Update statuses at intervals until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._inspect.is_ready():
                await self._round_or_say()

    async def _round_or_say(self) -> None:
        try:
            await self.round()
        except Exception:
            # An error with one object must not end the service, and must not block the status of other objects.
            log.exception("statuses not brought up to date")

    async def round(self) -> None:
        """Write every status that has changed."""
        if self._version != self._cache.changes.version:
            self._version = self._cache.changes.version
            # The number of pods that are still leaving changes often: few groups wait for such pods.
            stalled = self._planning.attempts.stalled()
            self._touched.update(dict.fromkeys(key for key, why in stalled.items() if why.reason in FREEING))
            await self._correct_queues()
        self._touched.update(dict.fromkeys(self._renewed()))
        touched = self._take_touched()
        for start in range(0, len(touched), AT_ONCE):
            await self._correct(list(self._pod_groups(touched[start : start + AT_ONCE])))
            await asyncio.sleep(0)

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Note the stored status of an object, so that a restart writes only differences."""
        if resource not in {Resource.QUEUES, *POD_GROUPS}:
            return
        namespace, name, status = status_fields.stated(raw)
        is_native = resource is Resource.NATIVE_POD_GROUPS
        target = _Target(resource, namespace, name)
        self._said[target] = status_fields.native_stated(status) if is_native else status
        if resource in POD_GROUPS:
            self._touched[_key(target)] = None

    async def _correct_queues(self) -> None:
        statuses = self._queues(await asyncio.to_thread(self._inspect.queues()))
        while step := list(islice(statuses, AT_ONCE)):
            await self._correct(step)
            await asyncio.sleep(0)

    # Current statuses -----------------------------------------------------------------------------------------------

    def _take_touched(self) -> Sequence[GroupKey]:
        touched = list(self._touched)
        self._touched.clear()
        return touched

    def _renewed(self) -> Iterator[GroupKey]:
        """Yield the next waiting groups in turn, and none once all were updated since the last change."""
        found = list(islice(self._to_renew, RENEWED_AT_ONCE))
        if len(found) < RENEWED_AT_ONCE and self._renewed_at != self._version:
            self._renewed_at = self._version
            self._to_renew = iter(
                [key for key in self._cache.groups.waiting() if self._cache.groups.specs.object(key) is not None]
            )
        yield from found

    def _queues(self, shares: Mapping[QueueName, Share]) -> Iterator[tuple[_Target, RawObject]]:
        queues = self._cache.queues.tree()
        children: dict[QueueName, list[QueueName]] = {}
        for queue in queues.values():
            if queue.parent is not None:
                children.setdefault(queue.parent, []).append(queue.name)
        usage = self._cache.charges.usage()
        for name, queue in queues.items():
            past, told = self._cache.history.told(name), shares.get(name) or usage.get(name, Usage())
            status = status_fields.queue_status(queue, told, children.get(name, ()), now=self._now(), past=past)
            yield _Target(Resource.QUEUES, "", name), status

    def _pod_groups(self, keys: Collection[GroupKey]) -> Iterator[tuple[_Target, RawObject]]:
        stalled = self._planning.attempts.stalled()
        for key in keys:
            target, spec = _target(key), self._cache.groups.specs.get(key)
            if spec is None or self._cache.groups.specs.object(key) is None:
                self._said.pop(target, None)
                self._failures.pop(target, None)
            else:
                refusal = self._inspect.refusal(key) or stalled.get(key) or _of_owner(spec)
                if not key.api:
                    yield target, self._pod_group(spec, refusal)
                elif native := self._native_group(target, key, refusal):
                    yield target, native

    def _pod_group(self, spec: GroupSpec, refusal: Refusal | None) -> RawObject:
        reader = tenant(spec.key.namespace)
        return status_fields.pod_group_status(
            self._standing(spec), refusal, problem=spec.problem, reader=reader, now=self._now()
        )

    def _native_group(self, target: _Target, key: GroupKey, refusal: Refusal | None) -> RawObject | None:
        """Return the status of a native PodGroup; None when there is nothing to tell, or others tell it."""
        if self._is_told_by_scheduler or status_fields.has_started(self._said.get(target, {})):
            return None
        is_bound = any(pod.node is not None for pod in self._cache.groups.pods(key))
        has_started = is_bound and not self._cache.groups.progress.owes(key)
        if not has_started and refusal is None:
            return None
        cause = None if has_started else refusal
        return status_fields.native_group_status(cause, now=self._now(), reader=tenant(key.namespace))

    def _standing(self, spec: GroupSpec) -> status_fields.GroupTotals:
        key = spec.key
        members = list(self._cache.groups.pods(key))
        allocated, on = self._cache.room.held_by(members), self._cache.groups.terms.of(key)
        bound = sum(pod.node is not None for pod in members)
        return status_fields.GroupTotals(
            allocated=allocated,
            requested=self._cache.room.asked_by(members),
            non_preemptible=Resources() if on is None or on.preemptible else allocated,
            phase=self._phase(spec, bound),
            running=bound,
            pending=len(members) - bound,
        )

    def _phase(self, spec: GroupSpec, bound: int) -> str:
        if bound and not self._cache.groups.progress.owes(spec.key):
            return status_fields.RUNNING
        return "Suspended" if spec.suspended else "Pending"

    # Writing --------------------------------------------------------------------------------------------------------

    async def _correct(self, statuses: Collection[tuple[_Target, RawObject]]) -> None:
        turns = asyncio.Semaphore(WRITES_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for target, status in statuses:
                said = self._said.get(target, {})
                if target not in self._resting and not status_fields.same(
                    {key: said.get(key) for key in status}, status
                ):
                    tasks.create_task(self._write(target, status_fields.with_times_of(status, said), turns))

    async def _write(self, target: _Target, status: RawObject, turns: asyncio.Semaphore) -> None:
        async with turns:
            if not self._inspect.is_ready():
                # A round may be long; two replicas that correct each other would never end.
                self._look_again(target)
                return
            try:
                await self._cluster.write_status(target.resource, target.namespace, target.name, status)
            except NotFoundError:
                self._said.pop(target, None)
                self._failures.pop(target, None)
            except KubeError as error:
                log.warning("status not written", object=target.name, error=str(error))
                self._put_off(target)
            else:
                self._said[target] = status
                self._failures.pop(target, None)

    def _put_off(self, target: _Target) -> None:
        """Write a failed status again: in the next round at first, since many failures are short."""
        self._failures[target] += 1
        extra = self._failures[target] - FREE_TRIES
        if extra <= 0:
            self._look_again(target)
            return
        self._resting.add(target)
        asyncio.get_running_loop().call_later(self._retry.after(extra), self._end_rest, target)

    def _end_rest(self, target: _Target) -> None:
        self._resting.discard(target)
        self._look_again(target)

    def _look_again(self, target: _Target) -> None:
        # Compare it in the next round, whether or not anything has changed by then.
        if target.resource in POD_GROUPS:
            self._touched[_key(target)] = None
        else:
            self._version = -1


def _target(key: GroupKey) -> _Target:
    resource = Resource.NATIVE_POD_GROUPS if key.api else Resource.POD_GROUPS
    return _Target(resource, key.namespace, key.name)


def _key(target: _Target) -> GroupKey:
    api = NATIVE_API if target.resource is Resource.NATIVE_POD_GROUPS else ""
    return GroupKey(target.namespace, target.name, api)


def _of_owner(spec: GroupSpec) -> Refusal | None:
    """Return why a PodGroup has no waiting pods: its suspended owner creates none."""
    return Refusal(reason=Reason.OWNER_SUSPENDED, sentence=spec.suspended) if spec.suspended else None
