"""Compares the GPU memory that pods use with their request; reports pods that use more, and evicts them if so set.

Nothing keeps a container from using all memory of a device that it sees. A pod without a recent measurement is not
reported.
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
from app.telemetry import EvictionCause, Metrics

log = structlog.get_logger()

LOOK_S = 30.0
"""How often all pods are judged although no agent has reported anything new."""

PAUSE_S = 1.0
"""Shortest pause between two looks: the agents of a thousand nodes report changes all the time."""

PAUSE_EVERY = 200
"""After so many nodes the event loop gets a turn."""

LASTS_S = 30.0
"""How long overuse must last before it is reported: the memory of a deleted pod is measured for a moment longer."""

CALM_S = 600.0
"""How long a pod must stay within its part before overuse is reported again: a pod that oscillates is reported once."""

TOLD_AT_ONCE = 20
"""Reports at one look at most: a thousand pods that start to overuse together must not cause a storm of events."""

OVERUSE = "GpuMemoryOveruse"
"""Reason of the event."""

CAUSE = EvictionCause.OVERUSE
"""The cause under which these evictions are counted, beside the causes of the actions."""


class Dismisses(Protocol):
    """Evicts pods."""

    def dismiss(self, uid: PodUid, *, cause: str, message: str) -> None:
        """Evict a pod that no plan has chosen."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """The use of a device by a pod beyond its part."""

    pod: PodUid
    device: DeviceUuid
    used_mib: int
    asked_mib: int
    """0 where the pod holds no part of that device."""
    over_mib: int
    """Beyond the tolerance."""

    @property
    def amounts(self) -> str:
        """Return the amounts as text that follows the verb."""
        return f"{self.used_mib} MiB of {self.device}, asked for {self.asked_mib} MiB"


@dataclass(slots=True)
class _Episode:
    """A pod that has overused. Only `Overuse` changes it."""

    seen_at: float
    since: float | None = None
    """Start of the current overuse without a break; None while the pod stays within its part."""
    is_told: bool = False


def excesses(report: GpuNode, parts: Mapping[PodUid, Part], *, tolerance_mib: int) -> Iterator[Excess]:
    """Return the pods that overuse devices of a node, with the device; `parts` are the parts of these pods."""
    for device in report.devices:
        sharers = [uid for uid, part in parts.items() if device.uuid in part.uuids]
        for uid, used_mib in measured(device, sharers).items():
            part = parts.get(uid)
            # A pod that is not bound has no devices yet.
            if part is None or not part.uuids:
                continue
            has_part = device.uuid in part.uuids
            # The memory that is set aside for the CUDA context belongs to the pod as well.
            over_mib = used_mib - (part.parts // PART if has_part else 0) - tolerance_mib
            if over_mib > 0:
                asked_mib = part.memory_mib if has_part else 0
                yield Excess(pod=uid, device=device.uuid, used_mib=used_mib, asked_mib=asked_mib, over_mib=over_mib)


@dataclass(frozen=True, slots=True)
class _Judged:
    """The overuse on one node, and the inputs of this judgement."""

    report: GpuNode
    parts: tuple[Part, ...]
    excesses: tuple[Excess, ...]


class Overuse:
    """The pods that overuse, and for how long. Only the event loop calls this class."""

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
        """`clock` is monotonic. While `readiness` fails, no pod is judged: another replica decides, or none.

        `_judge` and `_tell` change `_episodes`; `_worst` changes `_judged`.
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
        """Note that an agent has reported something."""
        del raw
        if resource is Resource.GPU_NODES:
            self._poked.set()

    async def run(self) -> None:
        """Judge pods until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._poked.wait()
            await asyncio.sleep(PAUSE_S)
            self._poked.clear()
            try:
                await self.look()
            except Exception:
                # An error here must not end the service: then no pod is reported or evicted.
                log.exception("use of GPU memory not judged")

    async def look(self) -> None:
        """Judge all pods by the current measurements; report and evict the pods that are due."""
        worst = {} if self._readiness.failure() else await self._worst()
        self._judge(worst)
        self._metrics.overusing_pods.set(len(worst))
        for uid in [uid for uid in worst if self._is_due(uid)][:TOLD_AT_ONCE]:
            await self._tell(worst[uid])
        for uid in [uid for uid in worst if self._is_to_leave(uid)]:
            self._evict(worst[uid])

    async def _worst(self) -> Mapping[PodUid, Excess]:
        """Return, for each pod that overuses, the device with the largest excess."""
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
        """Judge a node; reuse the last judgement if its inputs are the same, as on most nodes."""
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
        for uid in [uid for uid in self._episodes if uid not in worst]:
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
        # Readiness is checked last: another replica may have taken over during the report.
        return self._episodes[uid].is_told and self._lasts(uid, self._grace_s) and not self._readiness.failure()

    def _evict(self, excess: Excess) -> None:
        pod, grace_s = self._books.pods.get(excess.pod), self._grace_s
        if pod is None:
            return
        message = f"Pod {_name(pod)} was evicted: for more than {grace_s:g} s it used {excess.amounts}"
        self._evictor.dismiss(excess.pod, cause=CAUSE, message=message)
        # A pod that cannot be evicted gets another grace period; it is not evicted again at every look.
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
