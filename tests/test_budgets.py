"""Budgets: how cost grows, in ratios of CPU time or in counts, so that no machine is too slow for them.

The cost of plans is counted in calls of functions, which no other load changes. One pass over all nodes is one call, so
these are also counted by name, and so is allocated memory.
"""

import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from app.cluster.groups.membership import Membership
from app.cluster.state.cache import ClusterCache
from app.model.decision import Action
from app.model.device import Device, DeviceUuid, GpuNode, Holder
from app.model.names import NodeName
from app.model.pod import Pod, Sharing
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.policy import ALL_ACTIONS, Policy
from loadtest.mixtures import mixed, racks
from loadtest.snapshots import NOW, elastic, gangs, gangs_of_parts, hopeless, lone_pods, many_queues, reclaim
from tests import given
from tests.cluster.steps import nothing_collected

pytestmark = pytest.mark.slow

TRIES = 3
SLACK = 3.0
"""A cost of n log n grows by less than 1.3 per pod over these sizes, one of n * n by 4."""


def cost_s(work: Callable[[], object]) -> float:
    """Return the CPU time of the best of several tries, including work of one C call on many objects."""
    best = float("inf")
    with nothing_collected():
        for _ in range(TRIES):
            begin = time.process_time()
            work()
            best = min(best, time.process_time() - begin)
    return best


def growth(work: Callable[[int], Callable[[], object]], *, few: int, many: int) -> float:
    """Return how much more each of many costs than each of few."""
    return cost_s(work(many)) / many * few / cost_s(work(few))


ALL = "every function"
EVEN = 1.15
"""The allowed growth per object where calls are counted: started work is paid once."""


def calls(work: Callable[[], object]) -> Counter[str]:
    """Return how often each Python function was called, by name, and all functions, including those of C."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        found[ALL] += event in {"call", "c_call"}
        if event == "call":
            found[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    with nothing_collected():
        sys.setprofile(count)
        try:
            work()
        finally:
            sys.setprofile(before)
    return found


def calls_of_plan(snapshot: Snapshot, *actions: Action) -> Counter[str]:
    """Count the calls of a plan, of all its actions if none is named; the cache of its table is filled already."""
    policy = Policy(actions=actions or ALL_ACTIONS)
    plan(snapshot, policy, now=NOW)
    return calls(lambda: plan(snapshot, policy, now=NOW))


def allocated(work: Callable[[], object]) -> int:
    """Return how many bytes the work had allocated at most, above what there was before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        kept = work()
        _, peak = tracemalloc.get_traced_memory()
        del kept
        return peak - before
    finally:
        tracemalloc.stop()


def waiting(pods: int, *, gang: int = 1, gpus: int = 64) -> Snapshot:
    nodes = [given.node(f"n{index}", gpus=gpus, cpu=512) for index in range(50)]
    groups = [
        given.group(*(given.pod(f"p{first}-{index}", gang=f"g{first}", queue=f"q{first % 7}") for index in range(gang)))
        for first in range(0, pods, gang)
    ]
    return given.snapshot(nodes, [given.queue(f"q{index}") for index in range(7)], groups)


def bound(pods: int) -> ClusterCache:
    found = ClusterCache()
    for index in range(50):
        found.apply_node(given.node(f"n{index}", gpus=1000))
    for index in range(pods):
        found.apply_pod(given.pod(f"p{index}", node=NodeName(f"n{index % 50}")))
    return found


def sharing(nodes: int) -> ClusterCache:
    """Build nodes with an agent, on each of which four pods share two GPUs with reservation pods."""
    found = ClusterCache()
    for number in range(nodes):
        found.apply_node(given.node(f"n{number}", gpus=8))
        found.apply_gpu_node(report(number), heard_at=0.0)
        for pod in sharers(number):
            found.apply_pod(pod)
    found.snapshot()
    return found


def sharers(number: int) -> list[Pod]:
    node, half = NodeName(f"n{number}"), Sharing(portion_ppm=500_000)
    at: list[dict[str, Any]] = [
        {"node": node, "devices": (f"g{gpu}",), "device_uuids": (f"u{number}-{gpu}",)} for gpu in (0, 0, 1, 1)
    ]
    pods = [given.pod(f"p{number}-{index}", gpus=0, sharing=half, **more) for index, more in enumerate(at)]
    return pods + [reservation(number, gpu) for gpu in (0, 1)]


def reservation(number: int, gpu: int) -> Pod:
    more: dict[str, Any] = {
        "node": NodeName(f"n{number}"),
        "reserves": f"g{gpu}",
        "device_uuids": (f"u{number}-{gpu}",),
    }
    return given.pod(f"r{number}-{gpu}", gpus=0, queue="", managed=False, **more)


def report(number: int, *, used_mib: int = 0) -> GpuNode:
    devices = []
    for gpu in range(8):
        holders = (Holder("default", f"r{number}-{gpu}"),) if gpu < 2 else ()
        uuid = DeviceUuid(f"u{number}-{gpu}")
        devices.append(Device(uuid=uuid, memory_mib=80_000, used_mib=used_mib, holders=holders))
    return GpuNode(name=NodeName(f"n{number}"), devices=tuple(devices), kubelet_answers=True)


def halves(pods: int) -> Snapshot:
    """Build pending pods with half a GPU each, and just as many GPUs."""
    nodes = [given.node(f"n{number:05}", device_memory_mib=80_000) for number in range(pods // 16)]
    half = Sharing(portion_ppm=500_000)
    groups = [given.group(given.pod(f"p{index}", gpus=0, cpu=0, sharing=half)) for index in range(pods)]
    return given.snapshot(nodes, [given.queue("q")], groups)


def gang_of(size: int) -> list[Pod]:
    return [given.pod(f"p{index}", gang="g") for index in range(size)]


PLANS: dict[str, tuple[Callable[[int], Snapshot], int, int]] = {
    "lone pods": (waiting, 250, 1000),
    "lone pods of which most find no room": (lambda pods: waiting(pods, gpus=1), 250, 1000),
    "gangs of 20": (lambda pods: waiting(pods, gang=20), 400, 1600),
    "gangs of 20 of which most find no room": (lambda pods: waiting(pods, gang=20, gpus=1), 400, 1600),
    "halves of GPUs": (halves, 320, 1280),
    "pods of 20 shapes, with selectors and taints": (lambda pods: mixed(400, pods), 250, 1000),
    "gangs of 20 that each have to be in a rack": (lambda count: racks(320, count, pods=20), 10, 40),
    "gangs of parts of GPUs": (lambda count: gangs_of_parts(200, count, pods=20), 10, 40),
    "the pods of an elastic group": (lambda pods: elastic(200, pods), 250, 1000),
}
"""The planned inputs, by their number: of few and of many."""


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_makes_the_same_number_of_calls_per_podgroup_however_many_are_pending(name: str) -> None:
    build, few, many = PLANS[name]

    each_of_few, each_of_many = (calls_of_plan(build(size), Action.ALLOCATE)[ALL] / size for size in (few, many))

    assert each_of_many < EVEN * each_of_few


@pytest.mark.parametrize(
    ("most", "pods", "snapshot"),
    [
        (230, 500, lambda: lone_pods(250, 500)),
        (53, 500, lambda: lone_pods(250, 500, gpus=9)),
        (169, 400, lambda: waiting(400, gpus=1)),
        (118, 500, lambda: gangs(250, 25, pods=20)),
        (41, 400, lambda: waiting(400, gang=20, gpus=1)),
        (166, 400, lambda: racks(320, 20, pods=20)),
        (287, 480, lambda: halves(480)),
    ],
    ids=["lone", "fit nowhere", "mostly no room", "gangs", "gangs, mostly no room", "gangs in racks", "halves of GPUs"],
)
def test_a_plan_makes_a_limited_number_of_calls_per_pod(most: int, pods: int, snapshot: Callable[[], Snapshot]) -> None:
    # The current number and a little more: ten thousand pods take less than a second of any core while this holds.
    assert calls_of_plan(snapshot())[ALL] < most * pods


def test_a_plan_makes_no_more_calls_with_more_nodes() -> None:
    few, many = (calls_of_plan(lone_pods(nodes, 300))[ALL] for nodes in (100, 1600))

    assert many < EVEN * few


def test_all_nodes_are_ranked_once_per_shape_and_then_one_by_one_as_they_change() -> None:
    asking = lone_pods(1000, 500), gangs(1000, 25, pods=20), halves(480)

    found = [calls_of_plan(each) for each in asking]

    assert [(each["Ranks.everywhere"], each["Ranks.at"]) for each in found] == [(1, 499), (1, 499), (1, 479)]


def test_a_plan_for_a_new_pod_judges_only_the_nodes_that_have_changed_since_the_last_plan() -> None:
    before = lone_pods(1000, 1)
    plan_some(before, before.groups)
    after = replace(before, free=before.free.copy())
    after.free[:, [3, 7]] -= 1

    found = calls(lambda: plan_some(after, after.groups))

    assert (found["PackingCosts._together"], found["PackingCosts.cost_at"]) == (0, 2)
    assert found[ALL] < 414  # the current number and a little more


def test_most_pods_find_ranked_nodes_although_twenty_shapes_alternate() -> None:
    found = calls_of_plan(mixed(1000, 400), Action.ALLOCATE)

    assert 4 * found["Ranks.everywhere"] < 400


def test_a_gang_that_reclaims_makes_the_same_number_of_calls_per_gpu_however_many_it_reclaims() -> None:
    few, many = (calls_of_plan(reclaim(nodes))[ALL] / nodes for nodes in (200, 300))

    assert many < EVEN * few


def test_pods_without_a_claim_to_more_do_not_examine_running_pods() -> None:
    asked = calls_of_plan(hopeless(20))

    assert (asked["VictimSearch.solve"], asked["Victims._is_open"]) == (3 * 8, 0)


def test_victims_are_not_searched_where_no_eviction_could_help() -> None:
    helped, asked = calls_of_plan(reclaim(20)), calls_of_plan(many_queues(50, queues=20))

    assert min(helped["VictimCandidates.chunk"], helped["Foremost.pods"]) > 0
    assert (asked["VictimCandidates.chunk"], asked["Foremost.pods"]) == (0, 0)


def test_a_snapshot_after_one_change_costs_the_same_however_many_pods_run() -> None:
    def changing(pods: int) -> tuple[int, int]:
        found, late = bound(pods), given.pod("late")

        def change() -> Snapshot:
            found.apply_pod(late)
            return found.snapshot()

        for _ in range(2):  # the first time, what changes is taken apart from what does not
            change()
            found.delete_pod(late.uid)
            found.snapshot()
        counted = calls(change)[ALL]
        found.delete_pod(late.uid)
        found.snapshot()
        return counted, allocated(change)

    (few_calls, few_bytes), (many_calls, many_bytes) = changing(1000), changing(8000)

    assert (many_calls, many_bytes < EVEN * few_bytes) == (few_calls, True)


def test_a_snapshot_after_one_change_shares_what_has_not_changed() -> None:
    found = bound(1000)
    before = found.snapshot()

    found.apply_pod(given.pod("late"))
    after = found.snapshot()

    assert (after.nodes is before.nodes, len(after.groups)) == (True, 1)
    assert [key for key in before.running if after.running[key] is not before.running[key]] == []


def test_a_snapshot_after_one_change_copies_no_podgroup_however_many_are_pending() -> None:
    def changing(pods: int) -> int:
        found, late = bound(50), given.pod("late")
        for index in range(pods):
            found.apply_pod(given.pod(f"w{index}"))
        found.snapshot()
        found.apply_pod(late)
        return allocated(found.snapshot)

    few, many = (changing(pods) for pods in (1000, 8000))

    assert many < EVEN * few


def test_late_facts_about_gpus_affect_only_the_pods_on_their_node() -> None:
    def learning(nodes: int) -> Callable[[], object]:
        pods = [pod for number in range(nodes) for pod in sharers(number)]

        def learn() -> None:
            found = ClusterCache()
            for pod in pods:
                found.apply_pod(pod)
            for number in range(nodes):
                found.apply_node(given.node(f"n{number}"))
            for number in range(nodes):
                found.apply_gpu_node(report(number), heard_at=0.0)

        return learn

    assert growth(learning, few=100, many=400) < SLACK


def test_a_report_of_an_agent_costs_the_same_however_many_nodes_share_gpus() -> None:
    def telling(nodes: int) -> Callable[[], object]:
        found = sharing(nodes)

        def tell() -> None:
            for used_mib in range(100):
                found.apply_gpu_node(report(7, used_mib=used_mib), heard_at=1.0)
                found.gpu_books.age(0.0)

        return tell

    assert cost_s(telling(800)) < 2 * cost_s(telling(100))


def test_a_report_with_only_new_memory_values_makes_no_plan() -> None:
    found = sharing(2)
    found.apply_gpu_node(report(1, used_mib=90_000), heard_at=1.0)
    before = found.changes.version, found.changes.relief

    for used_mib in (90_001, 90_002):
        found.apply_gpu_node(report(1, used_mib=used_mib), heard_at=2.0)
    for used_mib in (1, 2):
        found.apply_gpu_node(report(0, used_mib=used_mib), heard_at=2.0)

    assert (found.changes.version, found.changes.relief) == before
    assert found.gpus.shared(NodeName("n1"))[0].reason == "90002 MiB of it are used, 80000 MiB are reserved"


def test_only_shared_gpus_that_need_an_action_are_examined_again() -> None:
    found = sharing(100)
    assert list(found.gpus.unsettled_nodes()) == []

    found.delete_pod(reservation(7, 0).uid)

    assert list(found.gpus.unsettled_nodes()) == ["n7"]


def test_another_fact_about_a_node_makes_no_new_columns() -> None:
    found = sharing(10)
    before = found.snapshots.table()

    found.apply_gpu_node(replace(report(3), kubelet_answers=False), heard_at=1.0)

    assert found.snapshots.table().index is before.index
    assert (found.snapshots.table() is before, found.snapshots.table().shares_devices.sum()) == (
        False,
        before.shares_devices.sum() - 1,
    )


def test_pods_join_and_leave_a_gang_at_a_cost_independent_of_its_size() -> None:
    def living(size: int) -> Callable[[], object]:
        pods = gang_of(size)

        def live() -> None:
            found = ClusterCache()
            for pod in pods:
                found.apply_pod(pod)
            for pod in pods:
                found.delete_pod(pod.uid)

        return live

    assert growth(living, few=500, many=2000) < SLACK


def test_a_gang_gets_its_reservations_at_a_cost_independent_of_its_size() -> None:
    def promising(size: int) -> Callable[[], object]:
        found = bound(0)
        for pod in gang_of(size):
            found.apply_pod(pod)
        pods = list(found.pods.all())

        def promise() -> None:
            for pod in pods:
                found.promises.make(pod.uid, NodeName("n0"), expires_at=60.0)
            for pod in pods:
                found.promises.drop(pod.uid)

        return promise

    assert growth(promising, few=500, many=2000) < SLACK


def test_only_the_changed_podgroup_is_formed_again() -> None:
    formed: list[Pod] = []
    found = Membership(formed.append)  # counts, and holds no place
    for index in range(1000):
        found.join(given.pod(f"p{index}"))
    found.waiting()
    formed.clear()

    found.join(given.pod("p7", cpu=2))
    found.waiting()

    assert formed == [given.pod("p7", cpu=2)]
