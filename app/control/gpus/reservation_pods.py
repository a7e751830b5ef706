"""Writes reservation pods: creates them, deletes them, and annotates them with their device.

`shared_gpus` decides what is written, and confirms it right before each write.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import structlog

from app.cluster import decode
from app.cluster.gpus.reservation_pods import ReservationPodTerms, reservation_name, reservation_pod
from app.cluster.gpus.shared_gpus import SharedGpu
from app.cluster.gpus.upkeep import Free, Reserve
from app.cluster.state.cache import ClusterCache
from app.control.leadership.leadership import Leadership
from app.model.marks import RESERVED_DEVICE_ANNOTATION
from app.model.names import NodeName, PodUid
from app.model.pod import Pod
from app.model.retry import RetryPolicy
from app.model.seam import (
    Cluster,
    ConflictError,
    KubeError,
    NotFoundError,
    PodRef,
    RawObject,
)
from app.model.sentence import Name, say
from app.settings import Settings

log = structlog.get_logger()

WRITERS = 8
"""Writes in flight at most: a gang of shared pods opens many GPUs together."""

RETRY = RetryPolicy(first_s=1.0, factor=1.0)
"""Pause before a failed write is repeated."""

CONTESTED = "GpuContested"
"""Reason of the event about the node."""

Place = tuple[NodeName, str]
"""A node, and the name of a shared GPU there."""

NOWHERE: Place = (NodeName(""), "")
"""The place of writes that concern no known shared GPU."""


@dataclass(frozen=True, slots=True)
class Annotate:
    """Annotate a reservation pod with its device."""

    pod: Pod
    uuid: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Record an event about a node."""

    node: NodeName
    note: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Delete a reservation pod that the watch does not show any more: it has ended, and may still exist."""

    pod: Pod
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Sweep:
    """Delete all reservation pods that have ended."""


Write = Reserve | Free | Annotate | Tell | Bury | Sweep


class Orderer(Protocol):
    """The part that orders writes, and confirms each write before it is sent."""

    def is_due(self, place: Place, write: Write) -> bool:
        """Return whether a write is still wanted."""
        ...

    def note_failed(self, place: Place, error: KubeError) -> None:
        """Note that a write failed."""
        ...


class ReservationPods:
    """The queued writes in their order, and the writes in flight. `order` and the writers change them."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        cluster: Cluster,
        leadership: Leadership,
        settings: Settings,
        orderer: Orderer,
        *,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self._cache = cache
        self._cluster = cluster
        self._leadership = leadership
        self._namespace = settings.reservation_namespace
        self._terms = ReservationPodTerms(
            image=settings.reservation_image,
            priority_class=settings.reservation_priority_class,
            scheduler=min(settings.profiles),
        )
        self._clock = clock
        self._orderer = orderer
        self._under_way: set[Place] = set()
        self._paused_until: dict[Place, float] = {}
        self._made_at: dict[Place, float] = {}
        self._said: dict[Place, str] = {}
        """Why the last reservation pod of each shared GPU was not created, or has ended, as far as it is known."""
        self._orders: asyncio.Queue[tuple[Place, Write]] = asyncio.Queue()

    def order(self, place: Place, write: Write) -> None:
        """Queue a write."""
        self._under_way.add(place)
        self._orders.put_nowait((place, write))

    def is_busy(self, place: Place) -> bool:
        """Whether a write about a shared GPU is queued or in flight, or was refused a moment ago."""
        return place in self._under_way or self._paused_until.get(place, 0.0) > self._clock()

    def is_under_way(self, place: Place) -> bool:
        """Whether a write about a shared GPU is queued or in flight."""
        return place in self._under_way

    def bury(self, pod: Pod, place: Place, *, pause_s: float) -> None:
        """Delete a reservation pod that has ended; if it ended soon after its creation, pause before the next one.

        If the kubelet refuses the next pod too, pods must not be created many times a second.
        """
        self._orders.put_nowait((NOWHERE, Bury(pod, place)))
        if self._made_at.get(place, -pause_s) > self._clock() - pause_s:
            self._paused_until[place] = self._clock() + pause_s

    def obstacle(self, place: Place) -> str:
        """Return why the last reservation pod of a shared GPU was not created or has ended; empty when not known."""
        return self._said.get(place, "")

    def note_ready(self, place: Place) -> None:
        """Note that a shared GPU is ready: the recorded obstacle is over."""
        self._said.pop(place, None)

    def forget(self, place: Place) -> None:
        """Forget the records of a shared GPU that does not exist any more."""
        self._said.pop(place, None)
        self._paused_until.pop(place, None)
        self._made_at.pop(place, None)

    def recall(self) -> None:
        """Drop all writes that have not begun."""
        while not self._orders.empty():
            place, _ = self._orders.get_nowait()
            self._under_way.discard(place)

    async def run(self) -> None:
        """Write until cancelled, several writes at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._write())

    async def _write(self) -> None:
        while True:
            place, write = await self._orders.get()
            try:
                if not self._leadership.failure() and self._orderer.is_due(place, write):
                    await self._leadership.while_sure(self._carry_out(place, write))
            except KubeError as error:
                log.warning("reservation pod not written", node=place[0], group=place[1], error=str(error))
                self._paused_until[place] = self._clock() + RETRY.asked_or_after(1, error)
                if isinstance(write, Reserve):
                    self._said[place] = f"its reservation pod cannot be written: {error}"
                self._orderer.note_failed(place, error)
            finally:
                self._under_way.discard(place)

    async def _carry_out(self, place: Place, write: Write) -> None:
        match write:
            case Reserve(node, name):
                gpu = self._cache.gpus.find(node, name)
                if gpu is not None:
                    self._made_at[place] = self._clock()
                    await self._reserve(node, gpu)
            case Free(_, pod):
                await self._remove(_ref(pod))
            case Bury(pod, left):
                await self._learn_end(pod, left)
                await self._remove(_ref(pod))
            case Annotate(pod, uuid):
                with suppress(NotFoundError):
                    await self._cluster.annotate_pod(_ref(pod), {RESERVED_DEVICE_ANNOTATION: uuid})
            case Sweep():
                for ref in filter(None, await self._cluster.pods_in(self._namespace, _ended)):
                    await self._remove(ref)
            case Tell(node, note):
                regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
                await self._cluster.record_event(regarding, warning=True, reason=CONTESTED, note=note)

    async def _reserve(self, node: NodeName, gpu: SharedGpu) -> None:
        report = self._cache.gpus.agents.all().get(node)
        # The kubelet reports names only: a pod that it still holds under this name would be mistaken for the new one.
        known = {one.name for device in report.devices for one in device.holders} if report else set[str]()
        taken = known.union(pod.name for pod in gpu.reservations)
        names = (reservation_name(node, gpu.name, number) for number in count())
        name = next(each for each in names if each not in taken)
        body = reservation_pod(node, gpu.name, name, owner_uid=report.uid if report else "", terms=self._terms)
        try:
            await self._cluster.create_pod(self._namespace, body)
        except ConflictError:
            await self._make_way(name)

    async def _learn_end(self, pod: Pod, place: Place) -> None:
        """Read from the node why a reservation pod for which pods wait has ended, while the pod can still be read."""
        gpu = self._cache.gpus.find(*place)
        if gpu is None or not gpu.holders:
            return
        raw = await self._cluster.find_pod(self._namespace, pod.name)
        cause = decode.end_of(raw) if raw is not None and raw["metadata"]["uid"] == pod.uid else ""
        if cause:
            name = Name(self._namespace, pod.name, "in Leeboard's namespace")
            self._said[place] = say("its reservation pod {name} has ended: {cause}", name=name, cause=cause)

    async def _make_way(self, name: str) -> None:
        """Delete an ended reservation pod that the watch does not show: it blocks the name and holds no device."""
        raw = await self._cluster.find_pod(self._namespace, name)
        if raw is not None and decode.is_terminal(raw):
            log.warning("reservation pod has ended", pod=name, cause=decode.end_of(raw))
            await self._remove(PodRef(namespace=self._namespace, name=name, uid=PodUid(raw["metadata"]["uid"])))

    async def _remove(self, ref: PodRef) -> None:
        with suppress(NotFoundError):
            await self._cluster.remove_pod(ref)


def _ref(pod: Pod) -> PodRef:
    return PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)


def _ended(raw: RawObject) -> PodRef | None:
    """Return a reservation pod of ours that has ended; None for any other pod."""
    if not decode.is_terminal(raw) or not decode.is_ours(raw):
        return None
    metadata = raw["metadata"]
    return PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=PodUid(metadata["uid"]))
