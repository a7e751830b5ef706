"""Attacks of the tenant of the threat model with objects that the API server accepts: they gain nothing.

Pods here are not gated: kube-scheduler and Leeboard handle each at once.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from tests.system.api import Object, pod, pod_group, queue
from tests.system.attacked import (
    OTHER_TEAM,
    Attacked,
    name,
    path_of,
    team_pod,
)
from tests.system.bed import Bed
from tests.system.cluster import ROOT
from tests.system.identities import User
from tests.system.tenants import TEAM, refusal

TEAM_GROUPS = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{TEAM}/podgroups"
IDLERS = 300


def a_node(attacked: Attacked) -> str:
    return str(attacked.api.items("/api/v1/nodes")[0]["metadata"]["name"])


# -- T4: the PodGroup of another team


def test_podgroups_of_one_name_in_two_namespaces_are_two(attacked: Attacked) -> None:
    attacked.api.create(pod_group("twin", min_member=2, queue=OTHER_TEAM))
    theirs = attacked.api.create(pod(name(), queue=OTHER_TEAM, gang="twin"))
    attacked.tenant.create(pod_group("twin", min_member=2, queue=TEAM, namespace=TEAM))
    first = attacked.tenant.create(team_pod(queue=TEAM, gang="twin"))
    assert {attacked.reason_of(made) for made in (theirs, first)} == {"NotReady"}

    second = attacked.tenant.create(team_pod(queue=TEAM, gang="twin"))

    for made in (first, second):
        attacked.wait_for_node(made)
    attacked.charge({TEAM: 2})
    assert (attacked.reason_of(theirs), attacked.node_of(theirs)) == ("NotReady", "")


@pytest.mark.parametrize("reference", ["theirs", "default/theirs"])
def test_pod_does_not_join_the_podgroup_of_another_namespace(attacked: Attacked, reference: str) -> None:
    attacked.api.create(pod_group("theirs", min_member=2, queue=OTHER_TEAM))
    waiting = attacked.api.create(pod(name(), queue=OTHER_TEAM, gang="theirs"))
    with attacked.nothing_taken():
        stranger = attacked.tenant.create(team_pod(queue=TEAM, gang=reference))
        assert attacked.reason_of(stranger) in {"PodGroupDoesNotExist", "InvalidRequest"}
    assert attacked.reason_of(waiting) == "NotReady"
    assert not attacked.node_of(stranger)


@pytest.mark.parametrize("min_member", [1, 5])
def test_podgroup_created_again_with_another_minimum_changes_no_charge(attacked: Attacked, min_member: int) -> None:
    attacked.tenant.create(pod_group("g", min_member=2, queue=TEAM, namespace=TEAM))
    members = [attacked.tenant.create(team_pod(queue=TEAM, gang="g")) for _ in range(2)]
    for made in members:
        attacked.wait_for_node(made)
    attacked.charge({TEAM: 2})

    with attacked.nothing_taken():
        attacked.tenant.delete_now(f"{TEAM_GROUPS}/g")
        attacked.tenant.create(pod_group("g", min_member=min_member, queue=TEAM, namespace=TEAM))


def test_pending_gang_whose_podgroup_is_created_again_starts_by_the_new_minimum(attacked: Attacked) -> None:
    attacked.tenant.create(pod_group("g", min_member=3, queue=TEAM, namespace=TEAM))
    members = [attacked.tenant.create(team_pod(queue=TEAM, gang="g")) for _ in range(2)]
    assert {attacked.reason_of(made) for made in members} == {"NotReady"}

    attacked.tenant.delete_now(f"{TEAM_GROUPS}/g")
    attacked.tenant.create(pod_group("g", min_member=2, queue=TEAM, namespace=TEAM))

    for made in members:
        attacked.wait_for_node(made)
    attacked.charge({TEAM: 2})


# -- T8: borrowed GPUs are returned


def test_gang_on_borrowed_gpus_does_not_become_non_preemptible_by_a_new_podgroup(attacked: Attacked) -> None:
    attacked.tenant.create(pod_group("g", min_member=1, queue=TEAM, namespace=TEAM))
    attacked.wait_for_node(attacked.tenant.create(team_pod(queue=TEAM, gpus=8, gang="g")))

    attacked.tenant.delete_now(f"{TEAM_GROUPS}/g")
    firm = pod_group("g", min_member=1, queue=TEAM, namespace=TEAM, preemptibility="non-preemptible")
    attacked.tenant.create(firm)

    attacked.wait_for_node(attacked.api.create(pod(name(), queue=OTHER_TEAM, gpus=4)))
    attacked.charge({OTHER_TEAM: 4})


def test_pod_on_borrowed_gpus_does_not_become_non_preemptible_by_its_labels(attacked: Attacked) -> None:
    made = attacked.serve(gpus=8)

    # Outside the secure profile a tenant may write them, too.
    labels = {"kai.scheduler/preemptibility": "non-preemptible", "priorityClassName": "inference"}
    attacked.api.patch(path_of(made), {"metadata": {"labels": labels}})

    attacked.wait_for_node(attacked.api.create(pod(name(), queue=OTHER_TEAM, gpus=4)))
    attacked.charge({OTHER_TEAM: 4})


# -- T7: numbers and cycles


WRONG = [
    *({"gpu-fraction": wrong} for wrong in ("NaN", "-0.5", "0", "1e400", "5e-1", "0.\u0665", "0.5\n", "1_0", "2")),
    *({"gpu-memory": wrong} for wrong in ("9223372036854775808", "-1", "0", "1024.5", "\u0661\u0660")),
    {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "9" * 30},
    {"gpu-fraction": "0.5", "gpu-memory": "1024"},
]


@pytest.mark.parametrize("annotations", WRONG, ids=str)
def test_wrong_amount_is_refused_or_reported_and_never_free(attacked: Attacked, annotations: dict[str, str]) -> None:
    with attacked.nothing_taken():
        attempt(attacked, team_pod(queue=TEAM, gpus=0, annotations=annotations))


def attempt(attacked: Attacked, item: Object) -> None:
    """Try to create a pod; if the API server accepts it, it must have a reason why it is pending, and get no node."""
    if refusal(attacked.tenant, item):
        return
    assert attacked.reason_of(item)
    assert not attacked.node_of(item)


QUANTITIES = [
    {"nvidia.com/gpu": "9223372036854775807"},
    {"nvidia.com/gpu": "-1"},
    {"nvidia.com/gpu": "1", "cpu": "9223372036854775807"},
    {"nvidia.com/gpu": "1", "memory": "9223372036854775807Ei"},
    {"nvidia.com/gpu": "1", "memory": "1e400"},
    {"nvidia.com/mig-1g.10gb": "9223372036854775807"},
]


@pytest.mark.parametrize("limits", QUANTITIES, ids=str)
def test_absurd_quantity_is_refused_or_reported_and_does_not_overflow(
    attacked: Attacked, limits: Mapping[str, str]
) -> None:
    container = {"name": "main", "image": "none", "resources": {"limits": dict(limits)}}
    with attacked.nothing_taken():
        attempt(attacked, team_pod(queue=TEAM, spec={"containers": [container]}))


def test_many_absurd_quantities_do_not_add_up_to_little(attacked: Attacked) -> None:
    with attacked.nothing_taken():
        limits = {"nvidia.com/gpu": str(2**62)}
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        attacked.tenant.create(pod_group("sum", min_member=4, queue=TEAM, namespace=TEAM))
        for _ in range(4):
            attempt(attacked, team_pod(queue=TEAM, gang="sum", spec={"containers": [container]}))


@pytest.mark.parametrize("minimum", [-1, 0.5, "NaN", 2**31, 2**64])
def test_wrong_minimum_of_a_gang_is_refused(attacked: Attacked, minimum: object) -> None:
    item = pod_group("g", min_member=1, queue=TEAM, namespace=TEAM)
    item["spec"]["minMember"] = minimum
    assert "minMember" in refusal(attacked.tenant, item)


def test_cycle_of_queues_is_reported_and_affects_no_other_queue(attacked: Attacked) -> None:
    with attacked.nothing_taken():
        attacked.api.create(queue("ring-a", parent="ring-b", deserved=100))
        attacked.api.create(queue("ring-b", parent="ring-a", deserved=100))
        caught = attacked.api.create(pod(name(), queue="ring-a"))
        assert attacked.reason_of(caught)
        assert not attacked.node_of(caught)


def test_cycle_of_sub_groups_is_reported_and_affects_no_other_podgroup(attacked: Attacked) -> None:
    ring = [{"name": "a", "parent": "b", "minMember": 1}, {"name": "b", "parent": "a", "minMember": 1}]
    with attacked.nothing_taken():
        attacked.tenant.create(pod_group("ring", min_member=1, queue=TEAM, namespace=TEAM, subGroups=ring))
        labels = {"kai.scheduler/subgroup-name": "a"}
        caught = attacked.tenant.create(team_pod(queue=TEAM, gang="ring", labels=labels))
        assert attacked.reason_of(caught)
        assert not attacked.node_of(caught)


# -- T9: running pods are charged, whichever scheduler placed them


def test_pod_that_another_scheduler_has_bound_is_charged(attacked: Attacked) -> None:
    made = attacked.api.create(pod(name(), queue=OTHER_TEAM, gpus=6, scheduler="another-scheduler"))
    target = {"apiVersion": "v1", "kind": "Node", "name": a_node(attacked)}
    head = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": made["metadata"]["name"]}, "target": target}

    attacked.api.call("POST", f"{path_of(made)}/binding", body=head)

    attacked.charge({OTHER_TEAM: 6})
    refused = attacked.tenant.create(team_pod(queue=TEAM, gpus=3))
    assert attacked.reason_of(refused)
    with attacked.nothing_taken():
        assert not attacked.node_of(refused)


def test_managed_pod_created_with_a_node_is_charged(attacked: Attacked) -> None:
    attacked.api.create(pod(name(), queue=OTHER_TEAM, gpus=6, spec={"nodeName": a_node(attacked)}))
    attacked.charge({OTHER_TEAM: 6})


# -- T11: Leeboard's own ports


def question(made: Object, node: str) -> Object:
    return {"Pod": made, "NodeNames": [node], "Nodes": None}


def test_calls_about_pods_that_do_not_exist_change_nothing(attacked: Attacked) -> None:
    ghost = team_pod(queue=TEAM, gpus=8)
    ghost["metadata"]["uid"] = str(uuid4())
    with attacked.nothing_taken(), httpx.Client(base_url=attacked.extender, timeout=10) as port:
        for _ in range(3):
            said = port.post("/filter", json=question(ghost, a_node(attacked))).json()
            assert said["NodeNames"] in (None, [])
            bind = {"PodName": ghost["metadata"]["name"], "PodNamespace": TEAM, "PodUID": ghost["metadata"]["uid"]}
            assert port.post("/bind", json=bind | {"Node": a_node(attacked)}).json()["Error"]


def test_replayed_bind_moves_and_frees_nothing(attacked: Attacked) -> None:
    honest = attacked.serve()
    node = attacked.node_of(honest)
    real = {"PodName": honest["metadata"]["name"], "PodNamespace": TEAM, "PodUID": honest["metadata"]["uid"]}
    with attacked.nothing_taken(), httpx.Client(base_url=attacked.extender, timeout=10) as port:
        for wrong in ({"PodUID": str(uuid4())}, {"Node": "elsewhere"}, {"PodNamespace": "default"}):
            assert port.post("/bind", json=real | {"Node": node} | wrong).json()["Error"]
        port.post("/bind", json=real | {"Node": node})
    assert attacked.node_of(honest) == node


def test_endless_bodies_and_silent_connections_delay_no_other_caller(attacked: Attacked) -> None:
    with ExitStack() as stack, attacked.nothing_taken():
        for index in range(IDLERS):
            said = announced(4_000_000) + b"{" if index % 2 else b"POST /filter HT"
            stack.enter_context(connection(attacked)).sendall(said)
        greedy = stack.enter_context(connection(attacked))
        greedy.sendall(announced(50_000_000))
        assert b"the body is larger than" in greedy.makefile("rb").read()


def test_token_of_a_tenant_shows_no_name_of_another_namespace(attacked: Attacked, bed: Bed) -> None:
    other = attacked.api.create(pod(f"secret-{name()}", queue=OTHER_TEAM, gpus=64))
    mine = attacked.tenant.create(team_pod(queue=TEAM, gpus=64))
    for waiting in (other, mine):
        attacked.reason_of(waiting)

    def read(path: str, headers: Mapping[str, str]) -> httpx.Response:
        return httpx.get(f"{attacked.operations}{path}", headers=headers, timeout=10)

    ours, theirs = bed.reading(User.TENANT), f"default/{other['metadata']['name']}"
    answers = {
        path: read(path, ours) for path in ("/api/v1/podgroups", f"/api/v1/why/{TEAM}/{mine['metadata']['name']}")
    }
    assert {path: one.status_code for path, one in answers.items()} == dict.fromkeys(answers, 200)
    assert not [path for path, one in answers.items() if "secret-" in one.text or '"namespace":"default"' in one.text]
    assert "another namespace, 64 GPUs" in answers["/api/v1/podgroups"].text
    assert '"namespace":"default"' in read("/api/v1/podgroups", attacked.reading).text
    refused = ("/api/v1/queues", "/metrics", f"/api/v1/why/{theirs}", f"/api/v1/pods/{theirs}")
    assert {read(path, ours).status_code for path in refused} == {403}
    assert {read(path, {}).status_code for path in (*answers, *refused, "/api/v1/gpus")} == {401}
    assert read("/livez", {}).status_code == 200


def announced(length: int) -> bytes:
    return f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def connection(attacked: Attacked) -> socket.socket:
    place = urlsplit(attacked.extender)
    return socket.create_connection((place.hostname, place.port or 80), timeout=10)


def test_port_of_the_extender_is_not_opened_to_the_network_without_certificates() -> None:
    env = os.environ | {"LEEBOARD_WEBHOOK_HOST": "0.0.0.0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve"], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "is not loopback" in done.stdout + done.stderr
