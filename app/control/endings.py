"""Finds out how gang members ended that have left the watch: one that succeeded still counts as satisfied.

A pod that finishes leaves the watch as deleted, with the last object before it finished: only a read tells how it did.
Those that had finished before we started are listed once.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.cluster import decode
from app.cluster.cache import ClusterCache
from app.model.names import GroupKey, PodUid
from app.model.pod import Pod
from app.model.seam import Cluster, KubeError, PodRef, RawObject, UnavailableError

log = structlog.get_logger()

READERS = 4
"""Reads in flight at once: a gang of 500 that ends together must not crowd out anything else."""

PAUSE_S = 1.0
"""Between one try that failed and the next."""


class Endings:
    """The pods whose end is not known yet, and who looks it up."""

    def __init__(
        self,
        cache: ClusterCache,
        cluster: Cluster,
        *,
        profiles: frozenset[str],
        on_change: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_change` is called after each pod that turned out to have succeeded."""
        self._cache = cache
        self._cluster = cluster
        self._profiles = profiles
        self._on_change = on_change
        self._sleep = sleep
        self._unclear: asyncio.Queue[Pod] = asyncio.Queue()

    def look_up(self, pod: Pod) -> None:
        """Have it found out how a pod ended that is gone, if that matters to a gang; nobody waits for the answer."""
        may_have_succeeded = pod.node is not None and not pod.deleting
        if pod.managed and pod.names_group and may_have_succeeded:
            self._unclear.put_nowait(pod)

    async def recover(self) -> None:
        """Count the gang members that had succeeded before we started, as far as their pods are still there."""
        while True:
            try:
                members = await self._cluster.finished_pods(self._member)
            except KubeError as error:
                log.warning("finished pods not listed", error=str(error))
                await self._sleep(PAUSE_S)
                continue
            for member in filter(None, members):
                self._cache.count_success(*member)
            self._on_change()
            return

    def _member(self, raw: RawObject) -> tuple[GroupKey, PodUid, str] | None:
        try:
            pod = decode.pod(raw, profiles=self._profiles)
        except decode.DecodeError:
            return None
        return (pod.group, pod.uid, pod.subgroup) if pod.managed and pod.names_group else None

    async def run(self) -> None:
        """Look pods up for ever, several at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(READERS):
                tasks.create_task(self._read_on())

    async def _read_on(self) -> None:
        while True:
            pod = await self._unclear.get()
            try:
                raw = await self._cluster.read_pod(PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid))
            except KubeError as error:
                log.warning("end of a gang member is unknown", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                await self._sleep(error.retry_after_s if isinstance(error, UnavailableError) else PAUSE_S)
                # Given up, a gang that is finishing well would count as broken, and what is left of it be evicted.
                if self._cache.groups.spec(pod.group) is not None:
                    self._unclear.put_nowait(pod)
                continue
            if raw is not None and decode.has_succeeded(raw):
                self._cache.count_success(pod.group, pod.uid, pod.subgroup)
                self._on_change()
