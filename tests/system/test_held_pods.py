"""Pods that our scheduling gate holds, as admission makes them: what they cost, and that each runs when its turn comes."""

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from app.model.marks import GATE
from tests.system.api import RUN_FOR, Api, Object, gang, pod
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import SCHEDULER_CONFIG, connected, install
from tests.system.observer import Observer
from tests.system.waiting import eventually
from tests.system.watched import DEFAULT_PODS, EVENTS, WITHIN_S, WatchedCluster, replica_set

QUEUE = "default-queue"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
FOREIGN = "example.com/approval"
METRICS_OPEN = ("--authorization-always-allow-paths=/metrics", "--authentication-tolerate-lookup-failure=true")

MANY = 5000
WATCHED_FOR_S = 10.0
"""How long CPU is counted, at the least."""


class HeldCluster(WatchedCluster):
    """A cluster whose kube-scheduler tells how often it tried to schedule pods."""

    def start_scheduler(self, bed: Bed) -> None:
        (self._scheduler_port,) = free_ports(1)
        bed.start_scheduler(
            connected(SCHEDULER_CONFIG.read_text()),
            name="own-scheduler",
            placeholders={"EXTENDER_URL": f"http://{HOST}:{self._webhooks}"},
            flags=[f"--secure-port={self._scheduler_port}", f"--bind-address={HOST}", *METRICS_OPEN],
        )

    def told(self, *beginnings: str) -> float:
        """Return the sum of kube-scheduler's metrics of which a line begins so."""
        # Its serving certificate signs itself and is made anew at each start.
        address = f"https://{HOST}:{self._scheduler_port}/metrics"
        text = httpx.get(address, verify=False, trust_env=False).raise_for_status().text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(beginnings))

    def filter_calls(self) -> float:
        """Return how often Leeboard was asked for a node."""
        text = httpx.get(f"http://{HOST}:{self._operations}/metrics", timeout=5.0).text
        name = "leeboard_webhook_duration_seconds_count"
        lines = [line for line in text.splitlines() if line.startswith(name) and 'verb="filter"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.fixture
def cluster(bed: Bed, api: Api) -> Iterator[HeldCluster]:
    install(api)
    with Observer(bed) as observer:
        cluster = HeldCluster(bed, api, observer, {})
        cluster.start_leeboard()
        cluster.start_scheduler(bed)
        try:
            yield cluster
            cluster.check()
        finally:
            cluster.stop()


def held(item: Object, *others: str) -> Object:
    """Return the pod as admission makes it; other objects as they are."""
    if item["kind"] == "Pod":
        item["spec"]["schedulingGates"] = [{"name": name} for name in (GATE, *others)]
    return item


def gates(api: Api, name: str) -> list[str]:
    return [gate["name"] for gate in api.get(f"{DEFAULT_PODS}/{name}")["spec"].get("schedulingGates", [])]


def test_pods_that_cannot_run_cost_kube_scheduler_no_attempt_while_others_come_and_go(cluster: HeldCluster) -> None:
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


def test_held_gang_runs_whole_and_held_pods_alone_run_when_there_is_room(cluster: HeldCluster) -> None:
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


def test_pod_waits_for_the_gates_of_others_and_charges_nobody_meanwhile(cluster: HeldCluster) -> None:
    cluster.add_nodes(1, gpus=2)
    cluster.api.create(held(pod("unapproved", queue=QUEUE), FOREIGN))
    cluster.api.create(pod("foreign", queue=QUEUE, spec={"schedulingGates": [{"name": FOREIGN}]}))
    cluster.api.create(held(pod("one", queue=QUEUE)))

    cluster.wait_until_run("one", 1)
    assert (gates(cluster.api, "unapproved"), gates(cluster.api, "foreign")) == ([GATE, FOREIGN], [FOREIGN])

    cluster.api.patch(f"{DEFAULT_PODS}/unapproved", {"spec": {"schedulingGates": [{"name": GATE}]}})

    cluster.wait_until_run("unapproved", 1)


def test_leeboard_rests_while_5000_pods_are_held_and_nothing_changes(bed: Bed, cluster: HeldCluster) -> None:
    cluster.add_nodes(100, gpus=8)
    crowd(cluster, MANY)
    eventually(
        lambda: len(cluster.api.items(EVENTS, fieldSelector="reason=NoNodeFits", limit=str(2 * MANY))),
        until=lambda told: told >= MANY,
        within_s=120,
        what="everybody has been told why",
        every_s=1.0,
    )
    used = cpu_share(bed, for_s=WATCHED_FOR_S)
    attempts = cluster.told("scheduler_schedule_attempts_total{")
    remove_crowd(cluster.api)

    print(f"Leeboard used {used:.2%} of a core with {MANY} pods held")
    assert (used < 0.01, attempts) == (True, 0)


def crowd(cluster: HeldCluster, number: int) -> None:
    """Have a controller make held pods that no node has room for."""
    cluster.api.create(replica_set("crowd", number, held(pod("unnamed", gpus=16, queue=QUEUE))))
    eventually(
        lambda: cluster.told('scheduler_pending_pods{queue="gated"'),
        until=lambda seen: seen == number,
        within_s=90,
        what=f"{number} pods are held",
    )


def remove_crowd(api: Api) -> None:
    """Remove them all at once: one by one that takes a minute."""
    api.call("DELETE", f"{REPLICA_SETS}/crowd", query={"propagationPolicy": "Orphan"})
    eventually(lambda: api.find(f"{REPLICA_SETS}/crowd"), until=lambda found: found is None, within_s=60, what="no owner")
    for collection in (DEFAULT_PODS, EVENTS):
        api.delete_now(collection)


def cpu_share(bed: Bed, *, for_s: float) -> float:
    """Return how much of one core Leeboard uses over some seconds."""
    child, began_s = bed.child("leeboard"), time.monotonic()
    before_s = child.cpu_s()
    threading.Event().wait(for_s)
    return (child.cpu_s() - before_s) / (time.monotonic() - began_s)


def test_pods_whose_release_is_cut_off_by_a_kill_all_run(cluster: HeldCluster) -> None:
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
