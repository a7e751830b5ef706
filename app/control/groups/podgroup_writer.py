"""Writes the PodGroup objects that repeat what was decided from owners: for people, quotas of their making and tools.

Nothing waits for them. One is written where it says something: several pods, a minimum, sub-groups, a topology, or its
owner asked for it; a pod alone costs no write. What others may change in it (its queue) is never written again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import structlog

from app.cluster.encode.groups import amended, pod_group, says_the_same
from app.cluster.state.cache import ClusterCache
from app.control.leadership.readiness import Precondition
from app.model.names import GroupKey
from app.model.owner import Grouping
from app.model.retry import RetryPolicy, no_sooner_than_asked
from app.model.seam import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    Objects,
    RawObject,
    RejectedError,
    Resource,
    UnavailableError,
)

log = structlog.get_logger()

WRITERS = 4
PATH = Resource.POD_GROUPS.value

REWRITTEN_AFTER_S = 5.0
"""After an object went: by then the watches show whether its owner and its pods go as well."""

REFUSED_PAUSE_S = 60.0
"""Between a write that the API server will not have and the next try: a right, a policy or a quota may change.

Also after an object was put right that somebody had changed: another controller may do so for ever.
"""

RETRY = RetryPolicy(first_s=1.0, longest_s=REFUSED_PAUSE_S)
"""After other failures."""


class PodGroupWriter:
    """Which PodGroup objects there should be. Changed by `PodGrouper` and by what the watch shows."""

    def __init__(
        self,
        cache: ClusterCache,
        cluster: Objects,
        readiness: Precondition,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing is written without `readiness`: another replica may decide."""
        self._cache = cache
        self._cluster = cluster
        self._readiness = readiness
        self._sleep = sleep
        self._wanted: dict[GroupKey, Grouping] = {}
        self._said: dict[GroupKey, RawObject] = {}
        """The `spec` of every object there is."""
        self._tried: dict[GroupKey, tuple[RawObject, RawObject | None]] = {}
        """What was written last, and over which `spec`: a field that the API server drops is not told it for ever."""
        self._due: asyncio.Queue[GroupKey] = asyncio.Queue()
        self._queued: set[GroupKey] = set()
        self._resting: set[GroupKey] = set()
        """Those that are looked at again after a pause and not before; no writer waits for them."""
        self._failures: Counter[GroupKey] = Counter()
        """In a row."""

    def want(self, key: GroupKey, grouping: Grouping) -> None:
        """Have the object of a group say this, once it says something; the pod that brings it is applied next."""
        if self._wanted.get(key) is not grouping:
            self._wanted[key] = grouping
            self._look_at(key)
        elif self._cache.groups.specs.object(key) is None:
            # The second pod may be what makes it worth an object.
            self._look_at(key)

    def forget(self, key: GroupKey) -> None:
        """Forget a group without pods, or without owner: its object goes when that does."""
        self._wanted.pop(key, None)
        self._tried.pop(key, None)
        self._failures.pop(key, None)

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Note what a PodGroup says, before the cache shows it."""
        if resource is not Resource.POD_GROUPS:
            return
        metadata = raw["metadata"]
        key = GroupKey(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
        spec = raw.get("spec")
        self._said[key] = spec if isinstance(spec, dict) else {}
        if key in self._wanted:
            self._look_at(key)

    def note_gone(self, key: GroupKey) -> None:
        """Have an object written again that somebody has deleted under its pods, unless all of it is on its way out."""
        self._said.pop(key, None)
        self._tried.pop(key, None)
        if key in self._wanted:
            asyncio.get_running_loop().call_later(REWRITTEN_AFTER_S, self._look_at, key)

    async def run(self) -> None:
        """Write for ever, several at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._write_on())

    def _look_at(self, key: GroupKey) -> None:
        if key not in self._queued and key not in self._resting:
            self._queued.add(key)
            self._due.put_nowait(key)

    def _rest(self, key: GroupKey, pause_s: float = REFUSED_PAUSE_S) -> None:
        self._resting.add(key)
        asyncio.get_running_loop().call_later(pause_s, self._wake, key)

    def _back_off(self, key: GroupKey, error: KubeError) -> None:
        pause_s = RETRY.after(self._failures[key] + 1)
        if key in self._wanted:
            self._failures[key] += 1
        self._rest(key, no_sooner_than_asked(pause_s, error))

    def _wake(self, key: GroupKey) -> None:
        self._resting.discard(key)
        self._look_at(key)

    async def _write_on(self) -> None:
        while True:
            key = await self._due.get()
            while self._readiness.failure():
                await self._sleep(RETRY.first_s)
            self._queued.discard(key)
            await self._try(key)

    async def _try(self, key: GroupKey) -> None:
        """Write the object of a group if that is needed."""
        grouping = self._wanted.get(key)
        if grouping is None or key in self._resting or not self._is_worth_it(key, grouping):
            return
        raw = pod_group(key, grouping, class_name=self._class_name(grouping))
        try:
            await self._write(key, raw)
        except NotFoundError:
            # Its namespace is going, or the object went a moment ago: the watch will show which.
            return
        except (ForbiddenError, RejectedError) as error:
            log.warning("PodGroup not written", podgroup=repr(key), error=str(error))
            self._rest(key)
        except KubeError as error:
            log.warning("PodGroup not written", podgroup=repr(key), error=str(error))
            self._back_off(key, error)
            if isinstance(error, UnavailableError):
                await self._sleep(error.retry_after_s)
        else:
            self._failures.pop(key, None)

    async def _write(self, key: GroupKey, raw: RawObject) -> None:
        said, tried = self._said.get(key), self._tried.get(key)
        if said is not None and says_the_same(said, raw):
            if tried is not None:
                self._tried[key] = tried[0], said
            return
        if tried == (raw, said):
            return
        if said is not None or not await self._create(key, raw):
            await self._cluster.amend_object(PATH, key.namespace, key.name, amended(raw))
        self._tried[key] = raw, said
        if tried is not None and tried[0] == raw:
            self._rest(key)

    async def _create(self, key: GroupKey, raw: RawObject) -> bool:
        """Create an object; return false when there is one that the watch has not shown yet."""
        try:
            await self._cluster.create_object(PATH, key.namespace, raw)
        except ConflictError:
            return False
        return True

    def _is_worth_it(self, key: GroupKey, grouping: Grouping) -> bool:
        spec: Mapping[str, object] = grouping.spec
        minimum, pods = spec.get("minMember"), self._cache.groups.pods(key)
        if all(pod.deleting for pod in pods):
            return False
        says = bool(spec.get("subGroups") or spec.get("topologyConstraint") or grouping.asked_for)
        return says or (isinstance(minimum, int) and minimum > 1) or len(pods) > 1

    def _class_name(self, grouping: Grouping) -> str:
        """Return the class that counts: the first that exists (KAI)."""
        known = (name for name in grouping.priority_classes if self._cache.groups.specs.knows_class(name))
        return next(known, "")
