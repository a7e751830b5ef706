"""Writes the PodGroup objects that repeat the groups of owners: for users, their quotas on objects, and tools.

Nothing waits for these objects. An object is written only if it adds information: several pods, a minimum, sub-groups,
a topology, or a request of the owner; a single pod costs no write. Fields that users may change (the queue) are not
overwritten.
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
"""Pause after an object was deleted: by then the watches show whether its owner and its pods are deleted as well."""

REFUSED_PAUSE_S = 60.0
"""Pause after the API server has refused a write: a right, a policy or a quota may change.

It also applies after a foreign change of an object was reverted: another controller may repeat its change for ever.
"""

RETRY = RetryPolicy(first_s=1.0, longest_s=REFUSED_PAUSE_S)
"""Pause after other failures."""


class PodGroupWriter:
    """The PodGroup objects that should exist. `PodGrouper` and watch events change them."""

    def __init__(
        self,
        cache: ClusterCache,
        cluster: Objects,
        readiness: Precondition,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing is written while `readiness` fails: another replica may decide."""
        self._cache = cache
        self._cluster = cluster
        self._readiness = readiness
        self._sleep = sleep
        self._wanted: dict[GroupKey, Grouping] = {}
        self._said: dict[GroupKey, RawObject] = {}
        """The `spec` of every existing object."""
        self._tried: dict[GroupKey, tuple[RawObject, RawObject | None]] = {}
        """The last write and the `spec` that it replaced: a field that the API server drops is not written again for
        ever.
        """
        self._due: asyncio.Queue[GroupKey] = asyncio.Queue()
        self._queued: set[GroupKey] = set()
        self._resting: set[GroupKey] = set()
        """Objects that are reviewed again only after a pause; no writer waits for them."""
        self._failures: Counter[GroupKey] = Counter()
        """Failures in a row."""

    def want(self, key: GroupKey, grouping: Grouping) -> None:
        """Request an object with this grouping, once it adds information; the pod that triggers it is applied next."""
        if self._wanted.get(key) is not grouping:
            self._wanted[key] = grouping
            self._look_at(key)
        elif self._cache.groups.specs.object(key) is None:
            # The second pod may make the object useful.
            self._look_at(key)

    def forget(self, key: GroupKey) -> None:
        """Forget a group without pods or without owner: its object is deleted with its owner."""
        self._wanted.pop(key, None)
        self._tried.pop(key, None)
        self._failures.pop(key, None)

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Note the spec of a PodGroup before the cache shows it."""
        if resource is not Resource.POD_GROUPS:
            return
        metadata = raw["metadata"]
        key = GroupKey(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
        spec = raw.get("spec")
        self._said[key] = spec if isinstance(spec, dict) else {}
        if key in self._wanted:
            self._look_at(key)

    def note_gone(self, key: GroupKey) -> None:
        """Write an object again that was deleted while its pods remain, unless its owner and pods are deleted too."""
        self._said.pop(key, None)
        self._tried.pop(key, None)
        if key in self._wanted:
            asyncio.get_running_loop().call_later(REWRITTEN_AFTER_S, self._look_at, key)

    async def run(self) -> None:
        """Write until cancelled, several objects at a time."""
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
        """Write the object of a group if needed."""
        grouping = self._wanted.get(key)
        if grouping is None or key in self._resting or not self._is_worth_it(key, grouping):
            return
        raw = pod_group(key, grouping, class_name=self._class_name(grouping))
        try:
            await self._write(key, raw)
        except NotFoundError:
            # The namespace is being deleted, or the object was just deleted: the watch will show which.
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
        """Create an object; return false when it exists and the watch has not shown it yet."""
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
        """Return the class that counts: the first that exists (as in KAI)."""
        known = (name for name in grouping.priority_classes if self._cache.groups.specs.knows_class(name))
        return next(known, "")
