"""Ray's autoscaler: workers beyond the minimum start while there is room, and never evict running pods."""

from app.model.marks import GATE
from app.model.seam import RawObject, Resource
from app.simulation.cluster import Ref
from tests.control.jobs import start
from tests.control.test_podgrouper import create_owner, equipped, owned
from tests.control.wired import FickleCluster, gated, living, passes

PATH = "apis/ray.io/v1/rayclusters"


def spec(replicas: int) -> RawObject:
    group = {"groupName": "gpu", "minReplicas": 0, "replicas": replicas, "maxReplicas": 9}
    return {"enableInTreeAutoscaling": True, "workerGroupSpecs": [group]}


def ray_pod(cluster: FickleCluster, name: str, made: RawObject, group: str) -> RawObject:
    by = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": made["metadata"]["uid"]}
    return cluster.create(Resource.PODS, gated(owned(name, by, labels={"ray.io/group": group}), [GATE]))


async def test_workers_that_do_not_all_fit_start_in_part_and_the_head_stays() -> None:
    cluster = equipped("a", "b", "c")
    cluster.serve("ray.io/v1", "RayCluster", PATH)
    async with living(cluster=cluster, stale_grace_s=5) as world:
        made = create_owner(cluster, PATH, "ray", labels={"kai.scheduler/queue": "q"}, spec=spec(0))
        head = ray_pod(cluster, "head", made, "headgroup")
        await passes(3)
        start(world, (head, "a"))
        await passes(1)

        cluster.patch(Ref(resource=PATH, namespace="q", name="ray"), {"spec": spec(4)})
        for number in range(4):
            ray_pod(cluster, f"worker-{number}", made, "gpu")
        await passes(30)

        assert sorted(cluster.releases) == ["head-0", "worker-0-0", "worker-1-0"]
        assert cluster.evictions == []
