"""A pod that uses too much of a GPU gets one event, and is evicted only if this is enabled."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.cluster.gpus.shared_gpus import Part
from app.control.gpus.overuse import CALM_S, LASTS_S, LOOK_S, OVERUSE, PAUSE_S, Excess, Overuse, excesses
from app.control.writers.evictor import EVICTED
from app.model.device import Device, GpuNode
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.seam import ForbiddenError, RawObject, Resource
from app.model.snapshot import PART
from app.settings import Settings
from app.telemetry import Metrics
from tests.control.books import GROUP, WHOLE_MIB, A, Books, books, reservation, sharer
from tests.control.ready import Told
from tests.control.wired import FickleCluster, World, living, passes
from tests.occupied import device

ASKED_MIB = 8_000
POD = sharer("p", memory_mib=ASKED_MIB)
UUID = device(0).uuid
SETTLED_S = LASTS_S + LOOK_S + 3 * PAUSE_S
"""After this time a pod that uses too much all the time has got its event."""


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as logs:
        yield logs


class Notes(FickleCluster):
    """Records the text of events."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        assert warning == (reason == OVERUSE)
        self.notes.append(note)
        await super().record_event(regarding, warning=warning, reason=reason, note=note)


class Scene:
    """One node, with the test as its agent."""

    def __init__(self, books: Books, **settings: Any) -> None:
        self.books, self.cluster, self.metrics, self.unready = books, Notes(), Metrics(), Told()
        self.dismissed: list[str] = []
        self.overuse = Overuse(
            books,
            self.cluster,
            self,
            self.metrics,
            Settings(overuse_tolerance_mib=1_000, **settings),
            self.unready,
            clock=asyncio.get_running_loop().time,
        )

    def dismiss(self, uid: PodUid, *, cause: str, message: str) -> None:
        assert (uid, cause) == (POD.uid, "overuse")
        self.dismissed.append(message)

    def uses(self, mib: int | None, *, pod: Pod = POD, **more: object) -> None:
        """Let the agent report the usage of the pod's processes; None: unknown."""
        processes = () if mib is None else ((pod.uid, mib),)
        self.tells(device(0, memory_mib=WHOLE_MIB, used_mib=mib, processes=processes, **more))

    def tells(self, *devices: Device) -> None:
        told = GpuNode(name=A, devices=devices, kubelet_answers=True)
        self.books.gpus.report(told, heard_at=asyncio.get_running_loop().time())
        self.books.gpus.refresh(A)
        self.overuse.learn(Resource.GPU_NODES, {})

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"leeboard_gpu_memory_{name}")


@asynccontextmanager
async def scene(*pods: Pod, **settings: Any) -> AsyncIterator[Scene]:
    """Watch these pods, which share device 0."""
    set_up = Scene(books(device(0), pods=pods or (POD,), uuid=UUID), **settings)
    running = asyncio.create_task(set_up.overuse.run())
    yield set_up
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# Events


async def test_a_pod_that_uses_too_much_gets_one_event_with_its_numbers_and_is_counted() -> None:
    async with scene() as node:
        node.uses(9_300)
        await passes(SETTLED_S + 3_600)

        assert node.cluster.notes == [f"Pod default/p uses 9300 MiB of {UUID}, asked for 8000 MiB"]
        assert node.cluster.told == [("p", OVERUSE)]
        assert (node.value("overuses_total"), node.value("overusing_pods")) == (1, 1)
        assert node.dismissed == []


@pytest.mark.parametrize("used_mib", [0, ASKED_MIB, ASKED_MIB + 1_000, None])
async def test_a_pod_within_its_request_and_the_tolerance_gets_no_event(used_mib: int | None) -> None:
    async with scene(evict_overuse_after_s=60) as node:
        node.uses(used_mib)
        await passes(3_600)

        assert (node.cluster.notes, node.dismissed, node.value("overusing_pods")) == ([], [], 0)


async def test_the_overhead_of_a_cuda_context_belongs_to_the_pod() -> None:
    async with scene() as node:
        node.books.gpus.parts.put(POD.uid, part(ASKED_MIB + 500))
        node.uses(ASKED_MIB + 1_500)
        await passes(SETTLED_S)
        assert node.cluster.notes == []

        node.uses(ASKED_MIB + 1_501)
        await passes(SETTLED_S)
        assert len(node.cluster.notes) == 1


async def test_a_short_overuse_is_not_reported() -> None:
    async with scene() as node:
        for _ in range(20):
            node.uses(9_300)
            await passes(LASTS_S - 5)
            node.uses(8_000)
            await passes(5)

        assert node.cluster.notes == []


@pytest.mark.parametrize(("swings", "calm_s", "told"), [(20, CALM_S / 2, 1), (2, CALM_S + 2 * LOOK_S, 2)])
async def test_a_pod_that_varies_around_its_request_gets_one_event(swings: int, calm_s: float, told: int) -> None:
    async with scene() as node:
        for _ in range(swings):
            node.uses(9_300)
            await passes(SETTLED_S)
            node.uses(8_000)
            await passes(calm_s)

        assert len(node.cluster.notes) == told


async def test_a_pod_on_a_device_that_was_not_assigned_to_it_gets_an_event() -> None:
    async with scene() as node:
        other = device(1, memory_mib=WHOLE_MIB, used_mib=3_000, processes=((POD.uid, 3_000),))
        node.tells(device(0, memory_mib=WHOLE_MIB, used_mib=0), other)
        await passes(SETTLED_S)

        assert node.cluster.notes == [f"Pod default/p uses 3000 MiB of {other.uuid}, asked for 0 MiB"]


async def test_of_several_devices_the_one_with_the_largest_overuse_is_reported() -> None:
    async with scene() as node:
        told = (device(index, processes=((POD.uid, used),)) for index, used in enumerate((9_300, 3_000, 1_100)))
        node.tells(*told)
        await passes(SETTLED_S)

        assert node.cluster.notes == [f"Pod default/p uses 3000 MiB of {device(1).uuid}, asked for 0 MiB"]


async def test_a_pod_with_a_whole_device_never_uses_too_much() -> None:
    whole = replace(POD, sharing=None)
    async with scene(whole) as node:
        node.uses(WHOLE_MIB, pod=whole)
        await passes(SETTLED_S)

        assert node.cluster.notes == []


async def test_reports_of_a_silent_agent_are_not_held_against_pods() -> None:
    async with scene() as node:
        node.uses(9_300)
        node.books.gpus.agents.age(since=asyncio.get_running_loop().time() + 1)
        await passes(SETTLED_S)

        assert node.cluster.notes == []


async def test_without_processes_the_only_pod_is_responsible_for_the_device() -> None:
    async with scene(POD, reservation()) as node:
        node.tells(device(0, memory_mib=WHOLE_MIB, used_mib=9_800, foreign_mib=500))
        await passes(SETTLED_S)

        assert node.cluster.notes == [f"Pod default/p uses 9300 MiB of {UUID}, asked for 8000 MiB"]


async def test_events_of_a_thousand_pods_are_written_a_few_at_a_time() -> None:
    pods = [sharer(f"p{number}", memory_mib=10) for number in range(50)]
    async with scene(*pods) as node:
        node.tells(device(0, processes=tuple((pod.uid, 2_000) for pod in pods)))
        await passes(LASTS_S + 5)
        first = len(node.cluster.notes)
        await passes(3 * LOOK_S)

        assert 0 < first <= 20
        assert len(set(node.cluster.notes)) == 50


async def test_an_event_that_cannot_be_written_is_dropped() -> None:
    async with scene() as node:
        node.cluster.errors["record_event"].append(ForbiddenError("403"))
        node.uses(9_300)
        await passes(SETTLED_S + 3_600)

        assert (len(node.cluster.notes), node.value("overuses_total")) == (1, 1)


async def test_no_pod_is_judged_while_another_replica_decides() -> None:
    async with scene(evict_overuse_after_s=60) as node:
        node.unready.why = "another kube-scheduler leads"
        node.uses(9_300)
        await passes(3_600)
        assert (node.cluster.notes, node.dismissed, node.value("overusing_pods")) == ([], [], 0)

        node.unready.why = ""
        await passes(LASTS_S - 1)
        assert node.cluster.notes == []
        await passes(SETTLED_S)
        assert len(node.cluster.notes) == 1


async def test_an_exception_in_the_judgement_does_not_end_the_service(
    monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    async with scene() as node:
        with monkeypatch.context() as broken:
            # No report of an agent causes this exception.
            broken.setattr(node.books.gpus.parts, "on", lambda _: 1 / 0)
            await passes(2 * LOOK_S)
        node.uses(9_300)
        await passes(SETTLED_S)

        assert len(node.cluster.notes) == 1
        assert "use of GPU memory not judged" in [entry["event"] for entry in logs]


# Evictions


async def test_a_pod_that_continues_to_use_too_much_gets_an_event_and_is_evicted_after_the_grace_period() -> None:
    async with scene(evict_overuse_after_s=300) as node:
        node.uses(9_300)
        await passes(290)
        assert node.cluster.notes == [
            f"Pod default/p uses 9300 MiB of {UUID}, asked for 8000 MiB; it is evicted if it does so for 300 s"
        ]
        assert node.dismissed == []

        await passes(10 + 2 * LOOK_S)

        assert node.dismissed == [
            f"Pod default/p was evicted: for more than 300 s it used 9300 MiB of {UUID}, asked for 8000 MiB"
        ]


async def test_the_grace_period_starts_again_after_every_pause() -> None:
    async with scene(evict_overuse_after_s=300) as node:
        for _ in range(10):
            node.uses(9_300)
            await passes(280)
            node.uses(8_000)
            await passes(5)

        assert node.dismissed == []


async def test_a_pod_gets_an_event_before_the_eviction_even_with_the_shortest_grace_period() -> None:
    async with scene(evict_overuse_after_s=1) as node:
        node.uses(9_300)
        await passes(LASTS_S - 1)
        assert (node.cluster.notes, node.dismissed) == ([], [])

        await passes(LOOK_S + 3)
        assert (len(node.cluster.notes), len(node.dismissed)) == (1, 1)


async def test_no_pod_is_evicted_once_another_replica_decides() -> None:
    async with scene(evict_overuse_after_s=1) as node:
        node.cluster.takes_s["record_event"] = 10
        node.uses(9_300)
        await passes(LASTS_S + 5)
        assert len(node.cluster.notes) == 1

        node.unready.why = "another kube-scheduler leads"
        await passes(3_600)

        assert node.dismissed == []


async def test_a_terminating_pod_gets_no_event() -> None:
    async with scene(replace(POD, deleting=True)) as node:
        node.uses(9_300)
        await passes(SETTLED_S)

        assert node.cluster.notes == []


async def test_a_pod_of_another_scheduler_gets_an_event_and_is_not_evicted() -> None:
    other = replace(POD, managed=False)
    async with scene(other, evict_overuse_after_s=60) as node:
        node.uses(9_300)
        await passes(3_600)

        assert (len(node.cluster.notes), node.dismissed) == (1, [])
        assert "evicted" not in node.cluster.notes[0]


async def test_an_evicted_pod_has_the_reason_in_its_condition_and_in_an_event() -> None:
    async with living("a") as world:
        raw = world.runs("greedy", "a")
        await passes(1)
        overuse = judging(world, PodUid(raw["metadata"]["uid"]))

        await overuse.look()
        await passes(60)
        await overuse.look()
        await passes(1)

        message = f"Pod q/greedy-0 was evicted: for more than 60 s it used 9300 MiB of {UUID}, asked for 8000 MiB"
        assert world.cluster.marks[0] == ("greedy-0", message)
        assert world.cluster.evictions == ["greedy-0"]
        assert world.cluster.told == [("greedy-0", OVERUSE), ("greedy-0", EVICTED)]
        assert world.count("pods_evicted", action="overuse") == 1


def judging(world: World, uid: PodUid) -> Overuse:
    """Judge a pod of this world that has a part of device 0 and uses more."""
    told = device(0, processes=((uid, 9_300),))
    known = books(told)
    known.gpus.parts.put(uid, replace(part(ASKED_MIB), pod=uid))
    known.gpus.refresh(A)
    known.pods = {pod.uid: pod for pod in world.cache.pods.all()}
    return Overuse(
        known,
        world.cluster,
        world.evictor,
        world.metrics,
        Settings(evict_overuse_after_s=60),
        Told(),
        clock=world.now,
    )


# The bound


def part(parts_mib: int) -> Part:
    """Build what POD holds of device 0, with the memory set aside beside it."""
    return Part(
        pod=POD.uid,
        node=A,
        names=(GROUP,),
        uuids=(UUID,),
        parts=parts_mib * PART,
        memory_mib=ASKED_MIB,
        is_bound=True,
    )


@pytest.mark.parametrize(("used_mib", "tolerance_mib"), [*product((0, 7_999, 8_000, 8_001, 9_001), (0, 1, 1_000))])
def test_overuse_is_what_exceeds_request_and_tolerance(used_mib: int, tolerance_mib: int) -> None:
    report = GpuNode(name=A, devices=(device(0, processes=((POD.uid, used_mib),)),))

    found = list(excesses(report, {POD.uid: part(ASKED_MIB)}, tolerance_mib=tolerance_mib))

    over_mib = used_mib - ASKED_MIB - tolerance_mib
    excess = Excess(pod=POD.uid, device=UUID, used_mib=used_mib, asked_mib=ASKED_MIB, over_mib=over_mib)
    assert found == ([excess] if over_mib > 0 else [])


def test_a_pod_with_an_unknown_device_is_not_judged() -> None:
    report = GpuNode(name=A, devices=(device(0, processes=((POD.uid, 70_000),)),))

    assert list(excesses(report, {POD.uid: replace(part(ASKED_MIB), uuids=())}, tolerance_mib=0)) == []
