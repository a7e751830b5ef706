"""The cache about lost nodes: their reservations, their pods, and both when the node is ready again."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from app.cluster import decode
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.names import NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.podgroup import GroupSpec
from app.model.resources import NOTHING
from app.model.snapshot import Usage
from tests import given

N1, N2, Q = NodeName("n1"), NodeName("n2"), QueueName("q")
NODE, OTHER = given.node("n1"), given.node("n2")
DOWN = replace(NODE, ready=False)
UNREADABLE = replace(NODE, problem="allocatable cpu cannot be read")
PROMISED, AWAITING, BINDING = given.pod("promised"), given.pod("awaiting"), given.pod("binding")
ELSEWHERE = given.pod("elsewhere")
RUNS = given.pod("runs", node=N1)
LEAVES = replace(RUNS, deleting=True)
STRANGER = given.pod("stranger", queue="", managed=False, node=N1)


def cache(*nodes: Node) -> ClusterCache:
    found = ClusterCache()
    for node in nodes:
        found.apply_node(node)
    return found


def held(found: ClusterCache) -> dict[str, tuple[NodeName, ReservationState]]:
    return {one.pod.removeprefix("uid-"): (one.node, one.state) for one in found.reservations}


def allocated(found: ClusterCache) -> Usage:
    return found.charges.usage().get(Q, Usage())


def lose(found: ClusterCache, how: Node | None) -> None:
    if how is None:
        found.delete_node(N1)
    else:
        found.apply_node(how)


def with_promises() -> ClusterCache:
    found = cache(NODE, OTHER)
    for pod in (PROMISED, AWAITING, BINDING, ELSEWHERE):
        found.apply_pod(pod)
    found.promises.make(PROMISED.uid, N1, expires_at=60.0)
    found.promises.await_release(AWAITING.uid, N1, expires_at=60.0)
    found.promises.make(BINDING.uid, N1, expires_at=60.0)
    found.reservations.binding(BINDING.uid)
    found.promises.make(ELSEWHERE.uid, N2, expires_at=60.0)
    return found


@pytest.mark.parametrize("how", [DOWN, UNREADABLE, None])
def test_reservations_on_a_lost_node_end_at_once_except_those_with_a_possible_write(
    how: Node | None,
) -> None:
    found = with_promises()

    lose(found, how)

    assert held(found) == {"binding": (N1, ReservationState.BINDING), "elsewhere": (N2, ReservationState.PROMISED)}
    assert set(found.drain_changes().bereft) == {PROMISED.uid, AWAITING.uid}
    assert {PROMISED.group, AWAITING.group} <= found.snapshot().groups.keys()


def test_a_node_that_only_changes_keeps_its_reservations() -> None:
    found = with_promises()
    before = held(found)

    found.apply_node(replace(NODE, unschedulable=True, labels={"new": "label"}))

    assert (held(found), set(found.drain_changes().bereft)) == (before, set())


def test_an_unreachable_node_is_not_ready_even_before_its_condition_says_so() -> None:
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    raw = {"metadata": {"name": "n1", "uid": "u"}, "spec": {"taints": [taint]}, "status": ready}

    assert not decode.node(raw).ready


# Their pods -----------------------------------------------------------------------------------------------------------


def test_the_capacity_of_a_node_that_is_not_ready_is_not_divided_and_its_pods_stay_charged() -> None:
    found = cache(NODE, OTHER)
    for pod in (RUNS, STRANGER):
        found.apply_pod(pod)
    before = allocated(found)

    found.apply_node(DOWN)

    assert (found.snapshot().total, allocated(found)) == (OTHER.allocatable, before)


@pytest.mark.parametrize("how", [DOWN, None])
def test_a_terminating_pod_on_a_lost_node_is_no_longer_charged(how: Node | None) -> None:
    found = cache(NODE, OTHER)
    found.apply_pod(LEAVES)
    relief, before = found.changes.relief, allocated(found)

    lose(found, how)

    assert (before.allocated, allocated(found)) == (LEAVES.request, Usage())
    assert (found.snapshot().total, found.changes.relief > relief) == (OTHER.allocatable, True)


def test_a_pod_marked_for_eviction_on_a_lost_node_is_no_longer_charged_and_releases_capacity() -> None:
    found = cache(DOWN, OTHER)
    found.apply_pod(RUNS)
    relief = found.changes.relief

    found.mark_leaving(RUNS.uid)

    assert (allocated(found), found.changes.relief > relief) == (Usage(), True)


def test_a_terminating_pod_is_charged_again_when_its_node_is_ready_again() -> None:
    found = cache(DOWN, OTHER)
    found.apply_pod(LEAVES)

    found.apply_node(NODE)
    seen = found.snapshot()

    assert seen.usage[Q].allocated == LEAVES.request
    assert seen.total == NODE.allocatable + OTHER.allocatable
    assert int(seen.free[0, seen.nodes.index[N1]]) == (NODE.allocatable - LEAVES.request).cpu_milli


def test_nothing_is_left_of_a_pod_that_ended_on_a_lost_node() -> None:
    found = cache(NODE)
    found.apply_pod(LEAVES)
    found.apply_node(DOWN)

    found.delete_pod(LEAVES.uid)
    found.apply_node(NODE)

    assert (found.charges.usage(), found.snapshot().total - NODE.allocatable) == ({}, NOTHING)


def test_a_running_pod_on_a_lost_node_counts_for_its_gang_and_a_terminating_one_does_not() -> None:
    a, b = (given.pod(name, gang="g", node=node) for name, node in (("a", N1), ("b", N2)))
    found = cache(NODE, OTHER)
    found.apply_group(GroupSpec(key=a.group, uid="u", min_member=2))
    for pod in (a, b):
        found.apply_pod(pod)

    found.apply_node(DOWN)
    found.groups.age_stale(10.0)
    assert found.snapshot().running[a.group].stale_since is None

    found.apply_pod(replace(a, deleting=True))
    found.groups.age_stale(20.0)
    assert found.snapshot().running[a.group].stale_since == 20.0


def test_a_change_of_a_node_recounts_no_pod_that_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    found, recounted = cache(NODE), list[str]()
    for number in range(100):
        # On a dead node they stay for good, and their author may create any number of them.
        found.apply_pod(replace(LEAVES, uid=PodUid(f"u{number}"), managed=False, self_placed=True))
    found.apply_pod(LEAVES)
    whole = found._settlement._recharge

    def recharge(uid: PodUid) -> Collection[NodeName]:
        recounted.append(uid)
        return whole(uid)

    monkeypatch.setattr(found._settlement, "_recharge", recharge)

    found.apply_node(DOWN)
    found.apply_node(NODE)

    assert recounted == [LEAVES.uid] * 2


# Suspended groups -----------------------------------------------------------------------------------------------------


def test_a_podgroup_with_a_suspended_owner_gets_no_reservations_until_it_is_resumed() -> None:
    a, b = (given.pod(name, gang="g") for name in "ab")
    spec = GroupSpec(key=a.group, min_member=2, derived=True)
    found = cache(NODE, OTHER)
    found.derive_group(spec)
    for pod in (a, b):
        found.apply_pod(pod)
        found.promises.make(pod.uid, N1, expires_at=60.0)

    found.derive_group(replace(spec, suspended="Job g is suspended."))
    refusal = found.snapshot().groups[a.group].refusal
    assert (held(found), set(found.drain_changes().bereft)) == ({}, {a.uid, b.uid})
    assert refusal is not None
    assert refusal.sentence == "Job g is suspended."

    found.derive_group(spec)
    assert found.snapshot().groups[a.group].refusal is None
