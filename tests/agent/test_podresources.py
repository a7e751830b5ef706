"""The kubelet's answers, over a real socket."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from app.agent.podresources import PodResources, message
from app.agent.readings import Holding, KubeletReading
from tests.agent.kubelet import FakeKubelet, listening


@pytest.fixture
def asked(socket: Path) -> Iterator[PodResources]:
    with closing(PodResources(socket)) as pod_resources:
        yield pod_resources


def holding(name: str, *ids: str) -> Holding:
    return Holding(namespace="team-a", name=name, device_ids=frozenset(ids))


def test_devices_and_replicas_are_reported_with_the_pods_that_hold_them(
    kubelet: FakeKubelet, asked: PodResources
) -> None:
    kubelet.give("team-a/whole", "GPU-1", "GPU-2")
    kubelet.give("team-a/replica", "GPU-3::0", resource="nvidia.com/gpu.shared")
    kubelet.give("team-a/part", "MIG-1", resource="nvidia.com/mig-1g.5gb")
    kubelet.give("team-a/network", "eth7", resource="example.com/nic")
    kubelet.pods["team-a/plain"] = {}

    assert asked.read() == KubeletReading(
        answers=True,
        holdings=(holding("whole", "GPU-1", "GPU-2"), holding("replica", "GPU-3::0"), holding("part", "MIG-1")),
    )


def test_resource_claims_count_where_their_driver_names_devices_by_uuid(
    kubelet: FakeKubelet, asked: PodResources
) -> None:
    kubelet.claims["team-a/claimed"] = ["gpu-0", "GPU-7"]

    assert asked.read().holdings == (holding("claimed", "GPU-7"),)


def test_a_kubelet_without_a_device_plugin_says_so(kubelet: FakeKubelet, asked: PodResources) -> None:
    kubelet.offered = ["example.com/nic"]

    assert asked.read() == KubeletReading(
        answers=True, reason="no device plugin offers nvidia.com/gpu or nvidia.com/mig-*"
    )


def test_a_kubelet_that_cannot_list_allocatable_devices_is_no_failure(
    kubelet: FakeKubelet, asked: PodResources
) -> None:
    kubelet.is_old = True

    assert asked.read() == KubeletReading(answers=True)


def test_a_missing_socket_is_reported(asked: PodResources, socket: Path) -> None:
    assert asked.read() == KubeletReading(
        answers=False, reason=f"there is no socket at {socket}: No such file or directory"
    )


def test_a_refusal_is_reported(kubelet: FakeKubelet, asked: PodResources) -> None:
    kubelet.refusal = grpc.StatusCode.RESOURCE_EXHAUSTED

    assert asked.read() == KubeletReading(answers=False, reason="the kubelet refused: resource exhausted: not now")


def test_a_kubelet_that_is_available_again_is_read_at_once(asked: PodResources, socket: Path) -> None:
    kubelet = FakeKubelet()
    kubelet.give("team-a/p", "GPU-1")
    answers = []

    with listening(kubelet, socket):
        answers.append(asked.read().answers)
    socket.touch()  # nothing listens there
    answers.append(asked.read().answers)
    socket.unlink()
    with listening(kubelet, socket):
        answers.append(asked.read().answers)

    assert answers == [True, False, True]


def test_the_bytes_that_a_kubelet_sends_are_decoded() -> None:
    devices = field(1, b"nvidia.com/gpu") + field(2, b"GPU-1") + field(2, b"GPU-2") + field(3, field(1, b"\x08\x01"))
    container = field(1, b"main") + field(2, devices) + b"\x18\x07" + field(5, field(2, b"claim"))
    pod = field(1, b"train") + field(2, b"team-a") + field(3, container)

    (read,) = message("ListPodResourcesResponse").FromString(field(1, pod)).pod_resources

    assert (read.namespace, read.name) == ("team-a", "train")
    assert list(read.containers[0].devices[0].device_ids) == ["GPU-1", "GPU-2"]


def field(number: int, content: bytes) -> bytes:
    """Encode a field as Kubernetes' podresources/v1/api.proto numbers it."""
    return bytes([number << 3 | 2, len(content)]) + content
