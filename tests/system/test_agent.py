"""The agent on a real control plane: with its own service account it reports only the node it runs on."""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import yaml

from app.cluster.decode.gpu_nodes import gpu_node
from app.model.device import GpuNode, Health, Holder
from tests.agent.kubelet import FakeKubelet, listening
from tests.agent.machines import GPU_IS_LOST, FakeMachine, compiled, environment
from tests.deploy.rendering import CHART
from tests.system import rendered
from tests.system.api import Api, Object, pod
from tests.system.bed import Bed
from tests.system.children import Child
from tests.system.cluster import documents
from tests.system.tenants import RBAC, allow
from tests.system.waiting import eventually

GPU_NODES = "/apis/leeboard.dev/v1alpha1/gpunodes"
ACCOUNT = "leeboard-agent"
AGENT = {"kind": "User", "apiGroup": RBAC, "name": f"system:serviceaccount:{rendered.NAMESPACE}:{ACCOUNT}"}
RIGHTS = {"gpunodes": ["create"], "gpunodes/status": ["patch"]}

_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def _rules(session_api: Api) -> Iterator[None]:
    session_api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": rendered.NAMESPACE}})
    for crd in documents(CHART / "files" / "crds" / "gpunodes.yaml"):
        session_api.apply(crd)
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    session_api.apply(account | {"metadata": {"name": ACCOUNT, "namespace": rendered.NAMESPACE}})
    for resource, verbs in RIGHTS.items():
        name = f"agent-{resource.replace('/', '-')}"
        allow(session_api, name, AGENT, group="leeboard.dev", resource=resource, verbs=verbs)
    with rendered.policies_in_force(session_api):
        yield


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


class AgentOn:
    """The agent of one node, with the token that Kubernetes gives to its pod there."""

    def __init__(self, bed: Bed, api: Api, node: str) -> None:
        self._bed = bed
        self._folder = bed.folder / f"agent-on-{node}-{next(_numbers)}"
        self._folder.mkdir()
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(_kubeconfig(bed, _token(api, node))))

    def report(self, node: str, library: Path, machine: FakeMachine, socket: Path) -> Child:
        """Start it with the name of this node."""
        swift = {f"LEEBOARD_AGENT_{name}_S": "1" for name in ("DEVICES_INTERVAL", "PODS_INTERVAL", "HEARTBEAT")}
        places = {
            "LEEBOARD_AGENT_KUBECONFIG": str(self._folder / "kubeconfig"),
            "LEEBOARD_AGENT_POD_RESOURCES_SOCKET": str(socket),
            "NODE_NAME": node,
        }
        env = environment(library, machine, **(swift | places))
        return self._bed.start(self._folder.name, [sys.executable, "-m", "app", "agent"], env)


def _token(api: Api, node: str) -> str:
    spec = {"nodeName": node, "serviceAccountName": ACCOUNT}
    name = f"reporter-{next(_numbers)}"
    made = api.create(pod(name, namespace=rendered.NAMESPACE, scheduler="default-scheduler", spec=spec))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": made["metadata"]["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    tokens = f"/api/v1/namespaces/{rendered.NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    return str(api.call("POST", tokens, body=asked)["status"]["token"])


def _kubeconfig(bed: Bed, token: str) -> Object:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": bed.url, "certificate-authority": str(bed.ca)}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }


@pytest.fixture
def reporter(bed: Bed, api: Api) -> Iterator[AgentOn]:
    before = {child.name for child in bed.children}
    yield AgentOn(bed, api, "a")
    for child in [child for child in bed.children if child.name not in before]:
        bed.stop(child.name)
    api.empty(GPU_NODES)


def read(api: Api, name: str) -> GpuNode | None:
    found = api.find(f"{GPU_NODES}/{name}")
    return gpu_node(found) if found and "status" in found else None


def test_the_agent_reports_devices_and_the_pods_that_hold_them(
    reporter: AgentOn, api: Api, library: Path, tmp_path: Path
) -> None:
    machine, kubelet, socket = FakeMachine(tmp_path / "machine", "hgx-h100"), FakeKubelet(), tmp_path / "kubelet.sock"
    kubelet.give("kai-resource-reservation/r", machine.uuid(2))

    with listening(kubelet, socket):
        agent = reporter.report("a", library, machine, socket)
        node = eventually(lambda: read(api, "a"), within_s=30, what="the GpuNode is published")
        machine.fails("*", GPU_IS_LOST, 5)
        lost = eventually(
            lambda: read(api, "a"),
            until=lambda now: now and now.devices[5].health is Health.UNHEALTHY,
            within_s=30,
            what="the lost device is unhealthy",
        )
        agent.check_alive()

    assert node is not None
    assert [device.uuid for device in node.devices] == [machine.uuid(index) for index in range(8)]
    assert node.devices[2].holders == (Holder("kai-resource-reservation", "r"),)
    assert node.layout is not None
    assert node.layout.scores[0][1] == 1820
    assert (node.problem, node.message, node.kubelet_answers) == ("", "", True)
    assert lost is not None
    assert [device.health for device in lost.devices].count(Health.HEALTHY) == 7


def test_the_agent_creates_its_gpunode_again_when_it_is_deleted(
    reporter: AgentOn, api: Api, library: Path, tmp_path: Path
) -> None:
    machine = FakeMachine(tmp_path / "machine", "desktop")
    reporter.report("a", library, machine, tmp_path / "nowhere")
    first = eventually(lambda: read(api, "a"), within_s=30, what="the GpuNode is published")

    api.delete(f"{GPU_NODES}/a")
    again = eventually(
        lambda: read(api, "a"),
        until=lambda now: now and first and now.uid != first.uid,
        within_s=30,
        what="it is there again",
    )

    assert again is not None
    assert (again.devices, again.kubelet_answers) == (first.devices if first else None, False)


def test_an_agent_that_writes_for_another_node_is_refused_and_says_so(
    reporter: AgentOn, api: Api, library: Path, tmp_path: Path
) -> None:
    machine = FakeMachine(tmp_path / "machine", "desktop")

    agent = reporter.report("b", library, machine, tmp_path / "nowhere")
    eventually(
        lambda: "The agent on node 'a' may not write GpuNode b" in agent.tail(),
        within_s=30,
        what="the refusal is logged",
    )

    agent.check_alive()
    assert api.find(f"{GPU_NODES}/b") is None
