"""A small client for tests: plain dictionaries in and out, and builders for GPU nodes, pods, gangs and queues."""

import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import httpx

from tests.system.waiting import eventually

Object = dict[str, Any]
"""A Kubernetes object as JSON; tests read any field."""

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
INSTALLED_IN = "leeboard"
"""The namespace of Leeboard and its agents."""
DEFAULT_PODS = "/api/v1/namespaces/default/pods"
QUEUES = "/apis/scheduling.run.ai/v2/queues"
POD_GROUPS = "/apis/scheduling.run.ai/v2alpha2/podgroups"
JOBS = "/apis/batch/v1/jobs"
PROFILE = "kai-scheduler"
QUEUE_LABEL = "kai.scheduler/queue"
POD_GROUP_ANNOTATION = "pod-group-name"
RUN_FOR = "simulation.example.com/run-for"
"""Our own kwok stage ends a pod after this time (a Go duration)."""

NAMESPACED = {"Pod", "Job", "PodGroup", "Lease", "ConfigMap", "Secret", "ServiceAccount", "Role", "RoleBinding"}
NAMESPACED |= {"Deployment", "ReplicaSet", "Service", "PodDisruptionBudget", "Event"}
NAMESPACED |= {"ResourceClaim", "ResourceClaimTemplate"}
WRITERS = 16


class ApiError(AssertionError):
    """The API server refused a request; the error has the message of the API server."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        super().__init__(
            f"{response.request.method} {response.request.url}: {response.status_code} {response.text[:1000]}"
        )


class ReusedConnections(httpx.HTTPTransport):
    """Sends a request again when the server closed its connection without an answer.

    The API server closes a connection that was idle for 90 s. It does not read a request that arrives at that moment.
    Other connections may be as old.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        for _ in range(WRITERS):
            with suppress(httpx.RemoteProtocolError):
                return super().handle_request(request)
        return super().handle_request(request)


class Api:
    """Kubernetes over HTTP for one user; safe to use from several threads."""

    def __init__(self, url: str, *, token: str, verify: ssl.SSLContext) -> None:
        # Idle connections do not expire here: one thread would close what another has just been given (httpcore #1110).
        limits = httpx.Limits(max_connections=WRITERS, max_keepalive_connections=WRITERS, keepalive_expiry=None)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}", "User-Agent": "leeboard-tests/1"},
            transport=ReusedConnections(verify=verify, limits=limits, trust_env=False),
            timeout=120.0,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, method: str, path: str, *, body: object = None, query: Mapping[str, str] | None = None) -> Object:
        """Send one request and return the answer's JSON; raise `ApiError` when it is refused."""
        return self._answer(self._http.request(method, path, json=body, params=query))

    def get(self, path: str) -> Object:
        """Read one object."""
        return self.call("GET", path)

    def text(self, path: str) -> str:
        """Read a text that is not JSON."""
        return self._http.get(path).raise_for_status().text

    def find(self, path: str) -> Object | None:
        """Read one object, or return None if it does not exist."""
        response = self._http.get(path)
        return None if response.status_code == httpx.codes.NOT_FOUND else self._answer(response)

    def items(self, path: str, **query: str) -> list[Object]:
        """Read a collection; `labelSelector` and `fieldSelector` go into `query`."""
        items: list[Object] = self.call("GET", path, query=query)["items"]
        return items

    def create(self, item: Object) -> Object:
        """Create one object at the path of its kind and namespace."""
        return self.call("POST", collection_of(item), body=item)

    def create_all(self, items: Iterable[Object]) -> list[Object]:
        """Create many objects at once; the order of arrival is not the order given."""
        with ThreadPoolExecutor(WRITERS) as pool:
            return list(pool.map(self.create, items))

    def apply(self, item: Object, **more: str) -> Object:
        """Create or change an object to equal the given one (server-side apply); `more` is added to the query."""
        path = f"{collection_of(item)}/{item['metadata']['name']}"
        query = {"fieldManager": "leeboard-tests", "force": "true", **more}
        # A JSON document is a YAML document.
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return self._answer(self._http.patch(path, json=item, params=query, headers=headers))

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into the object at `path` (which may end in `/status`)."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return self._answer(self._http.patch(path, json=body, headers=headers))

    def delete(self, path: str) -> None:
        """Delete one object with the grace period of its kubelet; a missing object is no error."""
        response = self._http.delete(path)
        if response.status_code != httpx.codes.NOT_FOUND:
            self._answer(response)

    def delete_now(self, path: str) -> None:
        """Delete one object, or all of a collection, without any grace."""
        query = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
        response = self._http.delete(path, params=query)
        if response.status_code != httpx.codes.NOT_FOUND:
            self._answer(response)

    def empty(self, path: str) -> None:
        """Delete every object of a collection over all namespaces; a kind not installed is empty already."""
        if self._http.get(path, params={"limit": "1"}).status_code == httpx.codes.NOT_FOUND:
            return
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self.delete_now, {path_of(path, item) for item in self.items(path)}))
        eventually(
            lambda: [item["metadata"]["name"] for item in self.items(path)],
            until=lambda names: not names,
            within_s=60.0,
            what=f"{path} becomes empty",
        )

    def bound_pods(self, **query: str) -> dict[str, str]:
        """Return pod name -> node of every bound pod except the agents of the nodes.

        The service account of the agents stays when a file of tests has installed it.
        """
        pods = (pod for pod in self.items(PODS, **query) if pod["metadata"]["namespace"] != INSTALLED_IN)
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}

    def wait_for_bound(self, count: int, *, within_s: float, **query: str) -> dict[str, str]:
        """Wait until `count` pods have a node; return pod name -> node."""
        return eventually(
            lambda: self.bound_pods(**query),
            until=lambda bound: len(bound) >= count,
            within_s=within_s,
            what=f"{count} pods are bound",
        )

    def wait_for_phase(self, phase: str, *names: str, within_s: float, namespace: str = "default") -> None:
        """Wait until each of the named pods is in `phase`."""

        def phases() -> dict[str, str]:
            pods = {pod["metadata"]["name"]: pod for pod in self.items(f"/api/v1/namespaces/{namespace}/pods")}
            return {name: pods.get(name, {"status": {}})["status"].get("phase", "absent") for name in names}

        eventually(
            phases,
            until=lambda seen: set(seen.values()) == {phase},
            within_s=within_s,
            what=f"pods {', '.join(names)} become {phase}",
        )

    @staticmethod
    def _answer(response: httpx.Response) -> Object:
        if response.is_error:
            raise ApiError(response)
        answer: Object = response.json()
        return answer


def collection_of(item: Object) -> str:
    """Return the path that lists objects of this kind, in this namespace."""
    version, kind = item["apiVersion"], item["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = item["metadata"].get("namespace") or ("default" if kind in NAMESPACED else None)
    return f"{root}/namespaces/{namespace}/{_plural(kind)}" if namespace else f"{root}/{_plural(kind)}"


def path_of(collection: str, item: Object) -> str:
    """Return the path of an object from a list over all namespaces."""
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    root, _, plural = collection.rpartition("/")
    return f"{root}/namespaces/{namespace}/{plural}/{name}" if namespace else f"{collection}/{name}"


def _plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith(("s", "x", "ch")):
        return f"{lower}es"
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"


# -- builders: the smallest object the API server accepts, in KAI's names


def gpu_node(
    name: str, *, gpus: int = 8, cpu: str = "64", memory: str = "256Gi", labels: Mapping[str, str] | None = None
) -> Object:
    """Build a Ready node; the API server accepts the status of a node at creation."""
    resources = {"cpu": cpu, "memory": memory, "pods": "250", "ephemeral-storage": "1Ti"}
    own_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
        own_labels |= {"nvidia.com/gpu.count": str(gpus), "nvidia.com/gpu.memory": "81559"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own_labels | dict(labels or {})},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(  # noqa: PLR0913 - a builder: every argument has a default and tests name the one they mean
    name: str,
    *,
    gpus: int = 1,
    cpu: str = "1",
    memory: str = "1Gi",
    queue: str | None = None,
    gang: str | None = None,
    namespace: str = "default",
    scheduler: str = PROFILE,
    priority_class: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Object:
    """Build a pod; `gang` names its PodGroup, `spec` is merged over the rest."""
    resources = {"cpu": cpu, "memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}
    own_spec: Object = {"schedulerName": scheduler, "containers": [container]}
    if priority_class:
        own_spec["priorityClassName"] = priority_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": ({QUEUE_LABEL: queue} if queue else {}) | dict(labels or {}),
            "annotations": ({POD_GROUP_ANNOTATION: gang} if gang else {}) | dict(annotations or {}),
        },
        "spec": own_spec | dict(spec or {}),
    }


def job(name: str, *, parallelism: int = 1, template: Object) -> Object:
    """Build a Job of pods like `template` (made by `pod`), which end a second after they start."""
    spec = template["spec"] | {"restartPolicy": "Never"}
    metadata = {key: template["metadata"][key] for key in ("labels", "annotations")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": template["metadata"]["namespace"]},
        "spec": {
            "parallelism": parallelism,
            "completions": parallelism,
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def pod_group(name: str, *, min_member: int, queue: str, namespace: str = "default", **spec: object) -> Object:
    """Build a KAI PodGroup."""
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": min_member, "queue": queue} | spec,
    }


def gang(name: str, *, size: int, queue: str, gpus: int = 1, min_member: int | None = None) -> list[Object]:
    """Build a PodGroup and its pods, named `<gang>-<index>`."""
    members = [pod(f"{name}-{index}", gpus=gpus, queue=queue, gang=name) for index in range(size)]
    return [pod_group(name, min_member=min_member or size, queue=queue), *members]


def queue(
    name: str, *, parent: str | None = None, deserved: int = -1, limit: int = -1, over_quota_weight: int = 1
) -> Object:
    """Build a KAI Queue that divides GPUs and leaves CPU and memory unlimited; -1 means unlimited in KAI."""
    open_resource = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    gpu = {"quota": deserved, "limit": limit, "overQuotaWeight": over_quota_weight}
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": ({"parentQueue": parent} if parent else {})
        | {"resources": {"gpu": gpu, "cpu": open_resource, "memory": open_resource}},
    }
