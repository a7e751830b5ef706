"""Finds out how gang members ended that have left the watch: one that succeeded still counts as satisfied.

A pod that finishes leaves the watch as deleted, with the last object before it finished: only a read tells how it did.
Those that had finished before we started are listed once. As long as either is not done, the gang is not called stale.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.control.groups.pod_grouper import PodGrouper
from app.control.leadership.freshness import Freshness
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.retry import RetryPolicy
from app.model.seam import Cluster, KubeError, PodRef, RawObject

log = structlog.get_logger()

READERS = 4
"""Reads in flight at once: a gang of 500 that ends together must not crowd out anything else."""

RETRY = RetryPolicy(first_s=1.0, factor=1.0)
"""Between one try that failed and the next."""


class CompletionLookup:
    """The pods whose end is not known yet, and who looks it up."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        grouper: PodGrouper,
        *,
        profiles: frozenset[str],
        keeps: decode.Keeps,
        freshness: Freshness,
        changed: asyncio.Event,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Look nothing up yet; `keeps` is what `grouper` wants to know of pods.

        `changed` is set whenever more is known of how members ended.
        """
        self._cache = cache
        self._cluster = cluster
        self._grouper = grouper
        self._profiles = profiles
        self._keeps = keeps
        self._freshness = freshness
        self._changed = changed
        self._sleep = sleep
        self._unclear: asyncio.Queue[Pod] = asyncio.Queue()

    def look_up(self, pod: Pod) -> None:
        """Have it found out how a pod ended that is gone, if that matters to a gang; nobody waits for the answer."""
        may_have_succeeded = pod.node is not None and not pod.deleting
        if pod.managed and pod.names_group and may_have_succeeded:
            # A gang that is finishing well would be evicted, if its grace were shorter than the read.
            self._cache.groups.staleness.doubt(pod.group, pod.uid)
            self._unclear.put_nowait(pod)

    async def _recover(self) -> None:
        """Count the gang members that had succeeded before we started, as far as their pods are still there."""
        # A success is counted in a group that is there.
        await self._freshness.synced()
        # Until the owners are known, it is not known either which of the pods are of one gang.
        await self._freshness.owners_known()
        await self._count_finished()
        self._cache.groups.staleness.trust_all()
        self._changed.set()

    async def _count_finished(self) -> None:
        while True:
            try:
                members = await self._cluster.finished_pods(self._member)
            except KubeError as error:
                log.warning("finished pods not listed", error=str(error))
                await self._sleep(RETRY.after(1))
                continue
            for member in filter(None, members):
                self._cache.groups.progress.count_success(*member)
            return

    def _member(self, raw: RawObject) -> tuple[GroupKey, PodUid, str] | None:
        try:
            decoded = decode.pod(raw, profiles=self._profiles, keeps=self._keeps)
            pod, _ = self._grouper.rehearse(decoded)
        except decode.DecodeError:
            return None
        except Exception:
            # A mistake of ours that one pod brings out: it has finished, and holds nothing.
            log.exception("finished pod cannot be read", pod=decode.full_name(raw))
            return None
        return (pod.group, pod.uid, pod.subgroup) if pod.managed and pod.names_group else None

    async def run(self) -> None:
        """Look pods up for ever, several at a time."""
        self._cache.groups.staleness.doubt_all()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recover(), name="recover")
            for _ in range(READERS):
                tasks.create_task(self._read_on())

    async def _read_on(self) -> None:
        while True:
            pod = await self._unclear.get()
            try:
                raw = await self._cluster.read_pod(PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid))
            except KubeError as error:
                log.warning("end of a gang member is unknown", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                await self._sleep(RETRY.asked_or_after(1, error))
                # Given up, a gang that is finishing well would count as broken, and what is left of it be evicted.
                if self._cache.groups.specs.get(pod.group) is not None:
                    self._unclear.put_nowait(pod)
                    continue
                raw = None
            self._take(pod, raw)

    def _take(self, pod: Pod, raw: RawObject | None) -> None:
        """Count a pod that turned out to have succeeded; one that is gone has not, as far as anybody knows."""
        self._cache.groups.staleness.trust(pod.group, pod.uid)
        if raw is not None and decode.has_succeeded(raw):
            self._cache.groups.progress.count_success(pod.group, pod.uid, pod.subgroup)
        self._changed.set()
