"""Compares what pods use of shared GPUs with what they asked for: tells, and where it is set evicts, who uses more.

Nothing keeps a container from using all of a device that it sees. Who was not measured lately is not said to use more.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from app.cluster.gpus.shared_gpus import Part
from app.control.gpus.occupancy import Books, measured
from app.control.journal.references import pod_reference
from app.control.leadership.readiness import Precondition
from app.model.device import DeviceUuid, GpuNode
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.seam import Cluster, KubeError, RawObject, Resource
from app.model.snapshot import PART
from app.settings import Settings
from app.telemetry import Metrics

log = structlog.get_logger()

LOOK_S = 30.0
"""How often everybody is looked at although no agent has told anything new."""

PAUSE_S = 1.0
"""Between two looks at the least: the agents of a thousand nodes tell of changes all the time."""

PAUSE_EVERY = 200
"""After so many nodes the event loop gets a turn."""

LASTS_S = 30.0
"""How long more must be used before it is told: what a pod that has just left used is measured for a moment longer."""

CALM_S = 600.0
"""How long a pod must keep to its part until more is told anew: one that swings about its part is told of once."""

TOLD_AT_ONCE = 20
"""A thousand pods that start to use more together must not become a storm of events."""

OVERUSE = "GpuMemoryOveruse"
"""Reason of the event."""

CAUSE = "overuse"
"""How these evictions are counted beside those of the actions."""


class Dismisses(Protocol):
    """Who has pods leave."""

    def dismiss(self, uid: PodUid, *, cause: str, message: str) -> None:
        """Have a pod leave that no plan has chosen."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What a pod uses of a device beyond what it may."""

    pod: PodUid
    device: DeviceUuid
    used_mib: int
    asked_mib: int
    """0 where it was given nothing of that device."""
    over_mib: int
    """Beyond what is put up with."""

    @property
    def amounts(self) -> str:
        """Say how much it is, after the verb."""
        return f"{self.used_mib} MiB of {self.device}, asked for {self.asked_mib} MiB"


@dataclass(slots=True)
class _Episode:
    """A pod that has used more. Changed by `Overuse` alone."""

    seen_at: float
    since: float | None = None
    """Since when it does without a break, None while it does not."""
    is_told: bool = False


def excesses(report: GpuNode, parts: Mapping[PodUid, Part], *, tolerance_mib: int) -> Iterator[Excess]:
    """Return who uses more of which device of a node; `parts` are those of its pods."""
    for device in report.devices:
        sharers = [uid for uid, part in parts.items() if device.uuid in part.uuids]
        for uid, used_mib in measured(device, sharers).items():
            part = parts.get(uid)
            # Before it is bound, a pod has no devices yet.
            if part is None or not part.uuids:
                continue
            has_part = device.uuid in part.uuids
            # What is set aside for CUDA's own context is the pod's as well.
            over_mib = used_mib - (part.parts // PART if has_part else 0) - tolerance_mib
            if over_mib > 0:
                asked_mib = part.memory_mib if has_part else 0
                yield Excess(pod=uid, device=device.uuid, used_mib=used_mib, asked_mib=asked_mib, over_mib=over_mib)


@dataclass(frozen=True, slots=True)
class _Judged:
    """Who uses more on one node, and what that was judged from."""

    report: GpuNode
    parts: tuple[Part, ...]
    excesses: tuple[Excess, ...]


class Overuse:
    """Who uses more, and for how long. Only the event loop calls in here."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument a collaborator; only the composition root calls it
        self,
        books: Books,
        cluster: Cluster,
        evictor: Dismisses,
        metrics: Metrics,
        settings: Settings,
        readiness: Precondition,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic; without `readiness` nobody is judged: another replica does it, or nobody knows.

        `_episodes` is changed by `_judge` and `_tell`, `_judged` by `_worst`.
        """
        self._books = books
        self._cluster = cluster
        self._evictor = evictor
        self._metrics = metrics
        self._tolerance_mib = settings.overuse_tolerance_mib
        self._grace_s = settings.evict_overuse_after_s
        self._clock = clock
        self._readiness = readiness
        self._episodes: dict[PodUid, _Episode] = {}
        self._judged: dict[NodeName, _Judged] = {}
        self._poked = asyncio.Event()

    def learn(self, resource: Resource, raw: RawObject) -> None:
        """Note that an agent has told something."""
        del raw
        if resource is Resource.GPU_NODES:
            self._poked.set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._poked.wait()
            await asyncio.sleep(PAUSE_S)
            self._poked.clear()
            try:
                await self.look()
            except Exception:
                # A mistake here must not end the service: nobody is told or evicted then.
                log.exception("use of GPU memory not judged")

    async def look(self) -> None:
        """Judge everybody as measured now; tell and evict who is due."""
        worst = {} if self._readiness.failure() else await self._worst()
        self._judge(worst)
        self._metrics.overusing_pods.set(len(worst))
        for uid in [uid for uid in worst if self._is_due(uid)][:TOLD_AT_ONCE]:
            await self._tell(worst[uid])
        for uid in [uid for uid in worst if self._is_to_leave(uid)]:
            self._evict(worst[uid])

    async def _worst(self) -> Mapping[PodUid, Excess]:
        """Return of each pod that uses more the device of which it uses most beyond its part."""
        gpus, worst, judged = self._books.gpus, dict[PodUid, Excess](), dict[NodeName, _Judged]()
        for number, name in enumerate(list(gpus.agents.all()), start=1):
            if number % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
            now = self._on(name) if gpus.agents.is_trusted(name) else None
            if now is None:
                continue
            judged[name] = now
            for excess in now.excesses:
                worst[excess.pod] = max(worst.get(excess.pod, excess), excess, key=lambda one: one.over_mib)
        self._judged = judged
        return worst

    def _on(self, name: NodeName) -> _Judged | None:
        """Judge a node, unless it is as it was at the last look: most of them are."""
        gpus, before = self._books.gpus, self._judged.get(name)
        report, parts = gpus.agents.all().get(name), tuple(gpus.parts.on(name))
        if report is None or not parts:
            return None
        if before is not None and before.report is report and before.parts == parts:
            return before
        by_pod = {part.pod: part for part in parts}
        return _Judged(report, parts, tuple(excesses(report, by_pod, tolerance_mib=self._tolerance_mib)))

    def _judge(self, worst: Mapping[PodUid, Excess]) -> None:
        now = self._clock()
        for uid in worst:
            episode = self._episodes.setdefault(uid, _Episode(now))
            episode.seen_at = now
            episode.since = now if episode.since is None else episode.since
        for uid in self._episodes.keys() - worst.keys():
            self._episodes[uid].since = None
            if self._episodes[uid].seen_at + CALM_S < now:
                del self._episodes[uid]

    def _lasts(self, uid: PodUid, seconds: float) -> bool:
        since = self._episodes[uid].since
        return since is not None and self._clock() - since >= seconds

    def _is_due(self, uid: PodUid) -> bool:
        return not self._episodes[uid].is_told and self._lasts(uid, LASTS_S)

    def _is_to_leave(self, uid: PodUid) -> bool:
        pod = self._books.pods.get(uid)
        if self._grace_s is None or pod is None or not pod.managed:
            return False
        # Asked last: while it was told, another replica may have taken over.
        return self._episodes[uid].is_told and self._lasts(uid, self._grace_s) and not self._readiness.failure()

    def _evict(self, excess: Excess) -> None:
        pod, grace_s = self._books.pods.get(excess.pod), self._grace_s
        if pod is None:
            return
        message = f"Pod {_name(pod)} was evicted: for more than {grace_s:g} s it used {excess.amounts}"
        self._evictor.dismiss(excess.pod, cause=CAUSE, message=message)
        # Who cannot be evicted is given another grace, not asked to leave at every look.
        self._episodes[excess.pod].since = None

    async def _tell(self, excess: Excess) -> None:
        pod = self._books.pods.get(excess.pod)
        if pod is None or pod.deleting or self._readiness.failure():
            return
        self._episodes[excess.pod].is_told = True
        self._metrics.overuses.inc()
        warned = f"; it is evicted if it does so for {self._grace_s:g} s" if self._grace_s and pod.managed else ""
        log.warning("pod uses more GPU memory than it asked for", pod=_name(pod), reason=f"uses {excess.amounts}")
        note = f"Pod {_name(pod)} uses {excess.amounts}{warned}"
        try:
            await self._cluster.record_event(pod_reference(pod), warning=True, reason=OVERUSE, note=note)
        except KubeError as error:
            log.warning("event not recorded", pod=_name(pod), error=str(error))


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
