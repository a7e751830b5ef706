"""Tracks how fresh the picture of the cluster is: which kinds are listed, and when each watch last showed something."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.model.question import Check
from app.model.seam import Resource

STALE_AFTER_S = 90.0
"""A watch is not trusted after this time without an event or a bookmark (bookmarks arrive about once a minute)."""

UNSERVED = frozenset(
    {
        Resource.DEVICE_CLASSES,
        Resource.RESOURCE_SLICES,
        Resource.DEVICE_TAINT_RULES,
        Resource.RESOURCE_CLAIMS,
        Resource.NATIVE_POD_GROUPS,
    }
)
"""Kinds of Kubernetes that not every cluster serves. Where they are not served, no pod can need them."""

OPTIONAL = frozenset({Resource.TOPOLOGIES, Resource.GPU_NODES}) | UNSERVED
"""Kinds that only some pods need, such as pods with a topology, GPUs, or claims. Other pods do not wait for them."""

OPTIONAL_WITHIN_S = 5.0
"""How long after the first lists of the required kinds all pods wait for the first lists of the optional kinds. The API
server may accept the request and never answer, which counts as a failure only after half a minute.
"""

LOSSES_UNTIL_OPTIONAL = 3
"""Failures in a row before the first list of an optional kind, after which only the pods that need it wait. Pods with
GPUs then continue as well, without GpuNodes; they do not continue sooner, since an unhealthy GPU would look free.
"""

OWNERS_UNKNOWN = Check("owners", "not listed yet")


@dataclass(slots=True)
class _Watch:
    """The state of one watch. Only `Freshness` changes it."""

    listed: bool = False
    lost: str = ""
    is_absent: bool = False
    """Whether the kind is not installed."""
    losses: int = 0
    """How often the watch was lost since it last showed anything."""
    is_late: bool = False
    """Whether only the pods that need the kind still wait for its first list."""
    heard_at: float = 0.0


class Freshness:
    """Tells whether the cache can be trusted. The feed and the pod grouper report to it; other parts only read it."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """Start without listed kinds; `clock` is monotonic."""
        self._clock = clock
        self._watches = {resource: _Watch() for resource in Resource}
        self._owners = OWNERS_UNKNOWN
        self._has_required = asyncio.Event()
        """Set once every required kind has been listed."""
        self._synced = asyncio.Event()
        self._owners_known = asyncio.Event()

    # Queries ----------------------------------------------------------------------------------------------------------

    def failure(self) -> str:
        """Return why no question can be answered now, "" when all can: a watch is not listed yet, lost, or silent."""
        # This runs for every question. Only a kind that may fail gets the words of its check.
        now = self._clock()
        for resource, watch in self._watches.items():
            is_fresh = watch.listed and not watch.lost and now - watch.heard_at <= STALE_AFTER_S
            if not is_fresh and (failure := self._check(resource).failure):
                return failure
        return self._owners.failure

    def checks(self) -> list[Check]:
        """Return one check for each kind, and one for the owners of pods."""
        return [*map(self._check, self._watches), self._owners]

    def is_listed(self, resource: Resource) -> bool:
        """Return whether the watch of a kind has begun."""
        return self._watches[resource].listed

    def is_given_up(self, resource: Resource) -> bool:
        """Return whether the first list of an optional kind failed so often that no pod waits for it any more."""
        watch = self._watches[resource]
        return not watch.listed and watch.losses >= LOSSES_UNTIL_OPTIONAL

    async def synced(self) -> None:
        """Wait until every kind has been listed once; optional kinds that cannot be listed do not count."""
        await self._synced.wait()

    async def owners_known(self) -> None:
        """Wait until the owners of all pods are known."""
        await self._owners_known.wait()

    def _check(self, resource: Resource) -> Check:
        watch = self._watches[resource]
        if resource in UNSERVED and watch.is_absent:
            return Check(f"watch-{resource!r}", "")
        name, failure = f"watch-{resource!r}", self._failure(watch)
        return Check(name, degraded=failure) if self._is_dispensable(resource) else Check(name, failure)

    def _is_dispensable(self, resource: Resource) -> bool:
        """Whether a kind is optional, and was listed or cannot be listed for now."""
        watch = self._watches[resource]
        return resource in OPTIONAL and (watch.listed or watch.is_late or watch.losses >= LOSSES_UNTIL_OPTIONAL)

    def _failure(self, watch: _Watch) -> str:
        if not watch.listed:
            return watch.lost or "not listed yet"
        if watch.lost:
            return watch.lost
        silent_s = self._clock() - watch.heard_at
        return f"silent for {silent_s:.0f} s" if silent_s > STALE_AFTER_S else ""

    # Updates ----------------------------------------------------------------------------------------------------------

    def note_listed(self, resource: Resource) -> None:
        """Note that a kind has been listed."""
        self._watches[resource].listed = True
        self._note_synced()

    def note_heard(self, resource: Resource) -> None:
        """Note that a watch has shown something."""
        watch = self._watches[resource]
        watch.lost, watch.losses, watch.heard_at, watch.is_absent = "", 0, self._clock(), False

    def note_lost(self, resource: Resource, cause: str, *, denied: bool, absent: bool = False) -> None:
        """Note that a watch was lost; a `denied` watch is not expected to recover soon, its kind may be `absent`."""
        watch = self._watches[resource]
        watch.is_absent = absent
        watch.lost = cause
        watch.losses += LOSSES_UNTIL_OPTIONAL if denied else 1
        self._note_synced()

    def note_owners(self, check: Check) -> None:
        """Note whether the owners of pods are known."""
        self._owners = check
        if check.passed:
            self._owners_known.set()

    async def tire_of_optional(self) -> bool:
        """Wait for the first lists of optional kinds; return whether pods without need of them stop waiting now."""
        await self._has_required.wait()
        await asyncio.sleep(OPTIONAL_WITHIN_S)
        late = [watch for resource, watch in self._watches.items() if resource in OPTIONAL and not watch.listed]
        for watch in late:
            watch.is_late = True
        if late:
            self._note_synced()
        return bool(late)

    def _note_synced(self) -> None:
        if all(self._watches[resource].listed for resource in set(Resource) - OPTIONAL):
            self._has_required.set()
        if all(watch.listed or self._is_dispensable(resource) for resource, watch in self._watches.items()):
            self._synced.set()
