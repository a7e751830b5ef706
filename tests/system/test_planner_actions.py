"""The effects of a plan on running pods: which are evicted for which, how many, and no eviction is useless."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.system.api import DEFAULT_PODS, Api, gang, pod, pod_group, queue
from tests.system.bed import Bed
from tests.system.waiting import eventually
from tests.system.watched import OWED_NOTHING, WITHIN_S, WatchedCluster, replica_set, watched

ROOM_IS_HELD = "that have to leave for it have not ended yet"
"""How it is told that victims have yet to leave."""

ROOM_IS_FREED = "not ended yet"
"""The message after a restart, which forgets the victims: one pod or all may be terminating by then."""


@pytest.fixture
def cluster(bed: Bed, api: Api) -> Iterator[WatchedCluster]:
    """Leeboard by the rules of KAI, which do not protect pods that have just started; no nodes yet."""
    with watched(bed, api, preset="kai") as cluster:
        yield cluster


def two_queues(cluster: WatchedCluster, *, a: int, b: int) -> None:
    """Create queues `a` and `b`, which deserve this number of GPUs."""
    cluster.api.create_all(
        [queue("both"), queue("a", parent="both", deserved=a), queue("b", parent="both", deserved=b)]
    )


# -- reclaim


def test_gang_reclaims_the_deserved_share_of_its_queue_from_the_youngest_pods(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=8)
    two_queues(cluster, a=4, b=4)
    cluster.run("old", 4, queue="a")
    cluster.run("young", 4, queue="a")

    cluster.api.create_all(gang("b", size=4, queue="b"))

    cluster.wait_until_run("b-", 4)
    assert cluster.evicted() == ["young-0", "young-1", "young-2", "young-3"]
    assert sorted(cluster.running("old-")) == ["old-0", "old-1", "old-2", "old-3"]
    told = cluster.wait_for_events("Evict", 4)
    assert sorted((event["regarding"]["name"], event["note"]) for event in told) == [
        (name, f"Pod default/{name} was evicted for workload default/b, whose queue is below its fair share")
        for name in cluster.evicted()
    ]


def test_no_further_pod_is_evicted_after_a_reclaim_whatever_the_number_of_plans(cluster: WatchedCluster) -> None:
    cluster.add_nodes(2, gpus=4)
    two_queues(cluster, a=4, b=4)
    cluster.api.create(replica_set("a", 8, pod("unnamed", queue="a")))
    cluster.wait_until_run("a-", 8)

    cluster.api.create_all(gang("b", size=4, queue="b"))

    cluster.wait_until_run("b-", 4)
    evicted = cluster.evicted()
    assert len(evicted) == 4
    # The ReplicaSet has created replacements, which are pending.
    cluster.search_again("a")
    assert cluster.evicted() == evicted
    assert (len(cluster.running("a-")), len(cluster.running("b-"))) == (4, 4)


def test_later_queue_gets_its_fair_share_of_what_no_queue_deserves(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=8)
    shares = [queue(name, parent="both", deserved=0, over_quota_weight=weight) for name, weight in (("a", 1), ("b", 3))]
    cluster.api.create_all([queue("both"), *shares])
    cluster.api.create(replica_set("a", 8, pod("unnamed", queue="a")))
    cluster.wait_until_run("a-", 8)

    cluster.api.create(replica_set("b", 8, pod("unnamed", queue="b")))

    cluster.wait_until_run("b-", 6)
    cluster.search_again("a", times=2)
    assert (len(cluster.running("a-")), len(cluster.running("b-"))) == (2, 6)
    assert len(cluster.evicted()) == 6


def test_no_pod_is_evicted_for_a_queue_at_its_share_and_the_message_says_so(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=8)
    two_queues(cluster, a=4, b=4)
    cluster.run("a", 4, queue="a")
    cluster.run("b", 4, queue="b")

    cluster.api.create_all(gang("more", size=2, queue="a"))

    said = cluster.wait_for_why("more-0", OWED_NOTHING)
    assert "None of 2 pods that start together finds room now" in said
    assert "queue a holds 4 GPUs and would exceed its fair share of 4 GPUs with 2 GPUs more" in said
    told = {event["regarding"]["name"] for event in cluster.wait_for_events("GangDoesNotFit", 3)}
    assert told == {"more", "more-0", "more-1"}
    cluster.search_again("a", times=3)
    assert cluster.evicted() == []


def test_pods_are_protected_from_reclaim_for_the_min_runtime_of_their_queue(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    two_queues(cluster, a=2, b=2)
    protect(cluster, "a", "1h")
    cluster.run("a", 4, queue="a")

    cluster.api.create_all(gang("b", size=2, queue="b"))

    cluster.wait_for_why("b-0", "pods that hold the room have not run for their min-runtime yet")
    assert cluster.evicted() == []
    protect(cluster, "a", "0s")
    cluster.wait_until_run("b-", 2)
    assert len(cluster.evicted()) == 2


def protect(cluster: WatchedCluster, name: str, min_runtime: str) -> None:
    """Protect pods of a queue from reclaim for this time after their start."""
    cluster.api.patch(f"/apis/scheduling.run.ai/v2/queues/{name}", {"spec": {"reclaimMinRuntime": min_runtime}})


def test_disruption_budget_of_the_victims_is_overridden_and_this_is_reported(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=4)
    two_queues(cluster, a=2, b=2)
    cluster.run("a", 4, queue="a", labels={"app": "guarded"})
    guard(cluster, "guarded", pods=4)

    cluster.api.create_all(gang("b", size=2, queue="b"))

    cluster.wait_until_run("b-", 2)
    assert len(cluster.evicted()) == 2
    told = cluster.wait_for_events("DisruptionBudgetOverridden", 2)
    assert sorted(event["regarding"]["name"] for event in told) == cluster.evicted()
    assert cluster.metric("leeboard_disruption_budgets_overridden_total") == 2


def guard(cluster: WatchedCluster, app: str, *, pods: int) -> None:
    """Create a PodDisruptionBudget that allows no disruption of these pods, and wait until it is in force."""
    spec = {"minAvailable": pods, "selector": {"matchLabels": {"app": app}}}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app}}
    cluster.api.create({**head, "spec": spec})
    eventually(
        lambda: cluster.api.get(f"/apis/policy/v1/namespaces/default/poddisruptionbudgets/{app}").get("status", {}),
        until=lambda status: status.get("currentHealthy") == pods,
        within_s=WITHIN_S,
        what="the budget has counted its pods",
    )


def test_room_is_kept_for_the_gang_until_its_victims_are_gone(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=8)
    two_queues(cluster, a=4, b=4)
    cluster.run("a", 8, queue="a")

    with cluster.slow_kubelets():
        cluster.api.create_all(gang("b", size=4, queue="b"))
        evicted = cluster.wait_until_evicted(4)
        cluster.wait_for_why("b-0", ROOM_IS_HELD)
        cluster.search_again("a", times=3)
        assert cluster.evicted() == evicted
        for name in evicted:
            wait_for_disruption(
                cluster,
                name,
                f"Pod default/{name} was evicted for workload default/b, whose queue is below its fair share",
            )
        assert cluster.running("b-") == {}

    cluster.wait_until_run("b-", 4)
    assert cluster.evicted() == evicted


def wait_for_disruption(cluster: WatchedCluster, name: str, message: str) -> None:
    """Wait for this text in a pod's condition DisruptionTarget: for a moment it has that of the Eviction API."""

    def told() -> list[tuple[str, str]]:
        conditions = cluster.api.get(f"{DEFAULT_PODS}/{name}")["status"]["conditions"]
        return [(one["reason"], one["message"]) for one in conditions if one["type"] == "DisruptionTarget"]

    expected = [("PreemptionByScheduler", message)]
    eventually(told, until=lambda seen: seen == expected, within_s=WITHIN_S, what=f"{name} says why it leaves")


@pytest.mark.parametrize("kubelets", ["fast", "slow"])
def test_gang_runs_and_no_further_pod_is_evicted_although_leeboard_is_killed_at_the_first(
    cluster: WatchedCluster, kubelets: str
) -> None:
    cluster.add_nodes(2, gpus=4)
    two_queues(cluster, a=4, b=4)
    cluster.run("a", 8, queue="a")

    with cluster.slow_kubelets() if kubelets == "slow" else nullcontext():
        cluster.api.create_all(gang("b", size=4, queue="b"))
        cluster.wait_until_evicted(1)
        cluster.kill_leeboard()
        cluster.start_leeboard()
        cluster.wait_until_evicted(4)
        if kubelets == "slow":
            cluster.wait_for_why("b-0", ROOM_IS_FREED)
            cluster.search_again("a", times=2)

    cluster.wait_until_run("b-", 4)
    cluster.search_again("a", times=2)
    assert len(cluster.evicted()) == 4
    assert len(cluster.running("a-")) == 4


# -- an elastic PodGroup


def test_elastic_gang_shrinks_pod_by_pod_to_its_minimum_and_grows_again(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=6)
    two_queues(cluster, a=2, b=4)
    cluster.api.create(pod_group("a", min_member=2, queue="a"))
    cluster.api.create(replica_set("a", 6, pod("unnamed", queue="a", gang="a")))
    cluster.wait_until_run("a-", 6)

    for number in range(1, 5):
        cluster.api.create(pod(f"b-{number}", queue="b"))
        cluster.wait_until_run("b-", number)
        assert len(cluster.evicted()) == number
    cluster.search_again("b", times=2)
    assert len(cluster.running("a-")) == 2
    cluster.delete(*cluster.running("b-"))
    cluster.wait_until_run("a-", 6)

    assert len(cluster.evicted()) == 4


# -- preempt


def test_pod_of_higher_priority_preempts_the_youngest_of_the_lowest(cluster: WatchedCluster) -> None:
    cluster.add_nodes(1, gpus=3)
    cluster.api.create(queue("team", deserved=3))
    for name in ("train-old", "train-young"):
        cluster.run(name, 1, queue="team", labels={"priorityClassName": "train"})
    cluster.run("middle", 1, queue="team", labels={"priorityClassName": "build-preemptible"})

    cluster.api.create(pod("build", queue="team", labels={"priorityClassName": "build"}))

    cluster.wait_until_run("build", 1)
    assert cluster.evicted() == ["train-young-0"]
    assert sorted(cluster.running()) == ["build", "middle-0", "train-old-0"]


# -- consolidate


def test_pods_of_one_fragmented_node_move_to_the_other_for_a_pod_that_needs_a_whole_node(
    cluster: WatchedCluster,
) -> None:
    two_nodes_half_full(cluster)

    cluster.api.create(pod("whole", gpus=4, queue="default-queue"))

    cluster.wait_until_run("whole", 1)
    cluster.wait_until_run("half", 4)
    assert len(cluster.evicted()) == 2
    nodes = cluster.running()
    assert {node for name, node in nodes.items() if name != "whole"}.isdisjoint({nodes["whole"]})


def two_nodes_half_full(cluster: WatchedCluster) -> None:
    """Run four pods of a ReplicaSet on two nodes of four GPUs, two on each."""
    (first,) = cluster.add_nodes(1, gpus=4)
    cluster.run("filler", 2, queue="default-queue")
    cluster.api.create(replica_set("half", 4, pod("unnamed", queue="default-queue")))
    cluster.wait_until_run("half", 2)
    (second,) = cluster.add_nodes(1, gpus=4)
    halves = cluster.wait_until_run("half", 4)
    cluster.delete("filler-0", "filler-1")
    assert sorted(halves.values()) == [first, first, second, second]
