"""A kubelet's PodResources service on a unix socket."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from app.agent.podresources import SERVICE, message

GPU = "nvidia.com/gpu"


class FakeKubelet:
    """Gives the answers of the test, which may change them while it runs."""

    def __init__(self) -> None:
        self.pods: dict[str, Mapping[str, Sequence[str]]] = {}
        """Device ids by resource, for each `namespace/name`."""
        self.claims: dict[str, Sequence[str]] = {}
        """Names of devices from resource claims, for each `namespace/name`."""
        self.offered: Sequence[str] = (GPU,)
        """Resources whose plugin has registered."""
        self.refusal: grpc.StatusCode | None = None
        self.is_old = False
        """Whether it lacks GetAllocatableResources."""

    def give(self, pod: str, *ids: str, resource: str = GPU) -> None:
        """Give devices to a pod."""
        self.pods[pod] = {resource: ids}

    def list_pods(self, _request: Any, context: Any) -> Any:
        """Answer `List`."""
        if self.refusal:
            context.abort(self.refusal, "not now")
        answer = message("ListPodResourcesResponse")()
        for pod in {**self.pods, **self.claims}:
            namespace, _, name = pod.partition("/")
            container = answer.pod_resources.add(namespace=namespace, name=name).containers.add()
            for resource, ids in self.pods.get(pod, {}).items():
                container.devices.add(resource_name=resource, device_ids=ids)
            for device in self.claims.get(pod, ()):
                claimed = container.dynamic_resources.add().claim_resources.add(driver_name="gpu.nvidia.com")
                claimed.device_name = device
                claimed.cdi_devices.add(name=f"k8s.gpu.nvidia.com/device={device}")
        return answer

    def allocatable(self, _request: Any, context: Any) -> Any:
        """Answer `GetAllocatableResources`."""
        if self.is_old:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        answer = message("AllocatableResourcesResponse")()
        for resource in self.offered:
            answer.devices.add(resource_name=resource, device_ids=["GPU-1"])
        return answer


@contextmanager
def listening(kubelet: FakeKubelet, socket: Path) -> Iterator[None]:
    """Serve it at a socket until the block ends."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    methods = {
        "List": _method(kubelet.list_pods, "ListPodResourcesRequest"),
        "GetAllocatableResources": _method(kubelet.allocatable, "AllocatableResourcesRequest"),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()
        socket.unlink(missing_ok=True)


def _method(answer: Any, request: str) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=message(request).FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )
