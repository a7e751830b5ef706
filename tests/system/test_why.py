"""A pod that waits for a queue or a node shows the true cause, with its numbers; once that is corrected, the pod runs.

`leeboard why`, the status of a PodGroup and one event say the same.
"""

from collections.abc import Iterator

import pytest

from tests.system.api import DEFAULT_PODS, Api, gang, job, pod, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.forms import Deployed, Form, deployed
from tests.system.stuck import Cause, Details, StuckCluster, stuck_cluster
from tests.system.waiting import eventually

TEAM = "team"
REST = "the controller of these pods has to create the rest."
JOBS = "/apis/batch/v1/namespaces/default/jobs"
RACK = "example.com/rack"
FIRM = {"priorityClassName": "build"}
ABOVE = {"priorityClassName": "build-preemptible"}
"""Labels of non-preemptible pods, and of pods of higher priority."""
OWN_PRIORITY = "pods of its own queue have the same or a higher priority"
NOBODY_LEAVES = f"no pod is evicted for it because {OWN_PRIORITY}"


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


# -- the queue, and the gang


def test_gang_that_lacks_a_member(cluster: StuckCluster) -> None:
    cluster.add_node("why-member", gpus=8)
    group, *others, last = gang("crew", size=5, queue=TEAM)
    details = {"minMember": 5, "exist": 4, "gated": 0}
    cause = Cause("NotReady", f"The gang is incomplete: 4 of 5 pods exist; {REST}", details)

    cluster.api.create_all([*others, group])

    cluster.wait_until_gang_stuck("crew", cause)
    cluster.api.create(last)
    cluster.wait_until_mended("crew", 5, told=cause)


def test_job_and_each_of_its_pods_show_the_podgroup_and_the_cause_when_they_are_described(
    cluster: StuckCluster,
) -> None:
    cluster.add_node("why-job", gpus=8)
    crew = job("crew", parallelism=2, template=pod("crew", gpus=8, queue=TEAM))
    crew["metadata"]["annotations"] = {"kai.scheduler/batch-min-member": "2"}

    made = cluster.api.create(crew)

    pods = eventually(
        lambda: cluster.api.items(DEFAULT_PODS, labelSelector="job-name=crew"),
        until=lambda seen: len(seen) == 2,
        within_s=30.0,
        what="the Job has two pods",
    )
    sentence = "Even empty, all nodes together hold at most 1 of 2 pods that start together."
    expected = [f"PodGroup pg-crew-{made['metadata']['uid']}: {sentence}"]
    for path in (f"{JOBS}/crew", *(f"{DEFAULT_PODS}/{one['metadata']['name']}" for one in pods)):
        cluster.wait_until_described(path, expected)


def test_gang_over_the_limit_of_its_queue(cluster: StuckCluster) -> None:
    cluster.add_node("why-limit", gpus=16)
    cluster.entitle(TEAM, limit=8)
    cluster.run("eight", 1, gpus=8, queue=TEAM)
    sentence = "Queue team has reached its limit of 8 GPUs: it holds 8 GPUs, and 2 GPUs are requested."
    details = {"queue": TEAM, "resource": "GPUs", "limit": "8", "allocated": "8", "requested": "2"}
    cause = Cause("OverLimit", sentence, details)

    cluster.api.create_all(gang("two", size=2, queue=TEAM))

    cluster.wait_until_gang_stuck("two", cause)
    cluster.entitle(TEAM, limit=10)
    cluster.wait_until_mended("two", 2, told=cause)


def test_non_preemptible_pod_over_the_quota_of_its_queue(cluster: StuckCluster) -> None:
    cluster.add_node("why-firm", gpus=8)
    cluster.entitle(TEAM, quota=2)
    cluster.run("one", 1, queue=TEAM, labels=FIRM)
    sentence = (
        "Non-preemptible workload is over quota. Workload requested 2 GPUs, but team quota is 2 GPUs, while 1 GPU is"
        " already allocated for non-preemptible pods. Use a preemptible workload to go over quota."
    )
    details = {"queue": TEAM, "resource": "GPUs", "deserved": "2", "allocated": "1", "requested": "2"}
    cause = Cause("NonPreemptibleOverQuota", sentence, details)

    cluster.api.create(pod("firm", gpus=2, queue=TEAM, labels=FIRM))

    cluster.wait_until_stuck("firm", cause)
    cluster.entitle(TEAM, quota=3)
    cluster.wait_until_mended("firm", 1, told=cause)


def test_pod_whose_queue_does_not_exist(cluster: StuckCluster) -> None:
    cluster.add_node("why-queue", gpus=1)
    cause = Cause(
        "QueueDoesNotExist", "Queue nowhere does not exist; create it, or name another queue.", {"queue": "nowhere"}
    )

    cluster.api.create(pod("lost", queue="nowhere"))

    cluster.wait_until_stuck("lost", cause)
    cluster.api.create(queue("nowhere"))
    cluster.wait_until_mended("lost", 1, told=cause)


def test_pod_behind_another_pod_of_its_queue(cluster: StuckCluster) -> None:
    cluster.add_node("why-behind", gpus=4)
    cluster.run("filler", 1, gpus=4, queue=TEAM, labels=ABOVE)
    for name, labels in (("first", ABOVE), ("second", {})):
        cluster.api.create(pod(name, gpus=4, queue=TEAM, labels=labels))
        cluster.wait_for_why(name, "at most 0 free")

    told = cluster.told("second")
    position = {"aheadInQueue": 1, "firstAhead": ["first"], "ahead": 1, "atLeast": False}
    assert (told["position"], told["queueNumbers"]["waitingPodGroups"]) == (position, 2)
    assert "position  behind 1 PodGroup in queue team: first\n" in cluster.shown("second")
    sentence = (
        "No node has room: the only node is reserved for default/first; queue team holds 8 GPUs and would exceed its"
        f" fair share of 4 GPUs with 4 GPUs more, so it reclaims nothing, and {OWN_PRIORITY}."
    )
    share = {"queue": TEAM, "fair_share": "4 GPUs", "allocated": "8 GPUs", "requested": "4 GPUs"}
    details = {**no_room(nodes=1), "promised": 1, **share}
    with cluster.slow_kubelets():
        cluster.api.delete(f"{DEFAULT_PODS}/filler-0")
        cluster.wait_until_told("second", Cause("NoNodeFits", sentence, details))
    cluster.wait_until_run("first", 1)
    cluster.delete("first", "filler-0")
    cluster.wait_until_run("second", 1)


def no_room(*, nodes: int, **counts: int) -> dict[str, int | str]:
    """Return the details for this number of nodes, all without a free GPU unless `counts` say more."""
    none = {"excluded": 0, "cpu_milli": 0, "memory_bytes": 0, "gpu_milli": 0, "pods": 0, "most_free_gpu_milli": 0}
    return {"nodes": nodes, **none, **counts}


def test_pod_behind_the_rest_of_a_gang_that_has_started(cluster: StuckCluster) -> None:
    for name, gpus in (("why-torn-0", 2), ("why-torn-1", 4)):
        cluster.add_node(name, gpus=gpus)
    group, *members = gang("torn", size=3, gpus=2, queue=TEAM)
    cluster.api.create_all([group, *members])
    nodes = cluster.wait_until_run("torn-", 3)
    lost = [one for one in members if nodes[one["metadata"]["name"]] == "why-torn-1"]
    cluster.delete(*(one["metadata"]["name"] for one in lost))
    cluster.run("filler", 1, gpus=2, queue=TEAM)
    cluster.api.create_all(lost)
    cluster.wait_for_why(lost[0]["metadata"]["name"], "Only 1 of 2 pods")
    sentence = (
        "1 PodGroup ahead of it takes the room that it needs; no node has room: 2 of 2 nodes have too few GPUs"
        f" (requested 2, at most 0 free); {NOBODY_LEAVES}."
    )
    cause = Cause("NoNodeFits", sentence, no_room(nodes=2, gpu_milli=2, behind=1))

    cluster.api.create(pod("small", gpus=2, queue=TEAM))

    cluster.wait_until_stuck("small", cause)
    cluster.delete("filler-0")
    cluster.wait_until_run("torn-", 3)
    assert cluster.running("small") == {}
    cluster.add_node("why-torn-2", gpus=2)
    cluster.wait_until_mended("small", 1, told=cause)


# -- the nodes


def test_pod_for_which_no_node_has_enough_memory(cluster: StuckCluster) -> None:
    for name in ("why-memory-0", "why-memory-1"):
        cluster.add_node(name, gpus=8, memory="256Gi")
    cluster.run("filler", 2, memory="200Gi", queue=TEAM)
    sentence = (
        "No node has room: 2 of 2 nodes have too little memory (requested 107.374 GB, at most 60.129 free);"
        f" {NOBODY_LEAVES}."
    )
    cause = Cause("NoNodeFits", sentence, no_room(nodes=2, memory_bytes=2, most_free_gpu_milli=7000))

    cluster.api.create(pod("large", memory="100Gi", queue=TEAM))

    cluster.wait_until_stuck("large", cause)
    cluster.delete("filler-0")
    cluster.wait_until_mended("large", 1, told=cause)


def test_pod_that_tolerates_no_taint(cluster: StuckCluster) -> None:
    cluster.add_node("why-taint-0", gpus=8, taints=[{"key": "example.com/broken", "effect": "NoSchedule"}])
    cluster.add_node("why-taint-1", gpus=1)
    sentence = (
        "No node could hold the pod even when empty: 1 of 2 nodes has too few GPUs (requested 2, at most 1 free), 1 has"
        " a taint that it does not tolerate (example.com/broken)."
    )
    details = no_room(nodes=2, gpu_milli=1, most_free_gpu_milli=1000, excluded=1, tainted=1, even_when_empty=0)
    cause = Cause("NoNodeFits", sentence, details)

    cluster.api.create(pod("two", gpus=2, queue=TEAM))

    cluster.wait_until_stuck("two", cause)
    cluster.untaint("why-taint-0")
    cluster.wait_until_mended("two", 1, told=cause)


def test_gang_for_which_the_required_rack_is_too_small(cluster: StuckCluster) -> None:
    head = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "hall"}}
    cluster.api.create({**head, "spec": {"levels": [{"nodeLabel": RACK}]}})
    for rack, gpus in (("left", 2), ("right", 3)):
        cluster.add_node(f"why-rack-{rack}", gpus=gpus, labels={RACK: rack})
    group, *members = gang("wide", size=4, queue=TEAM)
    group["spec"]["topologyConstraint"] = {"topology": "hall", "requiredTopologyLevel": RACK}
    sentence = (
        f"Of 2 domains of level {RACK}, none has room for 4 pods together: the best, right, has room for at most 3."
    )
    counts = {"domains": 2, "fitting": 3, "needed": 4, "even_when_empty": 3}
    details: Details = {"topology": "hall", "level": RACK, "best": "right", **counts}
    cause = Cause("GangDoesNotFit", sentence, details)

    cluster.api.create_all([*members, group])

    cluster.wait_until_gang_stuck("wide", cause)
    cluster.add_node("why-rack-more", gpus=1, labels={RACK: "right"})
    cluster.wait_until_mended("wide", 4, told=cause)
