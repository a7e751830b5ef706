"""From stored GpuNodes and pods to the pods on each GPU, and to those that use too much."""

from app.control.gpus.overuse import LASTS_S, OVERUSE, Overuse
from app.model import marks
from app.model.device import Health
from app.model.names import NodeName
from app.model.occupancy import AgentState, NodeUse
from app.model.seam import RawObject, Resource
from app.settings import Settings
from tests.control.ready import Told
from tests.control.wired import World, living, passes

UUID = "GPU-0000"
GROUP = "opener-0"
RESERVED = "kai-resource-reservation"


def runs_on_a_part(world: World) -> RawObject:
    """Let a pod run that requested 8000 MiB, and a reservation pod beside it."""
    asked = {"gpu-memory": "8000", marks.DEVICES_ANNOTATION: UUID, marks.GROUPS_ANNOTATION: GROUP}
    pod = world.pod("part", gpus=0)
    world.patch(pod, metadata={"annotations": asked}, spec={"nodeName": "a"}, status={"phase": "Running"})
    labels = {marks.MANAGED_BY_LABEL: marks.MANAGED_BY, marks.RESERVATION_GROUP_LABEL: GROUP}
    metadata = {"namespace": RESERVED, "name": "reservation", "uid": "r", "labels": labels}
    spec = {"nodeName": "a", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    world.cluster.create(Resource.PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    return pod


def tells_of_use(world: World, pod: RawObject, used_mib: int) -> None:
    """Let the agent report the usage of the pod."""
    device = {
        "uuid": UUID,
        "memoryMiB": {"total": 80_000, "used": used_mib + 300},
        "health": "Healthy",
        "pods": [{"namespace": RESERVED, "name": "reservation"}],
        "processes": [{"podUid": pod["metadata"]["uid"], "memoryMiB": used_mib}],
    }
    status = {"kubelet": {"answers": True}, "devices": [device]}
    world.cluster.create(Resource.GPU_NODES, {"metadata": {"name": "a", "uid": "g"}, "status": status})


async def test_pods_that_share_a_gpu_are_shown_with_what_is_reserved_and_used() -> None:
    async with living("a") as world:
        tells_of_use(world, runs_on_a_part(world), 9_300)
        await passes(5)

        use = world.inspect.gpu_node(NodeName("a"))

        assert isinstance(use, NodeUse)
        (device,) = use.devices
        ((shared,), whole) = device.shared, device.whole
        assert (shared.name, shared.state, whole, device.is_free) == (GROUP, "ready", (), False)
        assert [(one.name, one.portion_ppm, one.promised_mib, one.used_mib) for one in shared.occupants] == [
            ("part-0", 100_000, 8_000, 9_300)
        ]
        assert [(each.promised_mib, each.used_mib) for each in world.inspect.shared_gpus()] == [(8_000, 9_600)]
        assert (world.inspect.gpu_nodes(), world.inspect.gpu_health()) == (["a"], {Health.HEALTHY: 1})


async def test_a_deleted_node_is_no_longer_shown_although_its_gpunode_exists() -> None:
    async with living("a") as world:
        tells_of_use(world, runs_on_a_part(world), 9_300)
        await passes(5)

        world.delete_node("a")
        await passes(1)

        assert (world.inspect.gpu_nodes(), world.inspect.gpu_node(NodeName("a"))) == ([], None)
        assert (world.inspect.gpu_health(), list(world.inspect.shared_gpus())) == ({}, [])


async def test_a_pod_that_uses_more_of_a_gpu_than_requested_is_reported() -> None:
    async with living("a") as world:
        tells_of_use(world, runs_on_a_part(world), 9_300)
        await passes(5)
        settings = Settings(overuse_tolerance_mib=1_000)
        overuse = Overuse(world.cache, world.cluster, world.evictor, world.metrics, settings, Told(), clock=world.now)

        await overuse.look()
        await passes(LASTS_S)
        await overuse.look()

        assert ("part-0", OVERUSE) in world.cluster.told


async def test_nodes_with_gpus_are_counted_by_what_is_heard_of_their_agents() -> None:
    async with living("a", "b", gpus=2) as world:
        tells_of_use(world, runs_on_a_part(world), 1_000)
        await passes(5)
        early = world.inspect.agents()
        await passes(3600)

        assert early == {AgentState.REPORTS: 1, AgentState.SILENT: 0, AgentState.MISSING: 1}
        assert world.inspect.agents() == {AgentState.REPORTS: 0, AgentState.SILENT: 1, AgentState.MISSING: 1}
        assert world.inspect.free_gpus()().nodes == {0: 0, 1: 1, 2: 1}
