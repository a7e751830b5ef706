"""Writes GpuNodes as the node agents would: each with the token of its own pod, if their service account exists."""

import ssl
from collections.abc import Iterable
from itertools import count

import httpx

from tests.system.api import NODES, Api, ApiError, Object, pod
from tests.system.bed import Bed

NAMESPACE, ACCOUNT = "leeboard", "leeboard-agent"
GPU_NODES = "/apis/leeboard.dev/v1alpha1/gpunodes"
GPU_NODE_KIND = {"apiVersion": "leeboard.dev/v1alpha1", "kind": "GpuNode"}

_numbers = count()


class Agents:
    """A client for each node; an administrator's client if the service account of the agents is not installed."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._admin = bed.api()
        self._clients: dict[str, Api] = {}
        # Failed writes, in the order of time; only `publish_all` appends to it.
        self.failures: list[Exception] = []

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients.values():
            client.close()
        self._admin.close()

    def publish_all(self, reports: Iterable[tuple[str, Object]]) -> set[str]:
        """Write the status of each node; return the nodes to try again because the API server was unavailable."""
        return {node for node, status in reports if not self._is_published(node, status)}

    def _is_published(self, node: str, status: Object) -> bool:
        try:
            self._publish(node, status)
        except httpx.TransportError:
            return False
        except Exception as failure:  # noqa: BLE001 - a thread's error is raised in the test
            self.failures.append(failure)
        return True

    def _publish(self, node: str, status: Object) -> None:
        try:
            self._write(node, status)
        except ApiError as refused:
            # A deleted node removes its agent.
            if self._admin.find(f"{NODES}/{node}") is None:
                return
            if refused.status != httpx.codes.UNAUTHORIZED or node not in self._clients:
                raise
            # The pod of the agent was deleted; a DaemonSet would start another.
            self._clients.pop(node).close()
            self._write(node, status)

    def _write(self, node: str, status: Object) -> None:
        """Write the status of a node's GpuNode, which is created if it does not exist."""
        api, path = self._client(node), f"{GPU_NODES}/{node}/status"
        try:
            api.patch(path, {"status": status})
        except ApiError as refused:
            if refused.status != httpx.codes.NOT_FOUND:
                raise
            api.create({**GPU_NODE_KIND, "metadata": {"name": node}})
            api.patch(path, {"status": status})

    def _client(self, node: str) -> Api:
        if self._admin.find(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}") is None:
            return self._admin
        if node not in self._clients:
            self._clients[node] = agent_on(self._bed, self._admin, node)
        return self._clients[node]


def agent_on(bed: Bed, api: Api, node: str) -> Api:
    """Return a client with the token that Kubernetes gives to an agent's pod on a node."""
    spec = {"nodeName": node, "serviceAccountName": ACCOUNT, "tolerations": [{"operator": "Exists"}]}
    name = f"agent-{next(_numbers)}"
    made = api.create(pod(name, gpus=0, namespace=NAMESPACE, scheduler="default-scheduler", spec=spec))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": made["metadata"]["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    token = api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token", body=asked)
    return Api(bed.url, token=token["status"]["token"], verify=ssl.create_default_context(cafile=bed.ca))
