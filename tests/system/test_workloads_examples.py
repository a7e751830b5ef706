"""Manifests like those of KAI's batch, elastic and Ray pages, applied unchanged on the cluster of `make cluster`."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.api import DEFAULT_PODS, POD_GROUPS, Api, Object
from tests.system.bed import Bed
from tests.system.cluster import DEFAULT_QUEUES, ROOT, documents
from tests.system.forms import Deployed
from tests.system.gpus import DevicePlugins
from tests.system.identities import User
from tests.system.playground import nodes
from tests.system.shares import whole_gpus
from tests.system.waiting import eventually
from tests.system.watched import WITHIN_S
from tests.system.workloads.cluster import empty_workloads, staying

EXAMPLES, MANIFESTS = ROOT / "deploy" / "examples", Path(__file__).parent / "manifests"


@pytest.fixture(scope="module")
def leeboard(leeboard_with_operators: Deployed) -> Iterator[Deployed]:
    """Leeboard as shipped, with operators and the device plugins of simulated nodes."""
    with DevicePlugins(leeboard_with_operators.bed):
        yield leeboard_with_operators


@pytest.fixture
def cluster(leeboard: Deployed, bed: Bed, api: Api) -> Iterator[Deployed]:
    """A cluster with the default queues and no nodes yet."""
    assert leeboard.bed is bed
    for item in documents(DEFAULT_QUEUES):
        api.apply(item)
    yield leeboard
    empty_workloads(api)


def apply(cluster: Deployed, path: Path) -> None:
    bed = cluster.bed
    command = [str(bed.programs / "kubectl"), f"--kubeconfig={bed.kubeconfig(User.ADMIN)}", "apply", "-f", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def wait_until_run(api: Api, *names: str) -> None:
    """Wait until exactly these pods with a GPU run, by the prefixes of their names."""
    eventually(
        lambda: sorted(one["metadata"]["name"] for one in staying(api) if runs_on_a_gpu(one)),
        until=lambda seen: len(seen) == len(names) and all(map(str.startswith, seen, sorted(names))),
        within_s=WITHIN_S,
        what=f"just {', '.join(names)} run",
    )


def runs_on_a_gpu(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and whole_gpus(pod) > 0


def minimum(api: Api) -> list[int]:
    return [one["spec"]["minMember"] for one in api.items(POD_GROUPS)]


def test_pods_of_the_batch_job_run_one_after_the_other_on_one_gpu(cluster: Deployed, api: Api) -> None:
    api.create_all(nodes(1, gpus=1))

    apply(cluster, MANIFESTS / "batch-job.yaml")

    eventually(
        lambda: api.get("/apis/batch/v1/namespaces/default/jobs/batch-job").get("status", {}).get("succeeded"),
        until=lambda succeeded: succeeded == 2,
        within_s=WITHIN_S,
        what="both pods end well",
    )
    assert minimum(api) == []


def test_pytorch_job_starts_with_all_its_three_pods(cluster: Deployed, api: Api) -> None:
    api.create_all(nodes(1, gpus=2))

    apply(cluster, EXAMPLES / "pytorch-job.yaml")

    wait_for_refusal(cluster, "pytorch-worker-1")
    assert api.bound_pods() == {}
    api.create_all(nodes(2, gpus=2)[1:])
    wait_until_run(api, "pytorch-master-0", "pytorch-worker-0", "pytorch-worker-1")
    assert minimum(api) == [3]


def wait_for_refusal(cluster: Deployed, name: str) -> None:
    what = f"{name} waits for its gang"
    eventually(lambda: cluster.why(name).get("reason") == "GangDoesNotFit", within_s=WITHIN_S, what=what)


def test_elastic_pytorch_job_starts_with_the_one_worker_that_fits_and_gets_the_other(
    cluster: Deployed, api: Api
) -> None:
    api.create_all(nodes(1, gpus=1))

    apply(cluster, EXAMPLES / "pytorch-elastic.yaml")

    wait_until_run(api, "elastic-worker-")
    api.create_all(nodes(2, gpus=1)[1:])
    wait_until_run(api, "elastic-worker-0", "elastic-worker-1")
    assert minimum(api) == [1]


def test_ray_job_starts_with_its_head_and_its_minimum_of_workers_and_gets_the_other(
    cluster: Deployed, api: Api
) -> None:
    api.create_all(nodes(1, gpus=1))

    apply(cluster, EXAMPLES / "ray-job.yaml")

    # Agents run in another namespace.
    eventually(lambda: len(api.items(DEFAULT_PODS)) == 3, within_s=WITHIN_S, what="head and workers wait")
    for one in api.items(DEFAULT_PODS):
        wait_for_refusal(cluster, one["metadata"]["name"])
    assert api.bound_pods() == {}
    api.create_all(nodes(2, gpus=1)[1:])
    wait_until_run(api, "ray-", "ray-")
    api.create_all(nodes(3, gpus=1)[2:])
    wait_until_run(api, "ray-", "ray-", "ray-")
    assert minimum(api) == [2]
