"""Rules of whole plans that KAI's own tests do not cover, each on the smallest cluster that shows it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from app.model.decision import Action, Plan
from app.model.names import NodeName
from app.model.node import Node
from app.model.pod import Near, Pod, Sharing
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.queue import Queue
from app.model.reason import Reason
from app.scheduling.planner.planner import plan
from tests import given
from tests.scheduling.worlds import NOW, World

HALVES = [given.queue("a", deserved=2), given.queue("b", deserved=2)]
TREE = [
    given.queue("A", deserved=2),
    given.queue("B", deserved=2),
    given.queue("a", "A", deserved=2),
    given.queue("b1", "B", deserved=1),
    given.queue("b2", "B", deserved=1),
]


def running(name: str, *on: str, queue: str = "b", least: int = 1, age: float = 500.0, **more: object) -> PodGroup:
    """Build a group of single-GPU pods that have run for `age` seconds, one on each of the nodes."""
    pods = [given.pod(f"{name}-{index}", queue=queue, gang=name) for index in range(len(on))]
    held = [given.placed(pod, node) for pod, node in zip(pods, on, strict=True)]
    return given.group(running=held, min_member=least, started_at=NOW - age, **more)  # type: ignore[arg-type] # free-form


def asking(name: str, *, queue: str = "a", gpus: int = 1, pods: int = 1, **more: object) -> PodGroup:
    members = [given.pod(f"{name}-{index}", queue=queue, gang=name, gpus=gpus) for index in range(pods)]
    return given.group(*members, **more)  # type: ignore[arg-type] # free-form by design


def planned(nodes: Iterable[Node], queues: Iterable[Queue], *groups: PodGroup) -> Plan:
    return plan(World(nodes=tuple(nodes), queues=tuple(queues), groups=groups).snapshot(), now=NOW)


def leaving(found: Plan) -> list[tuple[str, Action]]:
    return sorted((each.pod.removeprefix("uid-"), each.action) for each in found.evictions)


def started(found: Plan) -> dict[str, tuple[NodeName, ...]]:
    return {start.group.name: tuple(one.node for one in start.placements) for start in found.starts}


def protected(queues: Sequence[Queue], name: str, seconds: float) -> list[Queue]:
    return [replace(each, reclaim_min_runtime_s=seconds) if each.name == name else each for each in queues]


# Min-runtime ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "gone"), [(59.0, 0), (60.0, 1)])
def test_a_podgroup_within_its_min_runtime_is_not_reclaimed(age: float, gone: int) -> None:
    lone = [running(f"r{index}", "n", age=age) for index in range(4)]

    found = planned([given.node("n", gpus=4)], protected(HALVES, "b", 60.0), *lone, asking("w"))

    assert len(found.evictions) == gone


def test_a_young_elastic_podgroup_loses_only_pods_beyond_its_minimum() -> None:
    young = running("young", "n", "n", "n", "n", least=3, age=1.0)

    found = planned([given.node("n", gpus=4)], protected(HALVES, "b", 60.0), young, asking("w"), asking("x"))

    assert leaving(found) == [("young-3", Action.RECLAIM)]
    assert started(found).keys() == {"w"}


# Queue trees ----------------------------------------------------------------------------------------------------------


def test_a_leaf_queue_reclaims_from_a_leaf_of_another_branch_above_its_share() -> None:
    greedy, modest = [running(f"r{index}", "n", queue="b1") for index in range(3)], running("m", "n", queue="b2")

    found = planned([given.node("n", gpus=4)], TREE, *greedy, modest, asking("w", gpus=2))

    assert len(found.evictions) == 2
    assert started(found) == {"w": ("n",)}
    assert not any(each.group.name == "m" for each in found.evictions)


def test_a_limit_above_both_queues_is_no_obstacle_if_the_victim_releases_it() -> None:
    queues = [
        given.queue("p", deserved=2, limit=2),
        given.queue("a", "p", deserved=1),
        given.queue("b", "p", deserved=1),
    ]
    two = [running(f"r{index}", "n") for index in range(2)]

    found = planned([given.node("n", gpus=8)], queues, *two, asking("w"))

    assert len(found.evictions) == 1
    assert started(found) == {"w": ("n",)}


def test_a_non_preemptible_podgroup_stays_within_the_deserved_share_of_its_ancestors() -> None:
    queues = [given.queue("p", deserved=1), given.queue("a", "p", deserved=2)]

    found = planned([given.node("n", gpus=8)], queues, asking("w", gpus=2, preemptible=False))

    assert [refusal.reason for refusal in found.refusals.values()] == [Reason.NON_PREEMPTIBLE_OVER_QUOTA]
    assert found.refusals[asking("w").key].details["queue"] == "p"


# Parts of devices -----------------------------------------------------------------------------------------------------


def parts(name: str, sharing: Sharing, number: int = 1, *, queue: str = "a") -> list[PodGroup]:
    pods = (given.pod(f"{name}{index}", queue=queue, gpus=0, sharing=sharing) for index in range(number))
    return [given.group(pod, created_at=float(index)) for index, pod in enumerate(pods)]


@pytest.mark.parametrize(("memory_mib", "fitting"), [(40_960, 2), (40_961, 1), (27_306, 3), (81_921, 0)])
def test_parts_by_memory_fill_a_device_of_any_size_to_the_last_mib(memory_mib: int, fitting: int) -> None:
    node = given.node("n", gpus=1, device_memory_mib=81_920)

    found = planned([node], HALVES, *parts("p", Sharing(memory_mib=memory_mib), 4))

    assert len(found.starts) == fitting


def test_absurd_requests_of_gpu_memory_do_not_stop_the_plan_for_other_pods() -> None:
    absurd, sane = given.node("n0", gpus=1, device_memory_mib=1 << 47), given.node("n1", device_memory_mib=81_920)
    held = given.placed(given.pod("r", queue="b", gpus=0, sharing=Sharing(portion_ppm=500_000)), "n0", "d0")
    too_much = parts("much", Sharing(memory_mib=1 << 62))

    found = planned([absurd, sane], HALVES, given.group(running=[held], min_member=1), *too_much, asking("w"))

    assert started(found).keys() == {"w"}


def test_parts_of_several_devices_are_on_different_devices_and_share_them() -> None:
    node = given.node("n", gpus=4, device_memory_mib=81_920)

    found = planned([node], HALVES, *parts("p", Sharing(portion_ppm=500_000, devices=2), 5))

    devices = [one.devices for start in found.starts for one in start.placements]
    assert len(devices) == 4
    assert all(len(set(each)) == 2 for each in devices)
    assert len({name for each in devices for name in each}) == 4


def test_a_whole_gpu_is_reclaimed_by_evicting_all_pods_that_share_it() -> None:
    node, half = given.node("n", gpus=1, device_memory_mib=81_920), Sharing(portion_ppm=500_000)
    pods = [given.pod(f"r{index}", queue="b", gpus=0, sharing=half) for index in range(2)]
    run = [given.group(running=[given.placed(pod, "n", "d0")], min_member=1, started_at=0.0) for pod in pods]

    found = planned([node], [given.queue("a", deserved=1), given.queue("b")], *run, asking("w"))

    assert leaving(found) == [("r0", Action.RECLAIM), ("r1", Action.RECLAIM)]
    assert started(found) == {"w": ("n",)}


def test_mig_profiles_are_counted_by_node_and_charged_as_gpus() -> None:
    mig, profile = given.node("n", gpus=0, shares_devices=False), "nvidia.com/mig-3g.20gb"
    pods = [replace(given.pod(f"m{index}", queue="a", gpus=0), scalars=((profile, 1),)) for index in range(3)]
    made = World(nodes=(mig,), queues=(given.queue("a", limit=5),), groups=tuple(map(given.group, pods))).snapshot()
    two = replace(made, scalars={profile: made.free[0] * 0 + 2})

    found = plan(two, now=NOW)

    assert len(found.starts) == 1
    assert {refusal.reason for refusal in found.refusals.values()} == {Reason.OVER_LIMIT}


def test_pods_of_one_queue_share_a_resource_claim_and_pods_of_another_queue_may_not_use_it() -> None:
    claim = given.claim("default/c", "gpu", 1, queue=HALVES[0].name, shared=True)
    pods = [
        given.pod(name, queue=queue, gpus=0, claims=(claim,)) for name, queue in [("x", "a"), ("y", "a"), ("z", "b")]
    ]
    made = World(nodes=(given.node("n"),), queues=tuple(HALVES), groups=tuple(map(given.group, pods))).snapshot()

    found = plan(replace(made, scalars={"dra:gpu": made.free[0] * 0 + 1}), now=NOW)

    assert started(found).keys() == {"uid-x", "uid-y"}


def test_the_resource_claim_of_a_victim_counts_as_free_although_its_node_is_unschedulable_meanwhile() -> None:
    claim = given.claim("default/c", "gpu", 1, queue=HALVES[0].name, shared=True)
    held = given.placed(given.pod("v", gpus=0, queue="a", claims=(claim,)), "n")
    victim = given.group(running=[held], min_member=1, priority=10, started_at=0.0)
    asks = given.group(given.pod("w", gpus=0, queue="a", claims=(claim,)), priority=90)
    made = World(nodes=(given.node("n", gpus=0),), queues=tuple(HALVES), groups=(victim, asks)).snapshot()

    # No resource claim may be reserved for more than 256 pods (Kubernetes).
    found = plan(
        replace(made, scalars={"dra:gpu": made.free[0] * 0 + 3}, claimed={claim.key: (NodeName("n"), 256)}), now=NOW
    )

    assert (leaving(found), started(found)) == ([("v", Action.PREEMPT)], {"uid-w": ("n",)})


@pytest.mark.parametrize("child_first", [True, False])
def test_pods_that_run_in_a_queue_that_has_got_children_since_are_victims_too(*, child_first: bool) -> None:
    queues = [given.queue("p", deserved=0), given.queue("p.c", "p", deserved=0), given.queue("poor", deserved=8)]
    olds = [running(name, *["n"] * pods, queue=queue) for name, pods, queue in [("up", 7, "p"), ("down", 1, "p.c")]]
    groups = olds[::-1] if child_first else olds

    found = planned([given.node("n")], queues, *groups, asking("w", queue="poor", gpus=8))

    assert (len(leaving(found)), started(found)) == (8, {"w": ("n",)})


# Which pod is placed where --------------------------------------------------------------------------------------------


def test_sub_groups_of_victims_lose_pods_beyond_their_minimum_first() -> None:
    root = SubGroup(pod_sets=(PodSet(name="leader", min_member=1), PodSet(name="workers", min_member=1)))
    run = running("r", "n", "n", "n", "n", least=2)
    names = ["leader", "workers", "workers", "workers"]
    held = [replace(one, pod=replace(one.pod, subgroup=name)) for one, name in zip(run.placed, names, strict=True)]

    found = planned([given.node("n", gpus=4)], HALVES, replace(run, root=root, placed=tuple(held)), asking("w", gpus=2))

    assert leaving(found) == [("r-2", Action.RECLAIM), ("r-3", Action.RECLAIM)]


def test_a_growing_podgroup_stays_in_its_required_domain_and_waits_while_that_is_full() -> None:
    nodes = [given.node(f"n{rack}", gpus=2, labels={"zone": "z", "rack": f"r{rack}"}) for rack in range(2)]
    near = SubGroup(topology=TopologyConstraint("t", required="rack"), pod_sets=(PodSet(),))
    more = [given.pod(f"g-{index}", gang="g", queue="a") for index in range(1, 3)]
    held = given.placed(given.pod("g-0", gang="g", queue="a"), "n1")

    found = planned(nodes, HALVES, given.group(*more, running=[held], min_member=1, root=near, started_at=0.0))

    assert [one.node for start in found.starts for one in start.placements] == ["n1"]
    assert found.refusals[more[0].group].reason is Reason.GANG_DOES_NOT_FIT


def test_a_pod_with_a_resource_claim_does_not_decide_for_a_pod_without_one_that_requests_the_same_otherwise() -> None:
    claim = given.claim("default/c", "gpu", 1, queue=HALVES[0].name, shared=True)
    claimer = given.group(given.pod("claimer", gpus=0, cpu=2, queue="a", claims=(claim,)), priority=100)
    plain = given.group(given.pod("plain", gpus=0, cpu=2, queue="a"))
    nodes = (given.node("gpu"), given.node("large", gpus=0), given.node("small", gpus=0, cpu=8))
    made = World(nodes=nodes, queues=tuple(HALVES), groups=(claimer, plain)).snapshot()

    devices = made.free[0] * 0
    devices[0] = 8
    found = plan(replace(made, scalars={"dra:gpu": devices}, claimed={claim.key: (NodeName("gpu"), 1)}), now=NOW)

    assert started(found) == {"uid-claimer": ("gpu",), "uid-plain": ("small",)}


def test_a_pod_is_placed_on_its_nominated_node_although_another_is_fuller() -> None:
    nodes = [given.node("empty", gpus=4), given.node("full", gpus=4)]
    pod = given.pod("w", queue="a", nominated=NodeName("empty"))

    assert started(planned(nodes, HALVES, running("r", "full"), given.group(pod))) == {"uid-w": ("empty",)}


def apart(pod: Pod) -> Pod:
    """Keep a pod out of the zones of pods like it."""
    return replace(pod, labels={"app": "x"}, near=(Near((("app", "x"),), "zone", apart=True),))


def test_a_pod_kept_out_of_a_zone_by_another_pod_may_evict_it_and_use_another_node_there() -> None:
    nodes = [given.node("n0", gpus=1, labels={"zone": "z"}), given.node("n1", gpus=2, labels={"zone": "z"})]
    low = running("low", "n0", queue="a")
    low = replace(low, placed=(replace(low.placed[0], pod=apart(low.placed[0].pod)),), priority=1)
    high = given.group(apart(given.pod("high", queue="a", gpus=2)), priority=2)

    found = planned(nodes, HALVES, low, high)

    assert leaving(found) == [("low-0", Action.PREEMPT)]
    assert started(found) == {"uid-high": ("n1",)}
