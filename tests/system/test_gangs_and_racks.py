"""Broken gangs, and gangs with a topology, as their owners see them."""

from collections.abc import Iterator, Mapping

import pytest

from tests.system.api import RUN_FOR, Api, Object, gang, pod, pod_group
from tests.system.bed import Bed
from tests.system.waiting import eventually
from tests.system.watched import DEFAULT_GROUPS, WITHIN_S, WatchedCluster, watched
from tests.system.workloads.submitted import batch_job, template

RACK, RACK_ALIAS = "example.com/rack", "rack"
STALE_GRACE_S = 2.0


@pytest.fixture
def cluster(bed: Bed, api: Api) -> Iterator[WatchedCluster]:
    """Leeboard with a short grace period for gangs that have lost a member; no nodes yet."""
    with watched(bed, api, stale_grace_s=str(STALE_GRACE_S)) as cluster:
        yield cluster


# -- stale gangs


def test_gang_that_lost_a_member_is_evicted_after_its_grace_period_and_one_that_succeeds_is_not(
    cluster: WatchedCluster,
) -> None:
    cluster.add_nodes(1, gpus=8)
    cluster.api.create_all([*gang("broken", size=4, queue="default-queue"), *ending_gang("ending", size=4)])
    cluster.wait_until_run("broken-", 4)
    cluster.api.wait_for_phase("Succeeded", "ending-0", within_s=WITHIN_S)

    cluster.delete("broken-3")

    cluster.wait_until_run("broken-", 0)
    assert cluster.evicted() == ["broken-0", "broken-1", "broken-2"]
    assert sorted(cluster.running("ending-")) == ["ending-1", "ending-2", "ending-3"]
    assert seconds_to_first_eviction(cluster) > STALE_GRACE_S / 2
    (told,) = cluster.wait_for_events("StaleJob")
    assert told["regarding"]["name"] == "broken"
    assert told["note"] == "The gang is incomplete: 3 pods run, and at least 4 must"


def ending_gang(name: str, *, size: int) -> list[Object]:
    """Build a gang whose first member succeeds at once."""
    group, first, *others = gang(name, size=size, queue="default-queue")
    first["metadata"]["annotations"][RUN_FOR] = "100ms"
    first["spec"]["restartPolicy"] = "Never"
    return [group, first, *others]


def seconds_to_first_eviction(cluster: WatchedCluster) -> float:
    """Return the time between the first and the second deletion."""

    def departures(_: object) -> list[float]:
        return [sight.at_s for sight in cluster.observer.history() if sight.gone]

    cluster.observer.wait_for(lambda pods: len(departures(pods)) > 1, within_s=WITHIN_S, what="two are gone")
    first, second, *_ = departures(())
    return second - first


# -- racks


def test_gang_is_placed_in_the_one_rack_that_holds_it(cluster: WatchedCluster) -> None:
    racks = add_racks(cluster, small=2, large=4)

    cluster.api.create_all(gang_in_a_rack("close", size=6))

    nodes = cluster.wait_until_run("close-", 6)
    assert {racks[node] for node in nodes.values()} == {"large"}


def test_job_that_names_the_rack_level_by_its_alias_is_placed_in_one_rack(cluster: WatchedCluster) -> None:
    racks = add_racks(cluster, small=2, large=4)
    job = batch_job("close", template(), parallelism=6, queue="default-queue")
    by_alias = {"kai.scheduler/topology": "hall", "kai.scheduler/topology-required-placement": RACK_ALIAS}
    job["metadata"]["annotations"] = {"kai.scheduler/batch-min-member": "6", **by_alias}

    cluster.api.create(job)

    nodes = cluster.wait_until_run("close-", 6)
    assert {racks[node] for node in nodes.values()} == {"large"}


def test_pending_gang_that_fits_in_no_rack_shows_the_level_and_the_numbers(cluster: WatchedCluster) -> None:
    add_racks(cluster, small=2, large=4)

    cluster.api.create_all(gang_in_a_rack("wide", size=9))

    expected = (
        f"Of 2 domains of level {RACK}, none has room for 9 pods together: the best, large, has room for at most 8"
    )
    # Before Leeboard has seen all nodes, it counts fewer domains.
    cluster.wait_for_why("wide-0", expected)
    told = cluster.wait_for_events("GangDoesNotFit")
    assert all(expected in event["note"] for event in told)
    told_to_group = [event for event in told if event["regarding"]["kind"] == "PodGroup"]
    assert [event["regarding"]["name"] for event in told_to_group] == ["wide"]
    assert expected in eventually(lambda: said_of(cluster, "wide"), within_s=WITHIN_S, what="its status says why")
    assert cluster.running() == {}


def said_of(cluster: WatchedCluster, name: str) -> str:
    """Return the message of a PodGroup's status; empty while there is none."""
    conditions = cluster.api.get(f"{DEFAULT_GROUPS}/{name}").get("status", {}).get("schedulingConditions") or [{}]
    return str(conditions[0].get("message", ""))


def test_each_sub_group_is_placed_in_one_rack(cluster: WatchedCluster) -> None:
    racks = add_racks(cluster, tiny=1, left=2, right=2)
    names = ("prefill", "decode")
    parts = [{"name": name, "minMember": 4, "topologyConstraint": in_a_rack()} for name in names]

    cluster.api.create(pod_group("serving", min_member=8, queue="default-queue", subGroups=parts))
    cluster.api.create_all(member("serving", name, index) for name in names for index in range(4))

    cluster.wait_until_run("", 8)
    landed = {name: {racks[node] for node in cluster.running(name).values()} for name in names}
    assert sorted(landed.values(), key=str) == [{"left"}, {"right"}]


def member(group: str, sub_group: str, index: int) -> Object:
    labels = {"kai.scheduler/subgroup-name": sub_group}
    return pod(f"{sub_group}-{index}", queue="default-queue", gang=group, labels=labels)


def add_racks(cluster: WatchedCluster, **gpus: int) -> Mapping[str, str]:
    """Create a Topology and racks of two nodes with this number of GPUs each; return the rack of each node."""
    levels = [{"nodeLabel": RACK, "alias": RACK_ALIAS}, {"nodeLabel": "kubernetes.io/hostname"}]
    head = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "hall"}}
    cluster.api.create({**head, "spec": {"levels": levels}})
    return {node: rack for rack, each in gpus.items() for node in cluster.add_nodes(2, gpus=each, labels={RACK: rack})}


def in_a_rack() -> Object:
    return {"topology": "hall", "requiredTopologyLevel": RACK}


def gang_in_a_rack(name: str, *, size: int) -> list[Object]:
    """Build a gang whose members must all run in one rack."""
    group, *members = gang(name, size=size, queue="default-queue")
    group["spec"]["topologyConstraint"] = in_a_rack()
    return [group, *members]
