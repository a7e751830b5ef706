"""Pods spared for a PodDisruptionBudget, on an API server that enforces it."""

from collections.abc import Iterator

import pytest

from app.kube.client import KubeCluster
from app.model.names import PodUid
from app.model.seam import PodRef
from tests.system.api import DEFAULT_PODS, Api, Object, gang, gpu_node, pod, queue
from tests.system.bed import Bed
from tests.system.cluster import install
from tests.system.identities import User
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S, WatchedCluster, leaves, replica_set, watched

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def cluster(bed: Bed, api: Api) -> Iterator[WatchedCluster]:
    with watched(bed, api, preset="kai") as cluster:
        yield cluster


def guard(api: Api, app: str, min_available: int | str) -> None:
    """Create a PodDisruptionBudget for the pods of this label, and wait until it allows no disruption."""
    spec = {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    api.create({**head, "metadata": {"name": app, "namespace": "default"}, "spec": spec})
    eventually(
        lambda: api.get(f"{BUDGETS}/{app}").get("status", {}),
        until=lambda seen: seen.get("currentHealthy", 0) > 0 and seen["disruptionsAllowed"] == 0,
        within_s=WITHIN_S,
        what="the budget has counted its pods",
    )


def test_pods_that_a_budget_protects_are_spared_although_they_are_the_youngest(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    cluster.api.create_all(queue(name, deserved=2) for name in ("a", "b"))
    cluster.run("old", 2, queue="a")
    cluster.api.create(replica_set("young", 2, pod("unnamed", queue="a")))
    young = cluster.wait_until_run("young-", 2)
    guard(cluster.api, "young", "100%")

    cluster.api.create_all(gang("poor", size=2, queue="b"))

    cluster.wait_until_run("poor-", 2)
    assert cluster.evicted() == ["old-0", "old-1"]
    assert cluster.running("young-") == young
    assert cluster.metric("leeboard_disruption_budgets_overridden_total") == 0


async def test_a_dry_run_eviction_with_our_own_rights_is_answered_and_evicts_no_pod(bed: Bed, api: Api) -> None:
    install(api)
    api.create(gpu_node("budget-question", gpus=2))
    guarded, free = (running(api, name) for name in ("guarded", "free"))
    guard(api, "guarded", 1)

    async with await KubeCluster.connect(str(bed.kubeconfig(User.LEEBOARD))) as client:
        asked = (await client.tight_budgets(), await client.may_evict(guarded), await client.may_evict(free))

    assert asked == (frozenset({"default"}), False, True)
    assert not any(leaves(seen(api, one)) for one in (guarded, free))
    api.delete(f"{BUDGETS}/guarded")


def running(api: Api, name: str) -> PodRef:
    """Run a pod that no scheduler handles."""
    made = api.create(pod(name, labels={"app": name}, spec={"nodeName": "budget-question"}))
    api.wait_for_phase("Running", name, within_s=WITHIN_S)
    return PodRef(namespace="default", name=name, uid=PodUid(made["metadata"]["uid"]))


def seen(api: Api, one: PodRef) -> Object:
    return api.get(f"{DEFAULT_PODS}/{one.name}")
