"""Native PodGroups of Kubernetes 1.37, on an API server that serves them.

To Leeboard's own kube-scheduler, their pods are single pods. The cluster's kube-scheduler may schedule them together.
"""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.system import native_podgroups
from tests.system.api import JOBS, NODES, PODS, Api, gpu_node, job, pod
from tests.system.bed import Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.controlplane import build
from tests.system.forms import Deployed, Form
from tests.system.identities import User
from tests.system.native_podgroups import ARE_THERE, DEFAULT_GROUPS, GROUPS, group, members
from tests.system.rendered import policies_in_force
from tests.system.tenants import TEAM, refusal, settle
from tests.system.waiting import eventually

QUEUE = "default-queue"
pytestmark = pytest.mark.skipif(not ARE_THERE, reason=f"Kubernetes {build.KUBERNETES_VERSION} has no such PodGroups")

_node_numbers = count()


@pytest.fixture(scope="module")
def serving_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A control plane that serves native PodGroups, and whose Job controller creates them."""
    with native_podgroups.serving_bed(tmp_path_factory.mktemp("native-groups")) as bed:
        yield bed


@pytest.fixture(scope="module")
def serving_api(serving_bed: Bed) -> Iterator[Api]:
    with serving_bed.api() as api:
        yield api


@pytest.fixture(scope="module", params=[Form.HELD, Form.BESIDE], ids=str)
def leeboard(serving_bed: Bed, serving_api: Api, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    """Leeboard as shipped for this version: to its own kube-scheduler, members are single pods, and not to another."""
    with native_podgroups.deployed_for_groups(serving_bed, serving_api, request.param) as running:
        yield running


@pytest.fixture
def cluster(leeboard: Deployed, serving_api: Api) -> Iterator[Api]:
    """The cluster without nodes, with the default queues."""
    assert leeboard.api is serving_api
    for item in documents(DEFAULT_QUEUES):
        serving_api.apply(item)
    yield serving_api
    for collection in (JOBS, PODS, GROUPS, NODES):
        serving_api.empty(collection)


def add_nodes(api: Api, *gpus: int, **labels: str) -> list[str]:
    nodes = [gpu_node(f"g{next(_node_numbers):03}", gpus=each, labels=labels) for each in gpus]
    api.create_all(nodes)
    return [node["metadata"]["name"] for node in nodes]


def create_group(api: Api, name: str, *, size: int, min_count: int | None, **spec: object) -> None:
    api.create(group(name, min_count=min_count, **spec))
    api.create_all(members(name, size, queue=QUEUE))


def change_minimum(api: Api, name: str, minimum: int) -> None:
    api.patch(f"{DEFAULT_GROUPS}/{name}", {"spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}}})


def bound(api: Api, prefix: str) -> list[str]:
    return sorted(name for name in api.bound_pods() if name.startswith(f"{prefix}-"))


def wait_for_bound(api: Api, prefix: str, number: int, *, within_s: float = 30.0) -> None:
    what = f"{number} pods of {prefix} are bound"
    eventually(lambda: len(bound(api, prefix)), until=lambda found: found == number, within_s=within_s, what=what)


def most_bound(api: Api, prefix: str, *, for_s: float = 2.0) -> int:
    """Return the largest number of pods of this prefix that were bound at once, during some seconds."""
    numbers = [0]

    def look() -> bool:
        numbers.append(len(bound(api, prefix)))
        return False

    with pytest.raises(AssertionError):
        eventually(look, within_s=for_s, what="never")
    return max(numbers)


def wait_for_why(leeboard: Deployed, name: str, said: str) -> None:
    eventually(
        lambda: leeboard.why(name).get("sentence", ""),
        until=lambda text: said in text,
        within_s=15,
        what=f"{name} waits",
    )


def scheduled(api: Api, name: str) -> tuple[str, str, str]:
    """Return status, reason and message of the condition that tells whether a group has started."""
    conditions = api.get(f"{DEFAULT_GROUPS}/{name}").get("status", {}).get("conditions", [])
    found = [one for one in conditions if one["type"] == "PodGroupInitiallyScheduled"]
    return next(((one["status"], one["reason"], one["message"]) for one in found), ("", "", ""))


def wait_for_status(api: Api, name: str, status: str) -> tuple[str, str, str]:
    what = f"{name} says {status}"
    return eventually(lambda: scheduled(api, name), until=lambda told: told[0] == status, within_s=15, what=what)


@pytest.mark.parametrize("size", [8, 104])
def test_all_pods_of_a_gang_start_together(cluster: Api, size: int) -> None:
    add_nodes(cluster, *[8] * (size // 8))

    create_group(cluster, "gang", size=size, min_count=size)

    wait_for_bound(cluster, "gang", size, within_s=60)
    assert wait_for_status(cluster, "gang", "True")[1] == "Scheduled"


def test_of_a_gang_that_does_not_fit_nobody_starts_until_there_is_room(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 4)
    create_group(cluster, "gang", size=8, min_count=8)

    wait_for_why(leeboard, "gang-0", "8 pods")
    assert most_bound(cluster, "gang") == 0
    if leeboard.form is not Form.BESIDE:
        # A kube-scheduler that schedules groups tells it once it has tried, and Leeboard holds the pods.
        assert wait_for_status(cluster, "gang", "False")[1] == "Unschedulable"
    add_nodes(cluster, 4)
    wait_for_bound(cluster, "gang", 8)
    wait_for_status(cluster, "gang", "True")


def test_a_minimum_below_the_size_starts_what_fits_beyond_it(cluster: Api) -> None:
    add_nodes(cluster, 6)

    create_group(cluster, "gang", size=8, min_count=4)

    wait_for_bound(cluster, "gang", 6)
    assert most_bound(cluster, "gang") == 6


def test_a_minimum_that_is_lowered_lets_a_waiting_gang_start(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 4)
    create_group(cluster, "gang", size=8, min_count=8)
    wait_for_why(leeboard, "gang-0", "8 pods")

    change_minimum(cluster, "gang", 4)

    wait_for_bound(cluster, "gang", 4)


def test_a_minimum_that_is_raised_holds_for_a_waiting_gang(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 3)
    create_group(cluster, "gang", size=8, min_count=4)
    wait_for_why(leeboard, "gang-0", "4 pods")
    change_minimum(cluster, "gang", 8)
    wait_for_why(leeboard, "gang-0", "8 pods")

    add_nodes(cluster, 4)
    assert most_bound(cluster, "gang") == 0
    add_nodes(cluster, 1)
    wait_for_bound(cluster, "gang", 8)


def test_of_a_basic_group_as_many_start_as_fit(cluster: Api) -> None:
    add_nodes(cluster, 4)

    create_group(cluster, "basic", size=8, min_count=None)

    wait_for_bound(cluster, "basic", 4)
    assert most_bound(cluster, "basic") == 4


def test_pods_wait_for_the_group_that_they_name(cluster: Api, leeboard: Deployed) -> None:
    add_nodes(cluster, 8)
    cluster.create_all(members("late", 8, queue=QUEUE))
    wait_for_why(leeboard, "late-3", "PodGroup default/late (scheduling.k8s.io) does not exist")
    assert most_bound(cluster, "late") == 0

    cluster.create(group("late", min_count=8))

    wait_for_bound(cluster, "late", 8)


def test_a_gang_starts_in_one_domain_of_its_topology_key(cluster: Api) -> None:
    add_nodes(cluster, 2, 2, rack="one")
    whole = add_nodes(cluster, 2, 2, 2, rack="two")

    create_group(cluster, "near", size=6, min_count=6, schedulingConstraints={"topology": [{"key": "rack"}]})

    wait_for_bound(cluster, "near", 6)
    assert set(cluster.bound_pods().values()) == set(whole)


def test_the_pods_of_a_job_start_by_the_group_that_its_controller_makes(cluster: Api) -> None:
    add_nodes(cluster, 2)
    alone, together = (job(name, parallelism=4, template=pod("x", queue=QUEUE)) for name in ("alone", "together"))
    together["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {"minCount": 4}}}

    cluster.create(together)
    assert most_bound(cluster, "together") == 0
    cluster.create(alone)
    wait_for_bound(cluster, "alone", 4, within_s=60)

    add_nodes(cluster, 4)
    wait_for_bound(cluster, "together", 4)
    assert len(cluster.items(GROUPS)) == 2


def test_a_tenant_needs_the_right_to_the_priority_class_of_its_group(serving_bed: Bed, serving_api: Api) -> None:
    settle(serving_api)
    for name, value in {"build": 100, "train": 50}.items():
        what = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        # The chart of another form may have created it, and no field of it can be changed.
        if serving_api.find(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") is None:
            serving_api.create(what | {"value": value})
    usual, raised = (group(name, min_count=2, priorityClassName=name) for name in ("train", "build"))
    for one in (usual, raised):
        one["metadata"]["namespace"] = TEAM
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{TEAM}/podgroups"

    with policies_in_force(serving_api, profile="secure", policies="off"), serving_bed.api(User.TENANT) as tenant:
        tenant.create(usual)
        tenant.patch(f"{path}/train", {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
        assert "You may not use priority class build" in refusal(tenant, raised)

    assert [one["metadata"]["name"] for one in serving_api.items(path)] == ["train"]
    serving_api.empty(GROUPS)
