"""Reads from the kubelet which pod holds which device: its PodResources service (v1), gRPC over a unix socket.

The messages are described here as far as they are read. protobuf skips other fields, including those of later versions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from app.agent.readings import Holding, KubeletReading

SERVICE = "v1.PodResourcesLister"
ANSWER_WITHIN_S = 5.0
MOST_BYTES = 16 << 20
OURS = re.compile(r"nvidia\.com/(?:gpu|mig-.+)(?:\.shared)?")
"""The resources of NVIDIA's device plugin. It may rename replicas to `.shared`."""

NO_PLUGIN = "no device plugin offers nvidia.com/gpu or nvidia.com/mig-*"

_TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
MESSAGES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources*"),),
    "AllocatableResourcesRequest": (),
    "AllocatableResourcesResponse": (("devices", 1, "ContainerDevices*"),),
    "PodResources": (("name", 1, "text"), ("namespace", 2, "text"), ("containers", 3, "ContainerResources*")),
    "ContainerResources": (("devices", 2, "ContainerDevices*"), ("dynamic_resources", 5, "DynamicResource*")),
    "ContainerDevices": (("resource_name", 1, "text"), ("device_ids", 2, "text*")),
    "DynamicResource": (("claim_resources", 4, "ClaimResource*"),),
    "ClaimResource": (("cdi_devices", 1, "CDIDevice*"), ("driver_name", 2, "text"), ("device_name", 4, "text")),
    "CDIDevice": (("name", 1, "text"),),
}
"""Name, number and type of each field. A star means `repeated`."""


class PodResources:
    """The kubelet of this node. `read` blocks for at most some seconds and raises nothing."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        # Created for the first call, and again after each failed call, because the kubelet may have restarted.
        self._channel: grpc.Channel | None = None

    def read(self) -> KubeletReading:
        """Return the pods and their devices; or why they are not known."""
        try:
            self._socket.stat()
        except OSError as error:
            return KubeletReading(answers=False, reason=f"there is no socket at {self._socket}: {error.strerror}")
        try:
            listed = self._ask("List", "ListPodResourcesRequest", "ListPodResourcesResponse")
            offered = self._offered()
        except grpc.RpcError as error:
            self.close()
            return KubeletReading(answers=False, reason=_reason(error))
        holdings = tuple(holding for pod in listed.pod_resources if (holding := _holding(pod)).device_ids)
        return KubeletReading(answers=True, reason="" if offered or holdings else NO_PLUGIN, holdings=holdings)

    def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _offered(self) -> bool:
        """Return whether a device plugin has registered. Kubelets before 1.23 do not report it."""
        try:
            answer = self._ask("GetAllocatableResources", "AllocatableResourcesRequest", "AllocatableResourcesResponse")
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return True
            raise
        return any(OURS.fullmatch(devices.resource_name) for devices in answer.devices)

    def _ask(self, method: str, request: str, response: str) -> Any:
        if self._channel is None:
            # Go's server refuses the default authority, which is the path of the socket.
            options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", MOST_BYTES)]
            self._channel = grpc.insecure_channel(f"unix://{self._socket.absolute()}", options=options)
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=message(request).SerializeToString,
            response_deserializer=message(response).FromString,
        )
        return call(message(request)(), timeout=ANSWER_WITHIN_S)


@cache
def message(name: str) -> Any:
    """Return the class of a message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"v1.{name}"))


@cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, number, kind in fields:
            one = described.field.add(name=field, number=number)
            one.label = one.LABEL_REPEATED if kind.endswith("*") else one.LABEL_OPTIONAL
            if kind.startswith("text"):
                one.type = _TEXT
            else:
                one.type, one.type_name = one.TYPE_MESSAGE, f".v1.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _holding(pod: Any) -> Holding:
    ids = (each for container in pod.containers for each in _ids(container))
    return Holding(namespace=pod.namespace, name=pod.name, device_ids=frozenset(ids))


def _ids(container: Any) -> Iterator[str]:
    for devices in container.devices:
        if OURS.fullmatch(devices.resource_name):
            yield from devices.device_ids
    yield from _claimed(container.dynamic_resources)


def _claimed(resources: Iterable[Any]) -> Iterator[str]:
    """Return the devices of resource claims, when the driver's device name is the UUID."""
    for claimed in (claimed for resource in resources for claimed in resource.claim_resources):
        names = [claimed.device_name, *(device.name.rpartition("=")[2] for device in claimed.cdi_devices)]
        yield from (name for name in names if name.startswith(("GPU-", "MIG-")))


def _reason(error: Any) -> str:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"the kubelet did not answer within {ANSWER_WITHIN_S:g} s"
    return f"the kubelet refused: {code.name.lower().replace('_', ' ')}: {error.details()}"
