"""A real API server with ProvisioningRequests: they, and scaling pods, are created and deleted when they should be.

No autoscaler answers: there is no cloud. The kind is ours, with the fields and rules of cluster-autoscaler's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.deploy.rendering import objects, rendered
from tests.system.api import NODES, Api, Object, gang, gpu_node, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.cluster import DEFAULT_QUEUES, apply_all, documents
from tests.system.forms import Deployed, Form, deployed
from tests.system.waiting import eventually

REQUESTS = "/apis/autoscaling.x-k8s.io/v1/provisioningrequests"
TEMPLATES = "/api/v1/podtemplates"
SCALING_PODS = "/api/v1/namespaces/kai-scale-adjust/pods"
DEFAULT_QUEUE = "default-queue"
CAPPED = "capped"
WITHIN_S = 30.0

TEXT = {"type": "string", "maxLength": 253}
IMMUTABLE = {"x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
POD_SET = {
    "type": "object",
    "required": ["count", "podTemplateRef"],
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "podTemplateRef": {"type": "object", "required": ["name"], "properties": {"name": TEXT}},
    },
}
SPEC = {
    "type": "object",
    "required": ["podSets", "provisioningClassName"],
    "properties": {
        "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": POD_SET, **IMMUTABLE},
        "provisioningClassName": {**TEXT, **IMMUTABLE},
    },
}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCHEMA = {"type": "object", "required": ["spec"], "properties": {"spec": SPEC, "status": ANYTHING}}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "provisioningrequests", "singular": "provisioningrequest", "kind": "ProvisioningRequest"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": SCHEMA},
            }
        ],
    },
}


@contextmanager
def asking(bed: Bed, api: Api, way: str) -> Iterator[Deployed]:
    """Run Leeboard as the chart installs it with an autoscaler, with exactly the rights of the chart."""
    manifests = objects(rendered(autoscaling={"way": way}, security={"profile": "secure"}))
    settings = {"autoscaling": way, "autoscaling_after_s": "1"}
    apply_all(api, [CRD])
    with deployed(bed, api, Form.HELD, PLAIN_SCHEDULER, manifests=manifests, **settings) as running:
        for item in documents(DEFAULT_QUEUES):
            api.apply(item)
        api.create(queue(CAPPED, limit=1))
        yield running
    for path in (REQUESTS, TEMPLATES, NODES):
        api.empty(path)


@pytest.fixture
def cluster(bed: Bed, api: Api, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    with asking(bed, api, request.param) as running:
        yield running


def wait_for(api: Api, path: str, number: int) -> list[Object]:
    what = f"there are {number} of {path}"
    return eventually(lambda: api.items(path), until=lambda seen: len(seen) == number, within_s=WITHIN_S, what=what)


def wait_until_held(running: Deployed, name: str, reason: str) -> None:
    said = f"{name}: {reason}"
    eventually(lambda: running.why(name).get("reason"), until=lambda one: one == reason, within_s=WITHIN_S, what=said)


@pytest.mark.parametrize("cluster", ["provisioning-request"], indirect=True)
def test_a_gated_gang_that_lacks_nodes_has_a_provisioning_request_until_they_exist(cluster: Deployed) -> None:
    api = cluster.api
    api.create_all(gang("capped", size=2, queue=CAPPED))
    wait_until_held(cluster, "capped-0", "OverLimit")
    api.create_all(gang("crew", size=2, gpus=8, queue=DEFAULT_QUEUE))

    (request,) = wait_for(api, REQUESTS, 1)
    (template,) = wait_for(api, TEMPLATES, 1)

    assert request["metadata"]["annotations"] == {"leeboard.dev/capacity-for": "default/crew"}
    assert [one["count"] for one in request["spec"]["podSets"]] == [2]
    assert asked(template["template"]) == [{"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}]

    api.create_all([gpu_node("come-a"), gpu_node("come-b")])

    api.wait_for_bound(2, within_s=WITHIN_S)
    wait_for(api, REQUESTS, 0)
    wait_for(api, TEMPLATES, 0)


@pytest.mark.parametrize("cluster", ["scaling-pods"], indirect=True)
def test_scaling_pods_replace_a_gated_gang_that_lacks_nodes_until_they_exist(cluster: Deployed) -> None:
    api = cluster.api
    api.create_all(gang("capped", size=2, queue=CAPPED))
    wait_until_held(cluster, "capped-0", "OverLimit")
    api.create_all(gang("crew", size=2, gpus=8, queue=DEFAULT_QUEUE))

    pods = eventually(
        lambda: [pod for pod in api.items(SCALING_PODS) if is_seen(pod)],
        until=lambda seen: len(seen) == 2,
        within_s=WITHIN_S,
        what="2 pods stand for others and are marked",
    )

    assert [asked(pod) for pod in pods] == [[{"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}]] * 2

    api.create_all([gpu_node("come-a"), gpu_node("come-b")])

    assert sorted(api.wait_for_bound(2, within_s=WITHIN_S)) == ["crew-0", "crew-1"]
    wait_for(api, SCALING_PODS, 0)


def is_seen(pod: Object) -> bool:
    """Whether an autoscaler takes the pod for one that needs a node."""
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    return [(one["type"], one["status"], one["reason"]) for one in conditions] == [
        ("PodScheduled", "False", "Unschedulable")
    ]


def asked(pod: Object) -> list[Object]:
    """Return the requests of the containers of a pod."""
    return [container["resources"]["requests"] for container in pod["spec"]["containers"]]
