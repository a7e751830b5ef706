"""The known facts about the GPUs of every node: reports, shares, reservation pods, and the results."""

from dataclasses import replace
from typing import Any

import pytest

from app.cluster.gpus.gpus import Gpus, facts_of
from app.cluster.gpus.parts import node_of
from app.cluster.gpus.shared_gpus import GpuState
from app.cluster.ledger.nodes import AgentFacts
from app.cluster.state.cache import ClusterCache
from app.model.device import GpuNode, Health
from app.model.names import NodeName, PodUid
from app.model.pod import NODE_NAME_FIELD, Constraint, Operator, Pod, Requirement, Sharing
from app.model.snapshot import NodeTable
from tests import given
from tests.cluster.sharing_given import MIB, A, device, part, report, reservation

B = NodeName("b")
R = reservation()
RUNS = part("p", uuids=["u1"])
WELL = report(device("u1", R), device("u2"))


def gpus(*, told: GpuNode | None = WELL) -> Gpus:
    found = Gpus(given.GpuSizes(MIB, 2), tolerance_mib=0)
    if told is not None:
        found.report(told, heard_at=0.0)
    found.parts.put(RUNS.pod, RUNS)
    found.reservations.put(R.uid, R)
    found.refresh(A)
    return found


def state(found: Gpus) -> GpuState | None:
    found.refresh(A)
    known = found.find(A, "g")
    return known.state if known else None


# Reports of the agents


def test_a_heartbeat_is_no_change_and_keeps_the_agent_trusted() -> None:
    found = gpus()

    assert not found.report(WELL, heard_at=50.0)
    assert not found.agents.age(40.0)
    assert (found.agents.heard_at(A), found.agents.is_trusted(A)) == (50.0, True)


def test_an_agent_falls_silent_once_and_its_next_report_is_a_change() -> None:
    found = gpus()

    assert (list(found.agents.age(1.0)), list(found.agents.age(1.0)), state(found)) == ([A], [], GpuState.UNCONFIRMED)
    assert (found.report(WELL, heard_at=2.0), state(found)) == (True, GpuState.READY)


def test_an_agent_that_is_deleted_is_not_trusted() -> None:
    found = gpus()

    assert (found.agents.forget(A), found.agents.forget(A)) == (True, False)
    assert (found.agents.is_trusted(A), found.agents.heard_at(A), state(found)) == (False, None, GpuState.UNCONFIRMED)


@pytest.mark.parametrize("unread", [{"message": "driver not loaded"}, {"problem": "field devices is 3"}])
def test_devices_that_could_not_be_read_are_not_removed(unread: dict[str, str]) -> None:
    found = gpus(told=report(**unread))

    assert (found.agents.reliable(A), state(found), found.on(A).blocked) == (None, GpuState.UNCONFIRMED, 0)


SICK = report(device("u1"), device("u2", health=Health.UNHEALTHY))


@pytest.mark.parametrize(
    "later",
    [
        {"kubelet_answers": False, "devices": SICK.devices},
        {"message": "driver not loaded"},
        {"problem": "field devices is 3"},
        None,
    ],
)
@pytest.mark.parametrize("holders", [(), (R,)])
def test_an_unhealthy_gpu_takes_no_pods_while_there_is_no_newer_report(later: Any, holders: tuple[Pod, ...]) -> None:
    found = Gpus(given.GpuSizes(MIB, 2), tolerance_mib=0)
    found.report(report(device("u1"), device("u2", *holders, health=Health.UNHEALTHY)), heard_at=0.0)
    found.refresh(A)

    if later is None:
        found.agents.age(1.0)
    else:
        found.report(GpuNode(name=A, **later), heard_at=1.0)
    _, unknown = found.refresh(A)
    found.report(report(device("u1"), device("u2")), heard_at=2.0)
    _, healed = found.refresh(A)

    assert (unknown.blocked, unknown.idle, healed.blocked) == (1, 0, 0)


def test_an_unhealthy_gpu_is_not_subtracted_twice_when_its_device_plugin_removes_it_too() -> None:
    sizes = given.GpuSizes(MIB, 2)
    found = Gpus(sizes, tolerance_mib=0)
    found.report(SICK, heard_at=0.0)
    found.agents.age(1.0)
    found.refresh(A)

    sizes.gpus_a_node = 1

    assert found.refresh(A)[1].blocked == 0


def test_the_gpus_of_a_deleted_agent_are_forgotten() -> None:
    found = Gpus(given.GpuSizes(MIB, 2), tolerance_mib=0)
    found.report(SICK, heard_at=0.0)
    found.agents.age(1.0)
    found.refresh(A)

    found.agents.forget(A)

    assert found.refresh(A)[1].blocked == 0


def test_an_agent_adds_the_smallest_gpu_memory_rounded_to_steps_to_its_node() -> None:
    told = report(device("u1", memory_mib=81_559), device("u2", memory_mib=0), device("u3", memory_mib=9, is_mig=True))

    assert facts_of(told) == AgentFacts(opens_devices=True, memory_mib=81_500)
    assert facts_of(replace(told, kubelet_answers=False)) == AgentFacts(memory_mib=81_500)
    assert facts_of(report()) == AgentFacts()


# GPU shares and reservation pods


def test_a_change_is_reported_once() -> None:
    found = gpus()
    assert (list(found.drain_changes().nodes), list(found.drain_changes().nodes)) == ([A], [])

    found.report(report(device("u1", R), device("u2"), boot_id="later"), heard_at=1.0)
    found.refresh(A)

    assert not found.drain_changes().nodes


def test_a_gpu_share_that_moves_changes_both_nodes() -> None:
    found = gpus()

    assert list(found.parts.put(RUNS.pod, replace(RUNS, node=B))) == [A, B]
    assert list(found.parts.put(RUNS.pod, replace(RUNS, node=B))) == []
    assert list(found.parts.put(RUNS.pod, None)) == [B]
    assert (list(found.parts.on(A)), list(found.parts.on(B)), found.parts.of(RUNS.pod)) == ([], [], None)


def test_a_gpu_is_forgotten_with_its_last_share_and_reservation_pod() -> None:
    found = gpus(told=None)
    found.parts.put(RUNS.pod, None)
    found.reservations.put(R.uid, None)
    found.refresh(A)

    assert (found.find(A, "g"), found.listed(), found.sharing_nodes()) == (None, {}, [])


def test_a_reservation_pod_counts_on_its_intended_node_before_it_is_bound() -> None:
    pinned = Constraint(terms=((Requirement(NODE_NAME_FIELD, Operator.IN, ("a",)),),))
    on_its_way = replace(R, node=None, constraint=pinned)

    assert [node_of(pod) for pod in (R, on_its_way, replace(R, node=None))] == [A, A, None]


def test_a_reservation_pod_for_no_node_counts_nowhere() -> None:
    found = gpus()

    assert list(found.reservations.put(R.uid, replace(R, node=None))) == [A]
    assert (found.reservations.get(R.uid), state(found)) == (None, GpuState.CONTESTED)


def test_a_closed_gpu_is_open_again_when_its_removal_is_cancelled() -> None:
    found = gpus()
    found.parts.put(RUNS.pod, None)
    found.close(A, "g")
    assert (state(found), [(each.name, each.free < 0) for each in found.listed()[A]]) == (
        GpuState.CLOSING,
        [("g", True)],
    )

    found.reopen(A, "g")

    assert (state(found), [(each.name, each.free < 0) for each in found.listed()[A]]) == (
        GpuState.READY,
        [("g", False)],
    )
    found.reopen(A, "g")


# Reading


def test_a_pod_names_which_of_its_gpus_are_not_ready() -> None:
    found = gpus()
    found.parts.put(RUNS.pod, replace(RUNS, names=("g", "h"), uuids=("u1", "u2")))
    found.refresh(A)

    assert found.not_ready(RUNS.pod) == [(A, "h")]
    assert (found.is_ready(A, "g"), found.is_ready(B, "g"), found.not_ready(PodUid("nobody"))) == (True, False, [])
    assert [(each.name, each.uuid) for each in found.of_pod(RUNS.pod)] == [("g", "u1"), ("h", "u2")]


def test_idle_devices_are_columns_that_follow_the_table_and_the_reports() -> None:
    found, table = gpus(), NodeTable.of([given.node("a"), given.node("b")])
    frozen = found.idle(table)
    assert frozen is not None
    assert frozen.tolist() == [0b10, 0]

    found.report(report(device("u1", R), device("u2", R)), heard_at=1.0)
    found.refresh(A)
    now = found.idle(table)

    assert now is not None
    assert (now.tolist(), frozen.tolist()) == ([0, 0], [0b10, 0])


def test_idle_devices_are_unknown_where_no_agent_reports() -> None:
    assert gpus(told=None).idle(NodeTable.of([given.node("a")])) is None


def test_the_data_given_to_the_planner_never_changes() -> None:
    found = gpus()
    before = found.listed()

    found.parts.put(RUNS.pod, None)
    found.refresh(A)

    assert (before[A][0].free < found.listed()[A][0].free, found.listed() is before) == (True, False)


# In the cache


def sized(*sizes: int) -> ClusterCache:
    cache = ClusterCache()
    for name, mib in zip("abc", sizes, strict=False):
        cache.apply_node(given.node(name, device_memory_mib=mib))
    return cache


def asks(cache: ClusterCache, mib: int = 1000) -> int:
    """Create a pending pod with a request by memory; return the amount requested in its queue."""
    pod = given.pod("m", gpus=0, sharing=Sharing(memory_mib=mib))
    cache.apply_pod(pod)
    return requested(cache)


def requested(cache: ClusterCache) -> int:
    (usage,) = cache.charges.usage().values()
    return usage.requested.gpu_milli


def test_a_request_by_memory_is_measured_by_the_smallest_gpu_that_currently_exists() -> None:
    cache = sized(4000, 2000)
    assert asks(cache) == 500

    cache.delete_node(B)
    assert requested(cache) == 250
    cache.apply_node(given.node("c", device_memory_mib=8000))
    assert requested(cache) == 250
    cache.apply_node(given.node("a", device_memory_mib=1000))
    assert requested(cache) == 1000


def test_a_pod_whose_node_is_deleted_is_charged_as_if_it_were_new() -> None:
    cache = sized(4000, 2000)
    pod = given.pod("m", gpus=0, sharing=Sharing(memory_mib=1000), node=B)
    cache.apply_pod(pod)

    cache.delete_node(B)
    kept = requested(cache)
    cache.delete_pod(pod.uid)
    cache.apply_pod(pod)

    assert kept == requested(cache) == 250


def test_pods_seen_before_their_nodes_cost_what_they_cost_on_their_nodes() -> None:
    cache = ClusterCache()
    cache.apply_pod(given.pod("m", gpus=0, sharing=Sharing(memory_mib=1000), node=B))

    for name in "ab":
        cache.apply_node(given.node(name, device_memory_mib=4000))

    assert requested(cache) == 250


def test_gpus_keep_their_size_while_their_agent_is_silent_or_cannot_read_them() -> None:
    cache = sized(0)
    cache.apply_gpu_node(report(device("u1", memory_mib=4000)), heard_at=0.0)
    assert asks(cache) == 250

    cache.gpu_books.age(1.0)
    assert requested(cache) == 250
    cache.apply_gpu_node(report(message="driver not loaded"), heard_at=2.0)
    assert requested(cache) == 250
    assert not cache.snapshots.table().shares_devices.any()


def test_thousands_of_nodes_build_no_table_each(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, built = ClusterCache(), list[None]()
    # The table is built by a static method, which no collaborator owns.
    monkeypatch.setattr(NodeTable, "of", staticmethod(lambda _: built.append(None)))

    for number in range(100):
        cache.apply_node(given.node(f"n{number}"))

    assert built == []


def test_no_pod_joins_a_gpu_whose_node_oversubscribes_gpus_by_now() -> None:
    found = Gpus(given.GpuSizes(MIB, 2, shares=False), tolerance_mib=0)
    found.report(WELL, heard_at=0.0)
    found.parts.put(RUNS.pod, RUNS)
    found.reservations.put(R.uid, R)

    _, now = found.refresh(A)

    assert [(gpu.is_open, gpu.state) for gpu in now.shared] == [(False, GpuState.READY)]
    assert now.shared[0].reason.startswith("its node now gives out each GPU several times")
    assert not now.shared[0].may_pass
