import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TypeVar, cast

import pytest

from app.core.commands import Command
from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Fits, Refused
from app.model.seam import (
    Depth,
    KubeError,
    Lost,
    OutcomeUnknownError,
    PodRef,
    RawObject,
    Resource,
    RestoredError,
    WatchEvent,
)
from app.service.shell import AHEAD, SEND_WITHIN_S
from app.simulation.cluster import SimulatedCluster
from tests.control.virtual import VirtualTimeLoop, threads_take
from tests.control.wired import ref
from tests.service.recorded import serving

T = TypeVar("T")


class SlowBinds:
    """A cluster whose bindings wait until they are let go."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.may_bind = asyncio.Event()
        self.sent: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        self.sent.append(pod.name)
        await self.may_bind.wait()
        await self._cluster.bind(pod, node, annotations)


class BrokenWatch:
    """A cluster whose watch of queues fails in a way that no watch may."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)

    async def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        if resource is Resource.QUEUES:
            raise RestoredError("restored")
        async for event in self._cluster.watch(resource, keep):
            yield event


async def test_a_gang_starts_through_the_shell_on_nodes_that_were_offered() -> None:
    async with serving() as service:
        nodes = service.nodes(2)
        service.queue()
        gang = service.gang("train", size=4, gpus=4)
        await asyncio.sleep(2.0)

        assert set(await asyncio.gather(*(service.starts(pod, *nodes) for pod in gang))) == set(nodes)


async def test_a_job_takes_a_thread_and_the_shell_answers_meanwhile() -> None:
    async with serving() as service:
        nodes = service.nodes(1)
        service.queue()
        await asyncio.sleep(1.0)
        threads_take(30.0)
        blocked = service.gang("large", size=2, gpus=8)
        service.pod("filler", gpus=8)
        await asyncio.sleep(5.0)

        answers = [await service.filter(pod, *nodes) for pod in blocked]

        assert not all(isinstance(answer, Fits) for answer in answers)
        assert service.shell.checks(), "the checks of /readyz are read at any time"


async def test_a_caller_that_leaves_stops_its_question() -> None:
    async with serving(gang_barrier_s=3600.0) as service:
        nodes = service.nodes(2)
        service.queue()
        first, second = service.gang("train", size=2, gpus=8)
        await asyncio.sleep(2.0)
        node = await service.filter(first, *nodes)
        assert isinstance(node, Fits)
        binding = asyncio.create_task(service.shell.bind(BindQuestion(pod=ref(first), node=node.nodes[0])))
        await asyncio.sleep(1.0)
        assert not binding.done(), "it waits for its gang"

        binding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await binding
        both = await asyncio.gather(service.starts(first, *nodes), service.starts(second, *nodes))

        assert set(both) == set(nodes)


async def test_whoever_reads_the_core_sees_the_present_time() -> None:
    async with serving() as service:
        await asyncio.sleep(100.0)
        with service.shell.reading():
            now_s = asyncio.get_running_loop().time()

        assert now_s == pytest.approx(101.0, abs=0.1)


async def test_sockets_are_looked_at_after_each_long_step_of_a_component() -> None:
    async with serving() as service:
        main, turns = cast(VirtualTimeLoop, asyncio.get_running_loop()), list[int]()

        async def work() -> None:
            for _ in range(5):
                main.pause(0.001)
                turns.append(main.turns())
                await asyncio.sleep(0)

        await asyncio.sleep(0.3)  # until no timer is due, which makes a second round necessary
        with service.shell.reading():
            working = asyncio.ensure_future(work())
        await asyncio.sleep(1.0)

        assert working.done()
        assert len(set(turns)) == len(turns) == 5


async def test_a_timer_that_rings_during_work_starts_no_second_row_of_turns() -> None:
    async with serving() as service:
        main, turns = cast(VirtualTimeLoop, asyncio.get_running_loop()), list[int]()

        async def work() -> None:
            for _ in range(350):  # beyond the next timer of a component, after half a second
                main.pause(0.001)
                turns.append(main.turns())
                await asyncio.sleep(0)

        await asyncio.sleep(0.3)
        with service.shell.reading():
            working = asyncio.ensure_future(work())
        await asyncio.sleep(1.0)

        assert working.done()
        assert len(turns) == 350
        assert len(set(turns[-50:])) == 50


async def test_a_component_that_fails_ends_the_service_with_its_error() -> None:
    with pytest.raises(ExceptionGroup) as found:
        async with serving(seen=BrokenWatch) as service:  # type: ignore[arg-type]
            await service.running

    assert found.group_contains(RestoredError)


async def test_no_component_goes_on_after_another_has_failed() -> None:
    class ReadLeases(BrokenWatch):
        read = 0

        async def read_lease(self, namespace: str, name: str) -> None:
            del namespace, name
            ReadLeases.read += 1

    async with serving(seen=ReadLeases, scheduler_lease="kube-system/kube-scheduler") as service:  # type: ignore[arg-type]
        await asyncio.wait({service.running})
        read = ReadLeases.read
        await asyncio.sleep(5.0)

        assert ReadLeases.read == read


@pytest.mark.parametrize(
    ("lease", "paused_s", "sent"),
    [
        ("kube-system/kube-scheduler", SEND_WITHIN_S - 0.1, ["p"]),
        ("kube-system/kube-scheduler", SEND_WITHIN_S + 0.1, []),
        ("", SEND_WITHIN_S + 0.1, ["p"]),
    ],
)
async def test_a_write_is_not_sent_after_a_pause_in_which_another_replica_may_have_begun(
    lease: str, paused_s: float, sent: list[str]
) -> None:
    slow: list[SlowBinds] = []

    def watched(cluster: SimulatedCluster) -> SlowBinds:
        slow.append(SlowBinds(cluster))
        return slow[0]

    async with serving(seen=watched, scheduler_lease=lease) as service:  # type: ignore[arg-type]
        pod = PodRef(namespace="q", name="p", uid=PodUid("u"))
        with service.shell.reading():
            service.shell.execute(1000, Command(verb="bind", arguments=(pod, NodeName("n"), {})))
        service.ahead_s = paused_s
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)

        assert slow[0].sent == sent


async def test_a_call_that_is_cancelled_by_the_cluster_itself_has_an_unknown_outcome() -> None:
    class Cancelled(SlowBinds):
        async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
            del pod, node, annotations
            raise asyncio.CancelledError

    async with serving(seen=Cancelled) as service:  # type: ignore[arg-type]
        raised = list[KubeError]()

        async def write() -> None:
            try:
                await service.shell._core.cluster.bind(
                    PodRef(namespace="q", name="p", uid=PodUid("u")), NodeName(""), {}
                )
            except KubeError as error:
                raised.append(error)

        async with asyncio.timeout(1.0):
            await service.shell.seen(write)

        assert [type(error) for error in raised] == [OutcomeUnknownError]


async def test_a_write_that_has_a_connection_only_after_a_pause_is_withdrawn_when_its_time_is_over() -> None:
    loop, slow = asyncio.get_running_loop(), list[SlowBinds]()
    assert isinstance(loop, VirtualTimeLoop)

    class Connecting(SlowBinds):
        async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
            await self.may_bind.wait()
            await super().bind(pod, node, annotations)

    def seen(cluster: SimulatedCluster) -> SlowBinds:
        slow.append(Connecting(cluster))
        return slow[0]

    async with serving(seen=seen) as service:  # type: ignore[arg-type]

        async def write() -> None:
            pod = PodRef(namespace="q", name="p", uid=PodUid("u"))
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await service.shell._core.cluster.bind(pod, NodeName("n"), {})

        writing = asyncio.create_task(service.shell.seen(write))
        await asyncio.sleep(1.0)
        loop.pause(10.0)
        loop.call_soon(slow[0].may_bind.set)
        await writing

        assert slow[0].sent == []


async def test_a_stream_is_read_on_only_as_fast_as_the_core_takes_its_events() -> None:
    read = 0

    class EndlessOwners(SlowBinds):
        async def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[object]:
            nonlocal read
            while True:
                read += 1
                yield Lost(f"{path} at {depth} with {keep}")

    async with serving(seen=EndlessOwners) as service:  # type: ignore[arg-type]
        options = {"depth": Depth.WHOLE}
        with service.shell.reading():
            # Nobody in the core waits for this stream, so nothing is taken.
            service.shell.execute(
                1000, Command(verb="follow", arguments=("p",), options=options, keep=dict, follows=True)
            )
        for _ in range(10 * AHEAD):
            await asyncio.sleep(0.0)

        assert read == AHEAD + 1


async def test_refusals_come_through() -> None:
    async with serving() as service:
        nodes = service.nodes(1)
        service.queue()
        pod = service.pod("p", gpus=9)
        await asyncio.sleep(1.0)

        assert isinstance(await service.filter(pod, *nodes), Refused)
