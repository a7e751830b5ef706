"""GpuNodes: only the agent of the node writes its GpuNode, which is no larger than a node can be."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.deploy.rendering import CHART
from tests.system import rendered
from tests.system.api import Api, ApiError, Object, pod
from tests.system.bed import Bed
from tests.system.cluster import documents
from tests.system.identities import User
from tests.system.tenants import RBAC, allow, refusal, refused_patch, subject
from tests.system.waiting import eventually

GPU_NODES = "/apis/leeboard.dev/v1alpha1/gpunodes"

_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def _rules(session_api: Api) -> Iterator[None]:
    session_api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": rendered.NAMESPACE}})
    with rendered.policies_in_force(session_api):
        yield


@pytest.fixture
def tenant(bed: Bed) -> Iterator[Api]:
    with bed.api(User.TENANT) as tenant:
        yield tenant


@pytest.fixture
def agents(bed: Bed, api: Api) -> Iterator[tuple[Api, Api]]:
    """Clients with the tokens that Kubernetes gives to the agents' pods on nodes a and b."""
    for crd in documents(CHART / "files" / "crds" / "gpunodes.yaml"):
        api.apply(crd)
    eventually(lambda: not refusal(api, gpu_node_of("first")), within_s=20, what="GpuNodes are served")
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    api.apply(account | {"metadata": {"name": "leeboard-agent", "namespace": rendered.NAMESPACE}})
    for resource in ("gpunodes", "gpunodes/status"):
        for user in (AGENT, TENANT):
            right = f"{user['name']}-{resource.replace('/', '-')}"
            allow(api, right, user, group="leeboard.dev", resource=resource, verbs=["create", "patch", "delete"])
    with ExitStack() as stack:
        yield tuple(stack.enter_context(agent_on(bed, api, node)) for node in "ab")  # type: ignore[misc] # two
    api.empty(GPU_NODES)


AGENT = {"kind": "User", "apiGroup": RBAC, "name": f"system:serviceaccount:{rendered.NAMESPACE}:leeboard-agent"}
TENANT = subject(User.TENANT)


def agent_on(bed: Bed, api: Api, node: str) -> Api:
    spec = {"nodeName": node, "serviceAccountName": "leeboard-agent"}
    made = api.create(
        pod(f"agent-{next(_numbers)}", namespace=rendered.NAMESPACE, scheduler="default-scheduler", spec=spec)
    )
    bound = {"kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    tokens = f"/api/v1/namespaces/{rendered.NAMESPACE}/serviceaccounts/leeboard-agent/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    token = api.call("POST", tokens, body=asked)["status"]["token"]
    return Api(bed.url, token=token, verify=ssl.create_default_context(cafile=bed.ca))


def gpu_node_of(node: str) -> Object:
    return {"apiVersion": "leeboard.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": node}}


def devices(*uuids: str) -> Object:
    return {"status": {"devices": [{"uuid": uuid, "memoryMiB": {"total": 81559}} for uuid in uuids]}}


def test_agent_writes_only_the_gpunode_of_its_own_node(agents: tuple[Api, Api]) -> None:
    a, b = agents
    a.create(gpu_node_of("a"))
    assert "The agent on node 'b' may not write GpuNode c" in refusal(b, gpu_node_of("c"))
    for target in (f"{GPU_NODES}/a", f"{GPU_NODES}/a/status"):
        assert "The agent on node 'b' may not write GpuNode a" in refused_patch(b, target, devices("GPU-1"))
    with pytest.raises(ApiError, match="may not write GpuNode a"):
        b.delete(f"{GPU_NODES}/a")

    assert a.patch(f"{GPU_NODES}/a/status", devices("GPU-1"))["status"] == devices("GPU-1")["status"]


def test_no_other_account_writes_gpunodes_whatever_its_rights(agents: tuple[Api, Api], api: Api, tenant: Api) -> None:
    agents[0].create(gpu_node_of("a"))
    said = "GpuNodes are written by the agents of their nodes"
    assert said in refusal(tenant, gpu_node_of("d"))
    assert said in refused_patch(tenant, f"{GPU_NODES}/a/status", devices("GPU-1"))
    assert not refusal(api, gpu_node_of("d"))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (devices(*(f"GPU-{number}" for number in range(65))), "must have at most 64 items"),
        (devices("GPU-1", "GPU-1"), "Duplicate value"),
        ({"status": {"devices": [{"uuid": "GPU-1", "memoryMiB": {"total": -1}}]}}, "greater than or equal to 0"),
        ({"status": {"devices": [{"uuid": "GPU-1", "product": "x" * 97}]}}, "may not be more than 96 bytes"),
        ({"status": {"devices": [{"uuid": "GPU-1", "health": "fine"}]}}, "Unsupported value"),
    ],
    ids=["devices", "twice", "memory", "product", "health"],
)
def test_gpunode_accepts_no_more_than_a_node_can_have(agents: tuple[Api, Api], status: Object, said: str) -> None:
    agents[0].create(gpu_node_of("a"))
    assert said in refused_patch(agents[0], f"{GPU_NODES}/a/status", status)
