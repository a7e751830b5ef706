"""The main features as a user sees them, in every form: real kube-scheduler, real API server, Leeboard between them."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.system.api import DEFAULT_PODS, Api, Object, gang, gpu_node, pod, pod_group, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.forms import Deployed, Form, deployed
from tests.system.waiting import eventually

_node_numbers = count()


@pytest.fixture(scope="module", params=Form, ids=lambda form: form.value)
def leeboard(session_bed: Bed, session_api: Api, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    """Leeboard and its kube-scheduler, as shipped, in one form after the other."""
    with deployed(session_bed, session_api, request.param, PLAIN_SCHEDULER) as running:
        yield running


@pytest.fixture
def cluster(leeboard: Deployed, bed: Bed, api: Api) -> Api:
    """The cluster with Leeboard in it; no nodes yet, and only the default queues."""
    assert leeboard.bed is bed
    for item in documents(DEFAULT_QUEUES):
        api.apply(item)
    return api


def add_nodes(api: Api, number: int, *, gpus: int = 8, **more: object) -> list[str]:
    """Create nodes with names that no other test uses."""
    nodes = [gpu_node(f"n{next(_node_numbers):03}", gpus=gpus, **more) for _ in range(number)]  # type: ignore[arg-type] # free-form by design
    api.create_all(nodes)
    return [node["metadata"]["name"] for node in nodes]


def bound(api: Api, prefix: str) -> list[str]:
    """Return the names of the bound pods that begin with `prefix`."""
    return sorted(name for name in api.bound_pods() if name.startswith(prefix))


def scheduled_message(api: Api, name: str) -> str:
    """Return the message of the pod's PodScheduled condition."""
    found = api.get(f"{DEFAULT_PODS}/{name}")
    conditions = found.get("status", {}).get("conditions", [])
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")


def wait_for_reason(leeboard: Deployed, name: str, reason: str) -> None:
    """Wait until the pod's condition has this reason; kube-scheduler repeats it for pods that it has filtered."""
    said = f"{name}: {reason}"
    eventually(lambda: leeboard.why(name).get("reason"), until=lambda one: one == reason, within_s=15, what=said)
    if leeboard.form is Form.EXTENDER_ONLY:
        look = f"{name} reads {reason}"
        eventually(
            lambda: scheduled_message(leeboard.api, name), until=lambda text: reason in text, within_s=15, what=look
        )


def watch_bound(api: Api, prefix: str, *, for_s: float) -> int:
    """Return the largest number of pods of this prefix that were bound at once, during some seconds."""
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, len(bound(api, prefix)))
        return False

    with pytest.raises(AssertionError):
        eventually(look, within_s=for_s, what="never")
    return most


def test_pod_of_a_queue_becomes_running(cluster: Api) -> None:
    add_nodes(cluster, 1)

    cluster.create(pod("train", queue="default-queue"))

    cluster.wait_for_phase("Running", "train", within_s=20)


def test_one_of_two_rival_gangs_runs_whole_and_the_other_when_it_is_gone(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 1, gpus=8)
    for name in ("red", "blue"):
        cluster.create_all(gang(name, size=6, queue="default-queue"))

    eventually(lambda: len(cluster.bound_pods()), until=lambda number: number == 6, within_s=20, what="one gang runs")
    winner, loser = ("red", "blue") if bound(cluster, "red") else ("blue", "red")
    assert len(bound(cluster, winner)) == 6
    assert watch_bound(cluster, loser, for_s=3) == 0
    wait_for_reason(leeboard, f"{loser}-0", "GangDoesNotFit")

    for index in range(6):
        cluster.delete_now(f"{DEFAULT_PODS}/{winner}-{index}")
    eventually(lambda: len(bound(cluster, loser)), until=lambda number: number == 6, within_s=2, what="the other runs")


def test_gang_that_lacks_a_member_is_not_bound_and_says_so(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 1)
    *objects, _missing = gang("five", size=5, queue="default-queue")

    cluster.create_all(objects)

    wait_for_reason(leeboard, "five-0", "NotReady")
    assert watch_bound(cluster, "five", for_s=2) == 0
    cluster.create(pod("five-4", queue="default-queue", gang="five"))
    cluster.wait_for_phase("Running", *(f"five-{index}" for index in range(5)), within_s=20)


def test_gang_with_a_member_that_only_kube_scheduler_refuses_is_never_bound(cluster: Api, leeboard: Deployed) -> None:
    (node,) = add_nodes(cluster, 1, gpus=16)
    cluster.create(pod("hermit", queue="default-queue", labels={"app": "hermit"}))
    cluster.wait_for_phase("Running", "hermit", within_s=20)
    *others, last = gang("eight", size=8, queue="default-queue")
    last["spec"]["affinity"] = avoiding("hermit")

    cluster.create_all([*others, last])

    assert watch_bound(cluster, "eight", for_s=8) == 0
    wait_for_reason(leeboard, "eight-0", "RefusedByScheduler")
    cluster.delete_now(f"{DEFAULT_PODS}/hermit")
    eventually(
        lambda: len(bound(cluster, "eight")), until=lambda number: number == 8, within_s=15, what="it runs whole"
    )
    assert set(cluster.bound_pods().values()) == {node}


def avoiding(app: str) -> Object:
    """Build a required anti-affinity to pods of an app on the same node."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_queues_get_exactly_their_fair_shares(cluster: Api, leeboard: Deployed) -> None:
    cluster.create_all(
        [
            queue("p", deserved=8, over_quota_weight=1),
            queue("q", deserved=0, over_quota_weight=1),
            queue("a", parent="p", deserved=4, over_quota_weight=1),
            queue("b", parent="p", deserved=4, over_quota_weight=3),
            queue("c", parent="q", deserved=0, over_quota_weight=1),
        ]
    )
    cluster.create_all([pod(f"{name}-{index}", queue=name) for index in range(24) for name in "abc"])
    eventually(lambda: leeboard.why("a-23").get("reason"), within_s=15, what="all are known")

    add_nodes(cluster, 3)

    cluster.wait_for_bound(24, within_s=30)
    assert {name: len(bound(cluster, f"{name}-")) for name in "abc"} == {"a": 6, "b": 10, "c": 8}
    eventually(
        lambda: {name: queue_status(cluster, name, "fairShare") for name in "abc"},
        until=lambda shares: shares == {"a": "6", "b": "10", "c": "8"},
        within_s=15,
        what="the queues' status tells their fair shares",
    )


def queue_status(api: Api, name: str, field: str) -> str:
    """Return the GPUs of one field of a queue's status, once it exists."""
    path = f"/apis/scheduling.run.ai/v2/queues/{name}"
    found = eventually(lambda: api.get(path).get("status", {}).get(field), within_s=10, what=f"{name} has {field}")
    return str(found["nvidia.com/gpu"])


def test_queue_limit_is_respected(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 1)
    cluster.create(queue("small", deserved=1, limit=2))

    cluster.create_all([pod(f"p-{index}", queue="small") for index in range(4)])

    cluster.wait_for_bound(2, within_s=20)
    assert watch_bound(cluster, "p-", for_s=2) == 2
    waiting = next(name for name in ("p-0", "p-1", "p-2", "p-3") if name not in cluster.bound_pods())
    wait_for_reason(leeboard, waiting, "OverLimit")


def test_non_preemptible_pod_stays_within_quota(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 1)
    labels = {"priorityClassName": "build"}

    cluster.create(pod("build-pod", queue="default-queue", labels=labels))

    wait_for_reason(leeboard, "build-pod", "NonPreemptibleOverQuota")
    assert not cluster.bound_pods()


def test_unknown_queue_and_unreadable_podgroup_are_reported(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 1)

    cluster.create(pod("lost", queue="nowhere"))
    cluster.create(pod("orphan", queue="default-queue", gang="nobody"))

    wait_for_reason(leeboard, "lost", "QueueDoesNotExist")
    wait_for_reason(leeboard, "orphan", "PodGroupDoesNotExist")
    cluster.create(pod_group("nobody", min_member=1, queue="default-queue"))
    cluster.wait_for_phase("Running", "orphan", within_s=20)
