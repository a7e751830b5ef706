"""The pod that holds a whole GPU."""

import re

import pytest

from app.cluster import decode
from app.cluster.gpus.parts import node_of
from app.cluster.gpus.reservation_pods import ReservationPodTerms, reservation_name, reservation_pod
from app.model.names import NodeName
from app.model.resources import Resources
from tests.cluster.raw import PROFILES, Raw

A, B = NodeName("a"), NodeName("b")
TERMS = ReservationPodTerms(image="pause", priority_class="highest", scheduler="kai-scheduler")
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")


def made(*, owner_uid: str = "u") -> Raw:
    return reservation_pod(A, "g", "r", owner_uid=owner_uid, terms=TERMS)


def test_the_same_gpu_always_has_the_same_name_and_no_other_has_it() -> None:
    names = [reservation_name(node, group, number) for node in (A, B) for group in ("g", "h") for number in (0, 1, 2)]

    assert len(set(names)) == 12
    assert names == [reservation_name(node, group, number) for node in (A, B) for group in "gh" for number in range(3)]


def test_a_name_with_the_prefix_of_a_gpu_belongs_to_that_gpu() -> None:
    assert reservation_name(A, "g", 7).startswith(reservation_name(A, "g"))
    assert not reservation_name(NodeName("a-b"), "g").startswith(reservation_name(A, "g"))


@pytest.mark.parametrize("node", ["a", "ip-10-0-0-1.internal", "n" * 253, "n" * 199 + "." + "x" * 40])
def test_a_name_is_valid_in_kubernetes(node: str) -> None:
    assert DNS_SUBDOMAIN.fullmatch(reservation_name(NodeName(node), "g", 63))


def test_a_written_reservation_pod_is_read_as_a_reservation_of_that_gpu_on_that_node() -> None:
    raw = made()
    raw["metadata"] |= {"uid": "r1", "namespace": "kai-resource-reservation"}

    found = decode.pod(raw, profiles=PROFILES)

    assert (found.reserves, found.managed, found.problem, node_of(found)) == ("g", False, "", A)
    assert found.request == Resources(cpu_milli=1, memory_bytes=16 << 20, pods=1)


def test_a_reservation_pod_requests_one_gpu_with_guaranteed_qos_and_the_highest_priority() -> None:
    spec = made()["spec"]
    (container,) = spec["containers"]

    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert (spec["priorityClassName"], spec["schedulerName"]) == ("highest", "kai-scheduler")
    assert spec["tolerations"] == [{"operator": "Exists"}]


def test_a_reservation_pod_is_deleted_with_its_gpunode_if_there_is_one() -> None:
    (owner,) = made()["metadata"]["ownerReferences"]

    assert (owner["kind"], owner["name"], owner["uid"]) == ("GpuNode", "a", "u")
    assert made(owner_uid="")["metadata"]["ownerReferences"] == []
