"""Pods with our scheduling gate cost kube-scheduler nothing, and run when their turn is reached, whatever happens."""

from collections.abc import Iterator

import pytest

from app.model.marks import GATE
from tests.system.api import DEFAULT_PODS, RUN_FOR, Api, gang, pod
from tests.system.bed import Bed
from tests.system.held import HeldCluster, gates, held, holding
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S

QUEUE = "default-queue"
FOREIGN = "example.com/approval"


@pytest.fixture
def cluster(bed: Bed, api: Api) -> Iterator[HeldCluster]:
    with holding(bed, api) as cluster:
        yield cluster


def test_pods_that_cannot_run_cost_kube_scheduler_no_attempt_while_others_start_and_end(cluster: HeldCluster) -> None:
    cluster.add_nodes(4, gpus=2)
    cluster.api.create_all(held(pod(f"large-{index}", gpus=4, queue=QUEUE)) for index in range(200))
    cluster.wait_for_why("large-199", "GPU")

    passing = [held(pod(f"passing-{index}", queue=QUEUE, annotations={RUN_FOR: "100ms"})) for index in range(100)]
    cluster.api.create_all(passing)
    names = {one["metadata"]["name"] for one in passing}
    eventually(
        lambda: {sight.name for sight in cluster.observer.history() if sight.node},
        until=lambda seen: seen == names,
        within_s=60,
        what="all 100 have run",
    )

    eventually(
        lambda: (
            cluster.told("scheduler_schedule_attempts_total{"),
            cluster.told("scheduler_pod_scheduling_attempts_sum"),
            cluster.told('scheduler_pending_pods{queue="gated"'),
        ),
        until=lambda seen: seen[0] == seen[1] and seen[2] == 200,
        within_s=5,
        what="every attempt was one at a pod that was scheduled, and 200 pods are gated",
    )
    assert cluster.filter_calls() <= cluster.told("scheduler_schedule_attempts_total{")


def test_gated_gang_runs_whole_and_gated_single_pods_run_when_there_is_room(cluster: HeldCluster) -> None:
    cluster.add_nodes(1, gpus=1)
    cluster.api.create_all(map(held, gang("crew", size=12, queue=QUEUE)))
    cluster.wait_for_why("crew-0", "12 pods")
    cluster.api.create_all(held(pod(f"alone-{index}", queue=QUEUE)) for index in range(4))
    cluster.wait_until_run("alone-", 1)
    assert cluster.running("crew-") == {}

    cluster.add_nodes(2, gpus=8)

    cluster.wait_until_run("crew-", 12)
    cluster.wait_until_run("alone-", 4)
    assert gates(cluster.api, "crew-0") == []


def test_pod_waits_for_the_gates_of_others_and_is_not_charged_meanwhile(cluster: HeldCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.api.create(held(pod("unapproved", queue=QUEUE), FOREIGN))
    cluster.api.create(pod("foreign", queue=QUEUE, spec={"schedulingGates": [{"name": FOREIGN}]}))
    cluster.api.create(held(pod("one", queue=QUEUE)))

    cluster.wait_until_run("one", 1)
    assert (gates(cluster.api, "unapproved"), gates(cluster.api, "foreign")) == ([GATE, FOREIGN], [FOREIGN])

    cluster.api.patch(f"{DEFAULT_PODS}/unapproved", {"spec": {"schedulingGates": [{"name": GATE}]}})

    cluster.wait_until_run("unapproved", 1)


def test_pods_whose_release_is_interrupted_by_a_kill_all_run(cluster: HeldCluster) -> None:
    cluster.add_nodes(40, gpus=8)
    cluster.api.create_all(map(held, gang("crew", size=100, queue=QUEUE)))
    cluster.api.create_all(held(pod(f"alone-{index}", queue=QUEUE)) for index in range(200))
    cluster.observer.wait_for(lambda pods: sum(bool(one.node) for one in pods) >= 30, within_s=WITHIN_S, what="30 run")

    cluster.kill_leeboard()
    still_held = sum(bool(gates(cluster.api, one.name)) for one in cluster.observer.present())
    cluster.start_leeboard()

    cluster.wait_until_run("", 300)
    print(f"{still_held} of 300 were still held when Leeboard was killed")
    assert 0 < still_held < 300
