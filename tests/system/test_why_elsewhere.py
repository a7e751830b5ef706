"""Causes outside of Leeboard are reported too: of kube-scheduler, policies, owners and victims.

Also deleted pods, and the events of a thousand pending pods.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.system.api import DEFAULT_PODS, POD_GROUPS, Api, Object, gang, pod, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.forms import Deployed, Form, deployed
from tests.system.sharing import Ground, SharingCluster, sharer
from tests.system.stuck import WITHIN_S, ZONE, Cause, Details, StuckCluster, stuck_cluster
from tests.system.test_lifecycle import gang_job
from tests.system.waiting import eventually
from tests.system.watched import EVENTS
from tests.system.workloads.kinds import JOB

TEAM = "team"
RESERVATION_QUOTAS = "/api/v1/namespaces/kai-resource-reservation/resourcequotas"
QUOTA_REFUSES = (
    "A GPU is not ready yet to be shared on node {node}:"
    ' its reservation pod cannot be written: 403 pods "<name>" is forbidden: exceeded quota: none, requested: pods=1,'
    " used: pods=0, limited: pods=0; it has waited since <time>."
)
MANY = 1000


@pytest.fixture(scope="module")
def leeboard(session_bed: Bed, session_api: Api) -> Iterator[Deployed]:
    """Leeboard as shipped, for all tests here."""
    with deployed(session_bed, session_api, Form.HELD, PLAIN_SCHEDULER) as running:
        yield running


@pytest.fixture
def cluster(leeboard: Deployed, bed: Bed, api: Api) -> Iterator[StuckCluster]:
    """A cluster without nodes, and with one queue that has no limit."""
    assert leeboard.bed is bed
    api.create(queue(TEAM))
    with stuck_cluster(leeboard) as cluster:
        yield cluster


@pytest.fixture
def sharing(leeboard: Deployed, bed: Bed) -> Iterator[SharingCluster]:
    """A cluster whose GPUs can be shared."""
    assert leeboard.bed is bed
    with Ground(leeboard, 0).cluster() as cluster:
        yield cluster


# -- kube-scheduler and the API server


def test_pod_whose_volume_is_in_a_full_zone(cluster: StuckCluster) -> None:
    for zone in ("a", "b"):
        cluster.add_node(f"why-zone-{zone}", gpus=1, labels={ZONE: zone})
        cluster.run(f"filler-{zone}", 1, queue=TEAM, spec={"nodeSelector": {ZONE: zone}})
    cluster.claim_volume("disk", zone="a")
    cluster.api.create(pod("zonal", queue=TEAM, spec=with_volume("disk")))
    eventually(lambda: cluster.warnings("zonal"), within_s=WITHIN_S, what="zonal is told of full nodes")
    sentence = (
        "The filters of kube-scheduler accept pod zonal on no node: 0/2 nodes are available: 1 Insufficient"
        " nvidia.com/gpu, 1 node(s) didn't match PersistentVolume's node affinity."
    )
    cause = Cause("RefusedByScheduler", sentence, {"pod": "zonal"})

    # Leeboard, which does not check volumes, allows it there.
    cluster.delete("filler-b-0")

    cluster.wait_until_told("zonal", cause)
    eventually(
        lambda: cluster.warnings("zonal")[1:],
        until=lambda told: told == [(cause.reason, cause.sentence)],
        within_s=WITHIN_S,
        what="one more event tells what kube-scheduler says",
    )
    cluster.delete("filler-a-0")
    assert cluster.wait_until_run("zonal", 1) == {"zonal": "why-zone-a"}
    assert [reason for reason, _ in cluster.warnings("zonal")] == ["NoNodeFits", "RefusedByScheduler"]


def with_volume(claim: str) -> Object:
    return {"volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]}


FROZEN = "is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: the cluster is frozen"
FREEZE = ("freeze", "pods/binding", "!object.metadata.name.startsWith('frozen')", "the cluster is frozen")


def test_pod_that_kube_scheduler_may_not_bind(cluster: StuckCluster) -> None:
    cluster.add_node("why-binding", gpus=1)
    cause = Cause("BackingOff", f'Kube-scheduler could not bind pod frozen: pods "frozen" {FROZEN}; <again>.')

    with cluster.policy(*FREEZE):
        cluster.api.create(pod("frozen", queue=TEAM))
        cluster.wait_until_stuck("frozen", cause)

    cluster.wait_until_mended("frozen", 1, told=cause)


def test_gang_that_leeboard_may_not_bind(cluster: StuckCluster) -> None:
    cluster.add_node("why-binding-us", gpus=1)
    cause = Cause("BackingOff", f'The API server refuses the binding: 422 pods "frozen-0" {FROZEN}; <again>.')

    with cluster.policy(*FREEZE):
        cluster.api.create_all(gang("frozen", size=1, queue=TEAM))
        cluster.wait_until_gang_stuck("frozen", cause)

    cluster.wait_until_mended("frozen", 1, told=cause)


# -- terminating pods, and shared GPUs


def test_gang_whose_victims_are_terminating_and_the_victims_themselves(cluster: StuckCluster) -> None:
    cluster.add_node("why-victims", gpus=4)
    lender = queue("a", deserved=2)
    # Otherwise b is told first that the pods of a are too young to be evicted.
    lender["spec"]["reclaimMinRuntime"] = "0s"
    cluster.api.create_all([lender, queue("b", deserved=2)])
    cluster.run("a", 4, queue="a")

    with cluster.slow_kubelets():
        cluster.api.create_all(gang("b", size=2, queue="b"))
        first, second = cluster.wait_until_evicted(2)
        cause = waits_for(first, second)
        cluster.wait_until_gang_stuck("b", cause)
        assert [one["name"] for one in cluster.told("b-0")["waitsFor"]] == [first, second]
        details = {"action": "reclaim", "for": "default/b"}
        said = f"Pod default/{first} was evicted for workload default/b, whose queue is below its fair share"
        assert cluster.cause(first) == Cause("Evicted", f"{said}; it has not ended yet.", details)

    cluster.wait_until_run("b-", 2)
    assert cluster.cause(first) == Cause("Evicted", f"{said}.", details)
    assert cluster.told(first)["state"] == "Evicted"
    cluster.wait_until_resolved("b")
    cluster.wait_for_event("b", cause)


def waits_for(first: str, second: str) -> Cause:
    sentence = (
        f"2 of 2 pods that have to leave for it have not ended yet (default/{first}, default/{second}); the room on"
        " node why-victims is reserved for it since <time>."
    )
    details: Details = {"node": "why-victims", "nodes": 1, "since": "<time>", "leaving": 2, "victims": 2}
    return Cause("WaitingForVictims", sentence, details)


def test_pod_that_shares_a_gpu_whose_reservation_pod_a_quota_forbids(
    cluster: StuckCluster, sharing: SharingCluster
) -> None:
    (node,) = sharing.add_gpu_nodes(1, gpus=1)
    cluster.expect(node, gpus=1)
    cause = Cause("WaitingForDevices", QUOTA_REFUSES.format(node=node), {"node": node, "since": "<time>"})

    with reservations_forbidden(cluster.api):
        cluster.api.create(sharer("half", "0.5"))
        cluster.wait_until_stuck("half", cause)

    sharing.wait_until_run("half")
    cluster.wait_for_event("half", cause)


@contextmanager
def reservations_forbidden(api: Api) -> Iterator[None]:
    """Put a quota of no pods in force in the namespace of reservation pods; no controller counts here."""
    hard = {"pods": "0"}
    metadata = {"name": "none", "namespace": "kai-resource-reservation"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
    api.call("POST", RESERVATION_QUOTAS, body=quota)
    try:
        api.patch(f"{RESERVATION_QUOTAS}/none/status", {"status": {"hard": hard, "used": hard}})
        yield
    finally:
        api.delete(f"{RESERVATION_QUOTAS}/none")


# -- the owner, and deleted pods


def test_gang_whose_owner_is_suspended(cluster: StuckCluster) -> None:
    cluster.add_node("why-suspended", gpus=2)
    cluster.submit(gang_job("job", size=3))
    cluster.wait_until_refused(3, "GangDoesNotFit")
    (group,) = (one["metadata"]["name"] for one in cluster.api.items(POD_GROUPS))
    cause = Cause("OwnerSuspended", "Job job is suspended (spec.suspend is true); set it to false to go on.")

    cluster.change(JOB, "job", {"suspend": True})

    cluster.wait_until_told(f"podgroup/{group}", cause)
    cluster.wait_for_condition(group, cause)
    # The owner did this: there is no warning.
    assert {reason for reason, _ in cluster.warnings(group)} <= {"GangDoesNotFit"}
    cluster.add_node("why-resumed", gpus=1)
    cluster.change(JOB, "job", {"suspend": False})
    cluster.wait_until_run("job-", 3)
    cluster.wait_until_resolved(group)


def test_deleted_pod(cluster: StuckCluster) -> None:
    cluster.add_node("why-gone", gpus=1)
    cluster.run("short", 1, queue=TEAM)

    cluster.delete("short-0")

    sentence = "Pod default/short-0 does not exist any more: it has ended or was deleted."
    cluster.wait_until_told("short-0", Cause("Gone", sentence, {"action": "allocate"}))
    # The watch of pods may be ahead of that of nodes: then it was refused before its node was seen.
    last, *before = cluster.told("short-0")["decisions"]
    assert (last["outcome"], last["sentence"]) == ("Started", "A place on node why-gone was reserved for it.")
    assert [(one["outcome"], one["cause"]) for one in before] in ([], [("Refused", "NoNodeFits")])


# -- many pods


def test_thousand_pods_get_one_event_for_each_cause_although_its_numbers_change(cluster: StuckCluster) -> None:
    # By default Leeboard writes the causes of 20 owners a second.
    cluster.start_again(status_interval_s="0.1")
    cluster.add_node("why-many", gpus=1)
    cluster.entitle(TEAM, limit=0)
    names = [f"many-{number}" for number in range(MANY)]

    cluster.api.create_all(pod(name, gpus=2, queue=TEAM) for name in names)
    wait_for_events(cluster, "OverLimit")
    cluster.entitle(TEAM, limit=1)
    cluster.wait_for_why("many-0", "the limit of queue team is 1 GPU")
    wait_until_told_by_event(cluster, "lost")
    cluster.entitle(TEAM, limit=-1)
    wait_for_events(cluster, "NoNodeFits")
    wait_until_told_by_event(cluster, "last")

    told = Counter((one["regarding"]["name"], one["reason"]) for one in cluster.warnings_of("many-"))
    assert told == {(name, reason): 1 for name in names for reason in ("OverLimit", "NoNodeFits")}
    for collection in (DEFAULT_PODS, EVENTS):
        cluster.api.delete_now(collection)


def wait_until_told_by_event(cluster: StuckCluster, name: str) -> None:
    """Wait for the event of one more pending pod: earlier events for other pods have been started by then."""
    cluster.api.create(pod(name, queue="nowhere"))
    eventually(lambda: cluster.warnings(name), within_s=WITHIN_S, what=f"{name} is told why it waits")


def wait_for_events(cluster: StuckCluster, reason: str) -> None:
    eventually(
        lambda: len(cluster.api.items(EVENTS, fieldSelector=f"reason={reason}")),
        until=lambda told: told >= MANY,
        within_s=60.0,
        what=f"{MANY} pods are told {reason}",
        every_s=0.5,
    )
