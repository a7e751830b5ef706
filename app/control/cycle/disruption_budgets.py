"""Finds out whom no budget lets go now, before anybody is evicted, so that a plan can spare them where others will do.

1. one list of all PodDisruptionBudgets: most clusters have none that is exhausted, and nothing more is asked
2. in the namespaces of those that are, a dry run of the eviction of each victim
3. where one is forbidden, a dry run for the other groups there: they would be the next to be chosen
What is found out holds for a while. What cannot be found out guards nobody: the Eviction API decides in the end.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

import structlog

from app.cluster.state.cache import ClusterCache
from app.model.decision import Action, Eviction
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.seam import Cluster, KubeError, NotFoundError, PodRef

log = structlog.get_logger()

GUARDED_S = 60.0
"""For how long a group counts as guarded: its budget may let somebody go again at any time."""

DRY_RUNS = 256
"""The most that a search asks: it is a preference, and not worth an API server's breath for every pod of a cluster."""

ASKERS = 8
"""Dry runs in flight at once."""


class Budgets:
    """Which groups a budget guards, as far as anybody has asked lately. Only `SearchLoop` calls in here."""

    def __init__(self, cache: ClusterCache, cluster: Cluster, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic. `_guarded_until` is changed by `guarded` and `_ask_on`."""
        self._cache = cache
        self._cluster = cluster
        self._clock = clock
        self._guarded_until: dict[GroupKey, float] = {}

    def guarded(self) -> frozenset[GroupKey]:
        """Return the groups of which a budget let nobody leave a while ago."""
        now = self._clock()
        self._guarded_until = {key: until for key, until in self._guarded_until.items() if until > now}
        return frozenset(self._guarded_until)

    async def inquire(self, evictions: Iterable[Eviction]) -> bool:
        """Ask about the victims of a plan of whom nobody knows yet; return whether any of them is guarded."""
        before = self.guarded()
        victims = [pod for pod in self._sparable(evictions) if pod.group not in before]
        if victims:
            try:
                await self._ask_about(victims)
            except* KubeError as errors:
                log.warning("disruption budgets not known", error=str(errors.exceptions[0]))
        return not before.issuperset(self._guarded_until)

    def _sparable(self, evictions: Iterable[Eviction]) -> Iterator[Pod]:
        """Yield the victims that run; a stale gang leaves for nobody, so nobody can leave in its place."""
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

    def _others(self, namespaces: Collection[str], asked: Collection[GroupKey]) -> Iterator[Pod]:
        """Yield one pod of each other group there that could be a victim, the youngest first, as victims are chosen."""
        groups = [group for key, group in self._cache.groups.running().items() if key.namespace in namespaces]
        for group in sorted(groups, key=lambda group: group.created_at, reverse=True):
            bound = (placed.pod for placed in group.placed if placed.pod.node is not None)
            if group.preemptible and group.key not in asked and (pod := next(bound, None)) is not None:
                yield pod

    async def _ask(self, pods: Iterable[Pod]) -> None:
        """Ask about several at a time; the first question that fails ends all."""
        left = iter(pods)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ASKERS):
                tasks.create_task(self._ask_on(left))

    async def _ask_on(self, left: Iterator[Pod]) -> None:
        for pod in left:
            # One that has to stay is enough for its whole group.
            if pod.group not in self._guarded_until and not await self._may_leave(pod):
                self._guarded_until[pod.group] = self._clock() + GUARDED_S

    async def _may_leave(self, pod: Pod) -> bool:
        try:
            return await self._cluster.may_evict(PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        except NotFoundError:
            return True
