"""A pod with excessive entries is refused with a message, charged where it runs, and cheap to check."""

from typing import Any

import pytest

from app.cluster import decode
from app.cluster.decode.demand import MOST_AMOUNTS
from app.cluster.decode.excess import excess
from app.model.pod import NOWHERE
from app.model.resources import Resources
from tests.cluster.steps import steps

PROFILES = frozenset({"kai-scheduler"})
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

CPU = {"name": "c", "resources": {"requests": {"cpu": "1"}}}

Raw = dict[str, Any]


def raw(metadata: Raw | None = None, **spec: Any) -> Raw:
    named = {"name": "p", "uid": "u", "namespace": "n"}
    return {
        "metadata": named | (metadata or {}),
        "spec": {"schedulerName": "kai-scheduler", "containers": [CPU]} | spec,
    }


def node_affinity(*terms: Raw) -> Raw:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def names(size: int) -> Raw:
    return {f"k{number}": "v" for number in range(size)}


def expressions(size: int) -> list[Raw]:
    return [{"key": "zone", "operator": "Exists"}] * size


MANY = {
    "metadata.labels": lambda size: raw({"labels": names(size)}),
    "metadata.annotations": lambda size: raw({"annotations": names(size)}),
    "metadata.ownerReferences": lambda size: raw({"ownerReferences": [{"name": "o"}] * size}),
    "spec.containers": lambda size: raw(containers=[CPU] * size),
    "spec.initContainers": lambda size: raw(initContainers=[CPU] * size),
    "spec.nodeSelector": lambda size: raw(nodeSelector=dict.fromkeys(names(size), "v")),
    "spec.tolerations": lambda size: raw(tolerations=[{"operator": "Exists"}] * size),
    "spec.schedulingGates": lambda size: raw(schedulingGates=[{"name": "g"}] * size),
    "terms": lambda size: raw(affinity=node_affinity(*[{"matchExpressions": expressions(1)}] * size)),
    "requirements": lambda size: raw(affinity=node_affinity({"matchExpressions": expressions(size)})),
    "pods to be near": lambda size: raw(affinity={"podAffinity": {REQUIRED: [{"topologyKey": "zone"}] * size}}),
    "pods to be apart": lambda size: raw(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}] * size}}),
    "requests": lambda size: raw(containers=[{"name": "c", "resources": {"requests": names(size)}}]),
}


@pytest.mark.parametrize("what", MANY)
def test_the_message_of_a_pod_with_too_many_entries_gives_the_allowed_number(what: str) -> None:
    assert excess(MANY[what](256)) == ""
    assert excess(MANY[what](257)).endswith("has 257 items; write at most 256")


@pytest.mark.parametrize("what", MANY)
def test_a_pod_with_too_many_entries_stays_pending_and_costs_no_more_with_further_entries(what: str) -> None:
    more, most = MANY[what](300), MANY[what](3000)

    pod = decode.pod(more, profiles=PROFILES)

    assert (pod.problem, pod.request.cpu_milli) == (excess(more), 0)
    assert steps(lambda: decode.pod(most, profiles=PROFILES)) <= 1.2 * steps(
        lambda: decode.pod(more, profiles=PROFILES)
    )


def test_all_containers_of_a_running_pod_are_charged() -> None:
    pod = decode.pod(raw(containers=[CPU] * 300, nodeName="a"), profiles=PROFILES)

    assert (pod.node, pod.request) == ("a", Resources(cpu_milli=300_000, pods=1))


def test_a_pod_may_state_some_thousands_of_amounts_in_all_its_containers() -> None:
    some = [{"name": "c", "resources": {"requests": names(64), "limits": names(64)}}] * 32

    assert excess(raw(containers=some)) == ""
    assert excess(raw(containers=some, initContainers=[CPU])) == (
        "requests and limits of all containers has 4097 items; write at most 4096"
    )


def running(containers: list[Raw]) -> Raw:
    return raw(containers=containers, nodeName="a") | {"status": {"startTime": "2026-01-01T00:00:00Z"}}


def test_containers_that_request_different_resources_cost_no_more() -> None:
    many = [{"name": "c", "resources": {"requests": {f"vendor.example/{n % 32}": "1"}}} for n in range(500)]

    pod = decode.pod(running(many), profiles=PROFILES)

    assert dict(pod.scalars)["vendor.example/0"] == 16
    assert steps(lambda: decode.pod(running(many), profiles=PROFILES)) <= 2 * steps(
        lambda: decode.pod(running([CPU] * 500), profiles=PROFILES)
    )


def test_amounts_that_never_count_are_dropped_before_they_are_read() -> None:
    native = {f"kubernetes.io/{number}": "1" for number in range(256)}
    few = dict(list(native.items())[:16])
    many = running([{"name": "c", "resources": {"requests": native}}] * 16)
    spread = running([{"name": "c", "resources": {"requests": few}}] * 256)

    pod = decode.pod(many, profiles=PROFILES)

    assert (pod.request, pod.scalars, pod.unread) == (Resources(pods=1), (), False)
    assert 2 * steps(lambda: decode.pod(many, profiles=PROFILES)) <= steps(
        lambda: decode.pod(spread, profiles=PROFILES)
    )


def test_amounts_beyond_the_allowed_number_are_not_read_and_count_as_unread() -> None:
    asks = {f"vendor.example/{number}": "0" for number in range(31)} | {"cpu": "1"}
    most = [{"name": "c", "resources": {"requests": asks}}] * (MOST_AMOUNTS // len(asks))

    within, beyond = (decode.pod(running(each), profiles=PROFILES) for each in (most, [*most, CPU]))

    assert (within.request.cpu_milli, within.unread) == (1000 * len(most), False)
    assert (beyond.request.cpu_milli, beyond.unread) == (1000 * len(most), True)


def test_a_device_request_cannot_be_hidden_behind_other_resources() -> None:
    asked = {f"vendor.example/{number}": "1" for number in range(300)} | {"nvidia.com/mig-1g.5gb": "1"}

    pod = decode.pod(raw(containers=[{"name": "c", "resources": {"requests": asked}}], nodeName="a"), profiles=PROFILES)

    assert ("nvidia.com/mig-1g.5gb", 1) in pod.scalars


def test_a_pod_may_name_a_limited_number_of_node_labels() -> None:
    few, many = raw(nodeSelector=names(16)), raw(nodeSelector=names(17))

    assert decode.pod(few, profiles=PROFILES).problem == ""
    assert decode.pod(many, profiles=PROFILES).problem.endswith("name 17 labels; name at most 16")
    assert decode.pod(many, profiles=PROFILES).constraint is NOWHERE


def test_a_pod_may_list_some_thousands_of_label_values() -> None:
    values = [{"key": "zone", "operator": "In", "values": ["a"] * 2048}] * 2

    assert excess(raw(affinity=node_affinity({"matchExpressions": values}))) == ""
    assert excess(raw(affinity=node_affinity({"matchExpressions": [*values, values[0]]}))).startswith("values of")
