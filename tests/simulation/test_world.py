from collections import Counter
from collections.abc import Mapping, Sequence

from app.model.names import NodeName
from app.model.seam import RawObject, Resource
from app.simulation.cluster import SimulatedCluster
from app.simulation.devices import SimulatedDevices
from app.simulation.kubelet import SimulatedKubelet
from app.simulation.scheduler import Scheduler
from app.simulation.stock import milli, requests
from app.simulation.users import Users
from app.simulation.webhooks import Filtered
from app.simulation.workload import arrivals
from app.simulation.world import furnished
from tests.simulation.play import ManualClock, playing, ref


class Consent:
    """Passes every pod where it fits, gangs member by member."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        del pod
        return Filtered(names=tuple(names))

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        del pod, names
        return {}

    async def bind(self, pod: RawObject, node: str) -> None:
        await self.cluster.bind(ref(pod), NodeName(node), {})


async def test_in_five_minutes_of_the_demo_pods_start_and_end_and_no_node_is_overcommitted() -> None:
    cluster, clock = furnished(), ManualClock()
    actors = (
        SimulatedKubelet(cluster, SimulatedDevices(cluster), clock),
        Scheduler(cluster, Consent(cluster), clock),
        Users(cluster, clock),
    )
    seen: set[str] = set()

    with playing(actors[0].run(), actors[1].run(), actors[2].run(arrivals(1))):
        for _ in range(5):
            await clock.advance(60)
            seen |= {pod["metadata"]["uid"] for pod in cluster.objects(Resource.PODS)}
            assert overcommitted(cluster) == []

    assert len(seen) > len(cluster.objects(Resource.PODS)) > 0


def overcommitted(cluster: SimulatedCluster) -> list[str]:
    used: dict[str, Counter[str]] = {node["metadata"]["name"]: Counter() for node in cluster.objects(Resource.NODES)}
    for pod in cluster.objects(Resource.PODS):
        if node := pod["spec"].get("nodeName"):
            used[node].update(requests(pod))
    amounts = {node["metadata"]["name"]: node["status"]["allocatable"] for node in cluster.objects(Resource.NODES)}
    return [
        node for node, sums in used.items() if any(sums[name] > milli(amounts[node].get(name, "0")) for name in sums)
    ]
