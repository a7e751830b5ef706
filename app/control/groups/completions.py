"""Finds out how deleted gang members ended: a member that succeeded still counts as satisfied.

The watch shows a finished pod as deleted, with its last object before it finished: only a read tells how it ended. Pods
that had finished before the start are listed once. Until both are done, the gang does not count as stale.
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
"""Reads in flight at most: a gang of 500 that ends at once must not displace other requests."""

RETRY = RetryPolicy(first_s=1.0, factor=1.0)
"""Pause after a failed read."""


class CompletionLookup:
    """Looks up pods whose outcome is not known yet."""

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
        """Start without lookups; `keeps` names the pod fields that `grouper` needs.

        `changed` is set whenever more outcomes of members are known.
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
        """Queue the lookup of a deleted pod, if its outcome matters to a gang; the caller does not wait for it."""
        may_have_succeeded = pod.node is not None and not pod.deleting
        if pod.managed and pod.names_group and may_have_succeeded:
            # Without this doubt, a gang that finishes well would be evicted if its grace period were shorter than the
            # read.
            self._cache.groups.staleness.doubt(pod.group, pod.uid)
            self._unclear.put_nowait(pod)

    async def _recover(self) -> None:
        """Count the gang members that had succeeded before the start and whose pods still exist."""
        # A success can only be counted in a group that exists.
        await self._freshness.synced()
        # Until the owners are known, the gang of a pod may be unknown.
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
            # A bug of ours that one pod triggers: the pod has finished and holds nothing.
            log.exception("finished pod cannot be read", pod=decode.full_name(raw))
            return None
        return (pod.group, pod.uid, pod.subgroup) if pod.managed and pod.names_group else None

    async def run(self) -> None:
        """Look up pods until cancelled, several at a time."""
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
                log.warning("outcome of a gang member is unknown", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                await self._sleep(RETRY.asked_or_after(1, error))
                # Without a further try, a gang that finishes well would count as broken, and its remaining pods would
                # be evicted.
                if self._cache.groups.specs.get(pod.group) is not None:
                    self._unclear.put_nowait(pod)
                    continue
                raw = None
            self._take(pod, raw)

    def _take(self, pod: Pod, raw: RawObject | None) -> None:
        """Count a pod that has succeeded; a pod that does not exist any more counts as not succeeded."""
        self._cache.groups.staleness.trust(pod.group, pod.uid)
        if raw is not None and decode.has_succeeded(raw):
            self._cache.groups.progress.count_success(pod.group, pod.uid, pod.subgroup)
        self._changed.set()
