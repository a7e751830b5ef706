"""Writes reservation pods: makes them, removes them, and says on them which device they have.

What is to be written is decided by `shared_gpus`, which is asked once more right before each write.
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
"""Writes in flight at once: a gang of shared pods opens many GPUs together."""

RETRY = RetryPolicy(first_s=1.0, factor=1.0)
"""How long a write that failed is left alone."""

CONTESTED = "GpuContested"
"""Reason of the event about the node."""

Place = tuple[NodeName, str]
"""A node, and the name of a shared GPU there."""

NOWHERE: Place = (NodeName(""), "")
"""Of what concerns no shared GPU that is known."""


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write on a reservation pod which device it has."""

    pod: Pod
    uuid: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Record an event about a node."""

    node: NodeName
    note: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Remove a reservation pod that the watch shows no more: it has ended, and may still be there."""

    pod: Pod
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove all reservation pods that have ended."""


Write = Reserve | Free | Annotate | Tell | Bury | Sweep


class Orderer(Protocol):
    """The part that orders writes, and judges them once more when their turn has come."""

    def is_due(self, place: Place, write: Write) -> bool:
        """Return whether a write is still wanted."""
        ...

    def note_failed(self, place: Place, error: KubeError) -> None:
        """Note that a write failed."""
        ...


class ReservationPods:
    """What is to be written, in order, and what is being written. `order` and the writers change it."""

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
        """Why the last reservation pod of each shared GPU was not written, or has ended, as far as it is known."""
        self._orders: asyncio.Queue[tuple[Place, Write]] = asyncio.Queue()

    def order(self, place: Place, write: Write) -> None:
        """Have something written when it is its turn."""
        self._under_way.add(place)
        self._orders.put_nowait((place, write))

    def is_busy(self, place: Place) -> bool:
        """Whether something is being written about a shared GPU, or was refused a moment ago."""
        return place in self._under_way or self._paused_until.get(place, 0.0) > self._clock()

    def is_under_way(self, place: Place) -> bool:
        """Whether something is being written about a shared GPU."""
        return place in self._under_way

    def bury(self, pod: Pod, place: Place, *, pause_s: float) -> None:
        """Have a reservation pod removed that has ended; if it ended soon after it was made, no other is made at once.

        A kubelet that refuses the next one, too, must not be asked many times a second.
        """
        self._orders.put_nowait((NOWHERE, Bury(pod, place)))
        if self._made_at.get(place, -pause_s) > self._clock() - pause_s:
            self._paused_until[place] = self._clock() + pause_s

    def obstacle(self, place: Place) -> str:
        """Return why the last reservation pod of a shared GPU did not come to be; empty when nothing is known."""
        return self._said.get(place, "")

    def note_ready(self, place: Place) -> None:
        """Note that a shared GPU has come to be: whatever kept it from that does so no more."""
        self._said.pop(place, None)

    def forget(self, place: Place) -> None:
        """Forget what was remembered of a shared GPU that is no more."""
        self._said.pop(place, None)
        self._paused_until.pop(place, None)
        self._made_at.pop(place, None)

    def recall(self) -> None:
        """Write nothing of what has not begun."""
        while not self._orders.empty():
            place, _ = self._orders.get_nowait()
            self._under_way.discard(place)

    async def run(self) -> None:
        """Write for ever, several things at a time."""
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
        # The kubelet tells names only: one that it still knows from before would be taken for the new pod.
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
        """Learn from the node why a reservation pod has ended for which pods wait, while it can still be read."""
        gpu = self._cache.gpus.find(*place)
        if gpu is None or not gpu.holders:
            return
        raw = await self._cluster.find_pod(self._namespace, pod.name)
        cause = decode.end_of(raw) if raw is not None and raw["metadata"]["uid"] == pod.uid else ""
        if cause:
            name = Name(self._namespace, pod.name, "in Leeboard's namespace")
            self._said[place] = say("its reservation pod {name} has ended: {cause}", name=name, cause=cause)

    async def _make_way(self, name: str) -> None:
        """Remove a reservation pod that has ended, which the watch does not show: it holds its name, and no device."""
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
    """Return a reservation pod of ours that has ended; None for any other."""
    if not decode.is_terminal(raw) or not decode.is_ours(raw):
        return None
    metadata = raw["metadata"]
    return PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=PodUid(metadata["uid"]))
