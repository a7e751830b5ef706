"""The examples of docs/walk.md work as described."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.api import PODS, Api, Object
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, ROOT, documents
from tests.system.forms import Deployed, Form, deployed
from tests.system.gpus import DevicePlugins
from tests.system.playground import nodes
from tests.system.waiting import eventually
from tests.system.watched import OURS_ALONE

EXAMPLES = ROOT / "deploy" / "examples"
SERVICE: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "serve",
        "namespace": "default",
        "labels": {"app": "serve", "kai.scheduler/queue": "team-b", "priorityClassName": "inference"},
    },
    "spec": {
        "schedulerName": "kai-scheduler",
        "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}
"""Non-preemptible pods."""


@pytest.fixture
def leeboard(bed: Bed, api: Api) -> Iterator[Deployed]:
    with deployed(bed, api, Form.HELD, PLAIN_SCHEDULER) as running, DevicePlugins(bed):
        apply(api, DEFAULT_QUEUES)
        api.create_all(nodes(2, gpus=8))
        yield running
        for collection in OURS_ALONE:
            api.empty(collection)


def apply(api: Api, path: Path) -> None:
    for item in documents(path):
        api.apply(item)


def racks(api: Api, app: str) -> list[str]:
    """Return the racks in which the pods of an app run, one entry per pod."""
    by_node = {node["metadata"]["name"]: node["metadata"]["labels"]["example.com/rack"] for node in node_list(api)}
    pods = api.items(PODS, labelSelector=f"app={app}")
    return [by_node[pod["spec"]["nodeName"]] for pod in pods if runs(pod)]


def node_list(api: Api) -> list[Object]:
    return [node for node in api.items("/api/v1/nodes") if "example.com/rack" in node["metadata"]["labels"]]


def runs(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def test_a_gang_of_one_team_gets_a_rack_that_the_other_team_has_borrowed(leeboard: Deployed, api: Api) -> None:
    apply(api, EXAMPLES / "two-teams.yaml")
    eventually(lambda: racks(api, "fill"), until=lambda seen: len(seen) == 16, within_s=30, what="team-a has it all")

    apply(api, EXAMPLES / "gang.yaml")

    gang = eventually(lambda: racks(api, "llm"), until=lambda seen: len(seen) == 4, within_s=30, what="the gang runs")
    assert len(set(gang)) == 1
    eventually(lambda: racks(api, "fill"), until=lambda seen: len(seen) == 12, within_s=30, what="team-a keeps 12")
    # Four GPUs are reclaimed. Of pods of equal age in both racks more may be evicted, which start again elsewhere.
    assert 4 <= leeboard.metric("leeboard_pods_evicted_total") <= 8


def test_a_team_may_run_non_preemptible_pods_within_its_quota(leeboard: Deployed, api: Api) -> None:
    apply(api, EXAMPLES / "two-teams.yaml")

    eventually(lambda: racks(api, "fill"), until=lambda seen: len(seen) == 16, within_s=30, what="team-a has it all")
    api.apply(SERVICE)

    eventually(lambda: racks(api, "serve"), until=lambda seen: len(seen) == 1, within_s=30, what="the service runs")
    assert leeboard.metric("leeboard_pods_evicted_total") == 1
