from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from app.cluster import decode
from app.model.device import Device, GpuNode
from app.model.layout import NVLINK_SCORE
from app.model.marks import DEVICES_ANNOTATION, MEMORY_ANNOTATION, RESERVATION_APP
from app.model.names import NodeName
from app.model.seam import RawObject, Resource
from app.settings import Settings
from app.simulation import manifests
from app.simulation.agents import HEARTBEAT_EVERY, MEASURE_EVERY, NVLINKS, Agents
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import START_S, SimulatedKubelet
from app.simulation.manifests import MEMORY_LABEL, PRODUCT_LABEL
from tests.simulation.play import ManualClock, create_pod, playing, ref, stored

NODE = NodeName("n1")
MEMORY_MIB = 81559
HALF_MIB = 40700


class Stage:
    """One node of two GPUs with its kubelet and its agent."""

    def __init__(self) -> None:
        self.cluster, self.clock = SimulatedCluster(now=lambda: 0.0), ManualClock()
        labels = {MEMORY_LABEL: str(MEMORY_MIB), PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3"}
        self.cluster.create(Resource.NODES, manifests.node(NODE, gpus=2, cpu=64, labels=labels))
        self.devices = SimulatedDevices(self.cluster)

    def plays(self) -> AbstractContextManager[None]:
        kubelet, agents = (
            SimulatedKubelet(self.cluster, self.devices, self.clock),
            Agents(self.cluster, self.devices, self.clock),
        )
        return playing(kubelet.run(), agents.run())

    async def starts(self, name: str, annotations: Mapping[str, str] | None = None, **more: object) -> RawObject:
        pod = create_pod(self.cluster, name, **more)
        await self.cluster.bind(ref(pod), NODE, annotations or {})
        await self.clock.advance(START_S + 1)
        return pod

    async def shares(self, name: str, *uuids: str, memory_mib: int = HALF_MIB) -> RawObject:
        told = {DEVICES_ANNOTATION: ",".join(uuids), MEMORY_ANNOTATION: str(memory_mib)}
        return await self.starts(name, told, gpus=0, runtime_s=10_000)

    @property
    def published(self) -> RawObject:
        (found,) = self.cluster.objects(Resource.GPU_NODES)
        return found

    @property
    def report(self) -> GpuNode:
        """The report as Leeboard reads it."""
        return decode.gpu_node(self.published)

    @property
    def holders(self) -> list[list[str]]:
        return [[holder.name for holder in device.holders] for device in self.report.devices]

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.objects(Resource.PODS)]


async def test_the_agent_reports_every_device_and_that_all_are_on_one_switch() -> None:
    stage = Stage()
    with stage.plays():
        await stage.clock.advance(1)

    (first, second) = stage.report.devices
    told = Device(
        uuid=first.uuid,
        product="NVIDIA H100 80GB HBM3",
        memory_mib=MEMORY_MIB,
        used_mib=0,
        numa_node=0,
    )
    assert first == told
    assert (second.index, second.uuid != first.uuid) == (1, True)
    assert (stage.report.name, stage.report.kubelet_answers, stage.report.problem) == (NODE, True, "")
    assert stage.report.layout is not None
    assert stage.report.layout.scores[0][1] >= NVLINKS * NVLINK_SCORE


async def test_a_pod_holds_its_requested_devices_until_it_ends() -> None:
    stage = Stage()
    with stage.plays():
        await stage.starts("two", gpus=2, runtime_s=20)
        while_it_runs = stage.holders

        await stage.clock.advance(20)

    assert while_it_runs == [["two-0"], ["two-0"]]
    assert stage.holders == [[], []]


async def test_a_pod_without_a_free_device_fails_as_at_a_kubelet() -> None:
    stage = Stage()
    with stage.plays():
        await stage.starts("first")
        failed = await stage.starts("second", gpus=2)

    lack = "requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 1"
    assert stored(stage.cluster, failed)["status"] == {
        "phase": "Failed",
        "conditions": stored(stage.cluster, failed)["status"]["conditions"],
        "reason": "UnexpectedAdmissionError",
        "message": f"Allocate failed due to {lack}, which is unexpected",
    }
    assert stage.holders == [["first-0"], []]


async def test_a_pod_that_is_deleted_before_it_starts_leaves_its_device_free() -> None:
    stage = Stage()
    with stage.plays():
        await stage.clock.advance(1)
        pod = create_pod(stage.cluster, "one")
        await stage.cluster.bind(ref(pod), NODE, {})
        stage.cluster.delete(Ref.of(Resource.PODS, pod))
        await stage.clock.advance(60)

    assert stage.holders == [[], []]


async def test_a_pod_that_runs_for_ever_gets_its_devices_once() -> None:
    stage = Stage()
    stage.cluster.create(Resource.PODS, manifests.foreign_pod("stays", node=NODE, gpus=2))
    with stage.plays():
        await stage.clock.advance(600)

    assert stage.names() == ["stays"]
    assert stage.holders == [["stays"], ["stays"]]


async def test_a_pod_that_shares_a_gpu_uses_most_of_its_share_and_does_not_hold_the_device() -> None:
    stage = Stage()
    with stage.plays():
        await stage.clock.advance(1)
        first, second = (device.uuid for device in stage.report.devices)
        pod = await stage.shares("half", first, second)

    uid = pod["metadata"]["uid"]
    assert stage.holders == [[], []]
    for device in stage.report.devices:
        ((who, used_mib),) = device.processes
        assert (who, device.used_mib) == (uid, used_mib)
        assert HALF_MIB // 2 < (used_mib or 0) < HALF_MIB + Settings().overuse_tolerance_mib


async def test_a_pod_sometimes_uses_a_little_more_than_its_share_but_no_gpu_more_than_it_has() -> None:
    stage = Stage()
    seen: set[int] = set()
    with stage.plays():
        await stage.clock.advance(1)
        uuid = stage.report.devices[0].uuid
        for name in ("one", "other"):
            await stage.shares(name, uuid, memory_mib=MEMORY_MIB // 2)
        for _ in range(360):
            await stage.clock.advance(MEASURE_EVERY)
            (device, _) = stage.report.devices
            used = [mib or 0 for _, mib in device.processes]
            assert sum(used) == device.used_mib
            assert sum(used) <= MEMORY_MIB
            seen |= set(used)

    assert min(seen) < MEMORY_MIB // 2 < max(seen) <= MEMORY_MIB // 2 + Settings().overuse_tolerance_mib


async def test_a_reservation_pod_holds_its_device_and_uses_nothing() -> None:
    stage = Stage()
    pod = create_pod(stage.cluster, "reserves")
    stage.cluster.patch(Ref.of(Resource.PODS, pod), {"metadata": {"labels": {"app": RESERVATION_APP}}})
    await stage.cluster.bind(ref(pod), NODE, {})
    with stage.plays():
        await stage.clock.advance(START_S + 1)

    (device, _) = stage.report.devices
    assert ([holder.name for holder in device.holders], device.used_mib) == (["reserves-0"], 0)


async def test_an_agent_reports_periodically_although_nothing_has_changed() -> None:
    stage = Stage()
    with stage.plays():
        await stage.clock.advance(1)
        before, report = stage.published, stage.report

        await stage.clock.advance(HEARTBEAT_EVERY - 2)
        assert stage.published == before
        await stage.clock.advance(1)

    later = datetime.fromtimestamp(HEARTBEAT_EVERY, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert stage.published["status"]["observedAt"] == later
    assert stage.report == report
