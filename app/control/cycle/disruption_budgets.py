"""Finds victims that a PodDisruptionBudget protects now, before any eviction, so that a plan can choose other victims.

1. one list of all PodDisruptionBudgets: most clusters have no exhausted budget, and then nothing else is requested
2. in the namespaces with exhausted budgets, a dry run of the eviction of each victim
3. in the namespaces where a dry run is forbidden, a dry run for the other groups: these would be chosen next

Results are kept for a while. A failed request protects no pod: the Eviction API decides in the end.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from itertools import islice

import structlog

from app.cluster.state.cache import ClusterCache
from app.model.decision import Action, Eviction
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.seam import Cluster, KubeError, NotFoundError, PodRef

log = structlog.get_logger()

GUARDED_S = 60.0
"""How long a group counts as protected: its budget may allow an eviction again at any time."""

DRY_RUNS = 256
"""The most dry runs of one search. Budgets are only a preference: they do not justify one API request for every pod of
a cluster.
"""

ASKERS = 8
"""The most dry runs in flight at once."""


class Budgets:
    """The groups that a budget protects, as far as lately requested. Only `SearchLoop` calls in here."""

    def __init__(self, cache: ClusterCache, cluster: Cluster, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic. Only `guarded` and `_ask_on` change `_guarded_until`."""
        self._cache = cache
        self._cluster = cluster
        self._clock = clock
        self._guarded_until: dict[GroupKey, float] = {}

    def guarded(self) -> frozenset[GroupKey]:
        """Return the groups for which a budget lately forbade an eviction."""
        now = self._clock()
        self._guarded_until = {key: until for key, until in self._guarded_until.items() if until > now}
        return frozenset(self._guarded_until)

    async def inquire(self, evictions: Iterable[Eviction]) -> bool:
        """Find out which of a plan's victims a budget protects; return whether any newly protected group was found."""
        before = self.guarded()
        victims = [pod for pod in self._sparable(evictions) if pod.group not in before]
        if victims:
            try:
                await self._ask_about(victims)
            except* KubeError as errors:
                log.warning("disruption budgets cannot be read", error=str(errors.exceptions[0]))
        return not before.issuperset(self._guarded_until)

    def _sparable(self, evictions: Iterable[Eviction]) -> Iterator[Pod]:
        """Yield the running victims, without stale gangs, which have no beneficiary: no other pod can replace them."""
        for eviction in evictions:
            pod = self._cache.pods.get(eviction.pod)
            if pod is not None and pod.node is not None and eviction.action is not Action.EVICT_STALE:
                yield pod

    async def _ask_about(self, victims: Collection[Pod]) -> None:
        tight = await self._cluster.tight_budgets() & {pod.namespace for pod in victims}
        asked = [pod for pod in victims if pod.namespace in tight][:DRY_RUNS]
        await self._ask(asked)
        forbidding = {pod.namespace for pod in asked if pod.group in self._guarded_until}
        if forbidding:
            others = self._others(forbidding, {pod.group for pod in asked})
            await self._ask(islice(others, DRY_RUNS - len(asked)))

    def _others(self, namespaces: Container[str], asked: Container[GroupKey]) -> Iterator[Pod]:
        """Yield one pod of each other possible victim group there, the youngest group first, as victims are chosen."""
        groups = [group for key, group in self._cache.groups.running().items() if key.namespace in namespaces]
        for group in sorted(groups, key=lambda group: group.created_at, reverse=True):
            bound = (placed.pod for placed in group.placed if placed.pod.node is not None)
            if group.preemptible and group.key not in asked and (pod := next(bound, None)) is not None:
                yield pod

    async def _ask(self, pods: Iterable[Pod]) -> None:
        """Send several dry runs at a time; the first request that fails ends all."""
        left = iter(pods)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ASKERS):
                tasks.create_task(self._ask_on(left))

    async def _ask_on(self, left: Iterator[Pod]) -> None:
        for pod in left:
            # One protected pod is enough for its whole group.
            if pod.group not in self._guarded_until and not await self._may_leave(pod):
                self._guarded_until[pod.group] = self._clock() + GUARDED_S

    async def _may_leave(self, pod: Pod) -> bool:
        try:
            return await self._cluster.may_evict(PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        except NotFoundError:
            return True
