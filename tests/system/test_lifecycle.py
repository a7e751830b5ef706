"""Jobs that lose a node, are suspended or deleted: their gangs start whole, run whole, and leave nothing behind."""

from collections.abc import Iterator

import pytest

from tests.system.api import NODES, POD_GROUPS, PODS, Api, ApiError, Object, pod_group, queue
from tests.system.bed import Bed
from tests.system.forms import Deployed
from tests.system.waiting import eventually
from tests.system.workloads import submitted as made
from tests.system.workloads.cluster import WorkloadCluster, workload_cluster, workload_service
from tests.system.workloads.kinds import JOB

TEAM = "team"
DEAD = {"metadata": {"annotations": {"simulation.example.com/dead": "true"}}}
NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}}
LEAVES_AT_ONCE = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
MADE_ANEW_WITHIN_S = 120.0
"""The Job controller waits longer after each lost pod."""


@pytest.fixture(scope="module")
def leeboard(session_bed: Bed, session_api: Api) -> Iterator[Deployed]:
    """Leeboard as shipped, for all tests here."""
    with workload_service(session_bed, session_api) as running:
        yield running


@pytest.fixture
def cluster(leeboard: Deployed, bed: Bed, api: Api) -> Iterator[WorkloadCluster]:
    """A cluster whose one queue may use three GPUs; no nodes yet."""
    assert leeboard.bed is bed
    api.create(queue(TEAM, deserved=3, limit=3))
    with workload_cluster(leeboard) as cluster:
        yield cluster


def gang_job(name: str, *, size: int, namespace: str = "default", grace: str | None = None) -> Object:
    """Build a Job whose pods start together, and leave a node that is not ready at once."""
    pods = made.template(tolerations=[{**LEAVES_AT_ONCE, "tolerationSeconds": 0}])
    item = made.batch_job(name, pods, parallelism=size, queue=TEAM)
    item["metadata"]["namespace"] = namespace
    item["metadata"]["annotations"] = {"kai.scheduler/batch-min-member": str(size)}
    if grace is not None:
        item["metadata"]["annotations"]["kai.scheduler/staleness-grace-period"] = grace
    return item


def kill(cluster: WorkloadCluster, node: str) -> None:
    """Let a node die: its pods are never seen to end."""
    for pod in cluster.api.items(PODS):
        if pod["spec"].get("nodeName") == node:
            cluster.api.patch(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", DEAD)
    cluster.api.patch(f"{NODES}/{node}", DEAD)
    cluster.api.patch(f"{NODES}/{node}/status", NOT_READY)


def bury(cluster: WorkloadCluster) -> None:
    """Delete the pods of dead nodes, as an administrator does."""
    for pod in cluster.api.items(PODS):
        if "simulation.example.com/dead" in pod["metadata"].get("annotations", {}):
            cluster.api.delete_now(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")


# A machine dies -----------------------------------------------------------------------------------------------------


def test_gang_whose_node_dies_is_restarted_whole_while_its_pod_there_never_ends(cluster: WorkloadCluster) -> None:
    dead, *others = cluster.add_nodes(3, gpus=1)
    cluster.submit(gang_job("job", size=3, grace="2s"))
    before = cluster.wait_until_run("job-", 3)

    kill(cluster, dead)
    cluster.wait_until_run("job-", 0)
    (new,) = cluster.add_nodes(1, gpus=1)

    after = eventually(
        lambda: cluster.running("job-"),
        until=lambda seen: len(seen) == 3,
        within_s=MADE_ANEW_WITHIN_S,
        what="three pods run anew",
    )
    assert sorted(after.values()) == sorted([*others, new])
    assert not after.keys() & before.keys()
    assert before.keys() <= {*cluster.evicted()}
    bury(cluster)


def test_gang_whose_lost_member_is_replaced_keeps_its_other_pods(cluster: WorkloadCluster) -> None:
    dead, *_ = cluster.add_nodes(3, gpus=1)
    cluster.submit(gang_job("job", size=3, grace="-1s"))
    before = cluster.wait_until_run("job-", 3)

    kill(cluster, dead)
    cluster.wait_until_run("job-", 2)
    (new,) = cluster.add_nodes(1, gpus=1)

    after = cluster.wait_until_run("job-", 3)
    assert {name: node for name, node in before.items() if node != dead}.items() <= after.items()
    assert sorted(after.values()) == sorted([*(node for node in before.values() if node != dead), new])
    bury(cluster)


def test_podgroup_accepts_a_grace_period_as_a_duration_or_never_and_nothing_else(cluster: WorkloadCluster) -> None:
    for index, written in enumerate(("90s", "1h30m", "0", "0s", "-1", "-1s")):
        cluster.api.create(pod_group(f"grace-{index}", min_member=2, queue=TEAM, stalenessGracePeriod=written))

    for wrong in ("soon", "", "-", "1", "--1s"):
        with pytest.raises(ApiError, match="is not a duration"):
            cluster.api.create(pod_group("grace-wrong", min_member=2, queue=TEAM, stalenessGracePeriod=wrong))


# Suspended and resumed ----------------------------------------------------------------------------------------------


def test_job_that_is_suspended_while_pending_or_running_starts_whole_when_resumed(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(2, gpus=1)
    cluster.submit(gang_job("job", size=3))
    cluster.wait_until_refused(3, "GangDoesNotFit")

    cluster.change(JOB, "job", {"suspend": True})
    cluster.wait_until_gone("job-")
    cluster.add_nodes(1, gpus=1)
    cluster.change(JOB, "job", {"suspend": False})
    cluster.wait_until_run("job-", 3)
    cluster.change(JOB, "job", {"suspend": True})
    cluster.wait_until_gone("job-")
    cluster.wait_until_no_group_waits()

    cluster.change(JOB, "job", {"suspend": False})
    cluster.wait_until_run("job-", 3)


# Deleted ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1, 3])
def test_job_that_is_deleted_while_pending_or_running_leaves_nothing(cluster: WorkloadCluster, gpus: int) -> None:
    cluster.add_nodes(1, gpus=gpus)
    cluster.submit(gang_job("job", size=3))
    if gpus < 3:
        cluster.wait_until_refused(3, "GangDoesNotFit")
    else:
        cluster.wait_until_run("job-", 3)

    cluster.withdraw(JOB, "job")

    cluster.wait_until_nothing_is_left()


def test_deleted_namespace_leaves_nothing_and_its_room_and_quota_are_free(cluster: WorkloadCluster) -> None:
    cluster.add_nodes(3, gpus=1)
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}})
    cluster.submit(gang_job("runs", size=3, namespace="doomed"))
    cluster.wait_until_run("runs-", 3)
    cluster.submit(gang_job("waits", size=2, namespace="doomed"))
    eventually(cluster.waiting_groups, within_s=30.0, what="the second Job waits")

    cluster.api.delete("/api/v1/namespaces/doomed")

    cluster.wait_until_nothing_is_left()
    cluster.submit(gang_job("job", size=3))
    cluster.wait_until_run("job-", 3)
    assert [one["metadata"]["namespace"] for one in cluster.api.items(POD_GROUPS)] == ["default"]
