"""The message while a PodGroup is pending: which check failed where, and by how much."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.model.decision import Action
from app.model.names import GroupKey, NodeName
from app.model.node import Node, Taint
from app.model.pod import Constraint, Placed, Pod, SchedulerMessage, Sharing, Toleration
from app.model.podgroup import PodGroup, SubGroup, TopologyConstraint
from app.model.reason import Reason, Refusal
from app.model.resources import GPU, Resources
from app.model.sentence import EVERYTHING, told
from app.model.topology import Topology
from app.scheduling.explain import refusals
from app.scheduling.placement.rivals import Rivals
from app.scheduling.placement.state import PlacementState
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.policy import Policy
from tests import given

RACKS = {"t": Topology(name="t", levels=("rack",))}


def refusal(group: PodGroup, *others: PodGroup, nodes: list[Node], **more: object) -> Refusal:
    """Plan for a cluster with two queues that deserve two GPUs each, and return why the group is pending."""
    queues = [given.queue("q", deserved=2), given.queue("r", deserved=2)]
    return plan(given.snapshot(nodes, queues, [group, *others], **more)).refusals[group.key]


def test_the_message_of_a_pod_above_the_share_of_its_queue_names_the_share_and_the_use() -> None:
    mine = given.group(
        given.pod("w", gang="w"), running=[given.placed(given.pod(f"w{i}", gang="w"), "a") for i in "12"]
    )
    theirs = given.group(
        running=[given.placed(given.pod(f"r{i}", gang="r", queue="r"), "a") for i in "12"], min_member=1
    )

    said = refusal(replace(mine, min_member=1), theirs, nodes=[given.node("a", gpus=4)])

    assert said.reason is Reason.NO_NODE_FITS
    assert "queue q holds 2 GPUs and would exceed its fair share of 2 GPUs with 1 GPU more, so" in said.sentence
    assert (said.details["fair_share"], said.details["allocated"]) == ("2 GPUs", "2 GPUs")


def test_the_message_of_a_pod_within_its_share_without_victims_says_that_no_pod_can_be_evicted() -> None:
    firm = given.group(
        running=[given.placed(given.pod(f"r{i}", gang="r", queue="r"), "a") for i in "12"],
        preemptible=False,
        min_member=1,
    )

    said = refusal(given.group(given.pod("w")), firm, nodes=[given.node("a", gpus=2)])

    assert said.sentence.endswith("; no pod is evicted for it because pods that hold the room are not preemptible.")


def test_the_message_does_not_say_that_others_hold_the_share_where_reclaim_is_off() -> None:
    waiting = given.group(given.pod("w", queue="q"))
    runs = given.group(running=[given.placed(given.pod("r", queue="r"), "a")], min_member=1)
    queues = [given.queue("q", deserved=1), given.queue("r")]
    snapshot = given.snapshot([given.node("a", gpus=1)], queues, [waiting, runs])

    said = plan(snapshot, Policy(actions=(Action.ALLOCATE, Action.PREEMPT))).refusals[waiting.key]

    assert said.sentence.endswith("; no pod is evicted for it because the reclaim action is switched off.")


def test_the_message_does_not_mention_eviction_where_evictions_are_off() -> None:
    waiting = given.group(given.pod("w", gpus=2))
    runs = given.group(running=[given.placed(given.pod("r"), "a")], min_member=1)
    snapshot = given.snapshot([given.node("a", gpus=2)], [given.queue("q", deserved=2)], [waiting, runs])

    said = plan(snapshot, Policy(actions=(Action.ALLOCATE,))).refusals[waiting.key]

    assert said.sentence == "No node has room: the only node has too few GPUs (requested 2, at most 1 free)."


def test_the_message_of_a_gang_that_fits_in_no_rack_names_the_best_rack() -> None:
    pods = [given.pod(f"w{index}", gang="w", gpus=2) for index in range(2)]
    group = given.group(*pods)
    root = SubGroup(topology=TopologyConstraint("t", required="rack"), pod_sets=group.tree.pod_sets)
    nodes = [given.node(f"n{rack}", gpus=2, labels={"rack": rack}) for rack in "ab"]

    said = refusal(replace(group, root=root), nodes=nodes, topologies=RACKS)

    assert said.reason is Reason.GANG_DOES_NOT_FIT
    assert "Of 2 domains of level rack, none has room for 2 pods together" in said.sentence


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({}, "No node has the label rack of its topology level; label the nodes, or name another level."),
        # A node without a zone is in none of the racks of a zone.
        ({"rack": "a"}, "No node that it may use is in a domain of level rack."),
    ],
)
def test_the_message_of_a_gang_whose_topology_level_no_node_has_says_so_and_does_not_mention_eviction(
    labels: dict[str, str], sentence: str
) -> None:
    pods = [given.pod(f"w{index}", gang="w") for index in range(2)]
    group = given.group(*pods)
    root = SubGroup(topology=TopologyConstraint("t", required="rack"), pod_sets=group.tree.pod_sets)
    zones = {"t": Topology(name="t", levels=("zone", "rack"))}

    said = refusal(replace(group, root=root), nodes=[given.node("a", gpus=2, labels=labels)], topologies=zones)

    assert (said.reason, said.sentence) == (Reason.GANG_DOES_NOT_FIT, sentence)


HALF = replace(given.pod("w", gpus=0), sharing=Sharing(portion_ppm=500_000))


def test_the_message_of_a_pod_that_shares_a_gpu_counts_the_nodes_without_room_for_the_part() -> None:
    nodes = [given.node("a", gpus=1), given.node("b", gpus=0)]

    said = refusal(given.group(HALF), given.group(running=[given.placed(given.pod("x"), "a")]), nodes=nodes)

    assert "1 of 2 nodes lacks 0.5 of a GPU, 1 has no GPUs" in said.sentence


def test_the_message_of_a_pod_that_shares_a_gpu_counts_the_nodes_whose_gpus_cannot_be_shared() -> None:
    nodes = [given.node("a", gpus=1, shares_devices=False), given.node("b", gpus=1)]
    there = [given.group(running=[given.placed(given.pod(f"on-{name}"), name)]) for name in "ab"]

    said = refusal(given.group(HALF), *there, nodes=nodes)

    assert "1 of 2 nodes lacks 0.5 of a GPU, 1 has GPUs that cannot be shared (no agent" in said.sentence


def test_the_message_names_the_nodes_with_few_large_gpus_if_only_those_could_hold_the_part() -> None:
    few_large, many_small = given.node("a", gpus=1, device_memory_mib=80_000), given.node("b", device_memory_mib=16_000)
    asks = Sharing(memory_mib=40_000, devices=2)

    said = refusal(given.group(replace(HALF, sharing=asks)), nodes=[few_large, many_small])

    assert said.sentence == (
        "No node could hold the pod even when empty: "
        "parts of 2 GPUs requested, no node with suitable GPUs has more than 1."
    )


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        (Resources(cpu_milli=65_500), "65.5 cores requested, the largest node has 64"),
        (Resources(memory_bytes=2_000 * 10**9), "2000 GB requested, the largest node has 549.755"),
    ],
)
def test_the_message_of_a_pod_larger_than_every_node_says_so_in_readable_units(request_: Resources, cause: str) -> None:
    said = refusal(given.group(replace(given.pod("w"), request=request_)), nodes=[given.node("a")])

    assert said.sentence == f"No node could hold the pod even when empty: {cause}."


def test_two_resources_that_the_only_node_lacks_are_counted_as_one_node() -> None:
    runs = given.group(running=[given.placed(given.pod("r", gpus=8, cpu=64), "a")], preemptible=False)

    said = refusal(given.group(given.pod("w")), runs, nodes=[given.node("a")])

    assert said.sentence.startswith(
        "No node has room: the only node has too little CPU (requested 1 core, at most 0 free) "
        "and has too few GPUs (requested 1, at most 0 free)"
    )


def test_the_message_does_not_blame_the_filters_if_a_terminating_pod_leaves_room_on_the_only_node() -> None:
    waiting = given.group(given.pod("w"))
    nodes = [given.node("a", gpus=1), given.node("b", gpus=1)]
    refused = {waiting.pending[0].uid: frozenset([NodeName("a")])}
    snapshot = given.snapshot(nodes, [given.queue("q", deserved=2)], [waiting], refused=refused)

    found = plan_some(snapshot, snapshot.groups, withheld=[NodeName("b")]).refusals[waiting.key]

    assert found.reason is Reason.NO_NODE_FITS
    assert "1 of 2 nodes is refused by the filters of kube-scheduler" in found.sentence
    assert "1 is kept free for a PodGroup" in found.sentence


@pytest.mark.parametrize(
    ("sharing", "cause"),
    [
        (Sharing(memory_mib=90_000), "90000 MiB of a GPU requested, the largest GPU has 80000 MiB"),
        (
            Sharing(portion_ppm=500_000, devices=9),
            "parts of 9 GPUs requested, no node with suitable GPUs has more than 8",
        ),
    ],
)
def test_the_message_says_that_a_part_larger_than_any_gpu_is_too_large(sharing: Sharing, cause: str) -> None:
    node = given.node("a", device_memory_mib=80_000)

    said = refusal(given.group(replace(HALF, sharing=sharing)), nodes=[node])

    assert said.sentence == f"No node could hold the pod even when empty: {cause}."


def test_the_message_says_that_no_gpus_can_be_shared_and_does_not_mention_eviction() -> None:
    said = refusal(given.group(HALF), nodes=[given.node("a", shares_devices=False)])

    assert said.sentence.startswith(
        "No node could hold the pod even when empty: no node has GPUs that can be shared (no ag"
    )
    assert without_victims(said.sentence)


@pytest.mark.parametrize("pod", [HALF, given.pod("w")])
def test_the_message_names_gpus_that_take_no_pods(pod: Pod) -> None:
    nodes = [given.node("a", gpus=2), given.node("b", gpus=0)]
    taken = given.group(running=[given.placed(given.pod("x", gpus=2), "a")])

    said = refusal(given.group(pod), taken, nodes=nodes, blocked_devices={"a": 2})

    assert "2 GPUs accept no pods (unhealthy, contested, or already in use; see leeboard gpus)" in said.sentence


def test_the_message_of_a_pod_restricted_to_nodes_without_gpus_says_so_and_does_not_mention_eviction() -> None:
    elsewhere = replace(HALF, constraint=Constraint(node_selector=(("kind", "cpu"),)))
    nodes = [given.node("a"), given.node("b", gpus=0, labels={"kind": "cpu"})]

    said = refusal(given.group(elsewhere), nodes=nodes)

    assert said.sentence == (
        "No node could hold the pod even when empty: "
        "1 of 2 nodes has no GPUs, 1 is excluded by its node selector or affinity."
    )
    assert said.exceeds_cluster


def test_the_message_of_a_pod_with_a_mig_profile_counts_the_nodes_without_it() -> None:
    pod = replace(given.pod("w", gpus=0), scalars=(("nvidia.com/mig-1g.10gb", 1),))

    said = refusal(given.group(pod), nodes=[given.node("a", gpus=0)])

    assert "the only node has too few nvidia.com/mig-1g.10gb (requested 1, at most 0 free)" in said.sentence


def test_the_message_of_a_pod_that_no_node_can_ever_hold_says_so_and_does_not_mention_shares() -> None:
    said = refusal(given.group(given.pod("w", gpus=8)), nodes=[given.node("a", gpus=4), given.node("b", gpus=2)])

    assert said.sentence == "No node could hold the pod even when empty: 8 GPUs requested, the largest node has 4."


def test_the_message_of_a_gang_larger_than_the_cluster_says_so() -> None:
    pods = [given.pod(f"w{index}", gang="w") for index in range(9)]

    said = refusal(given.group(*pods), nodes=[given.node("a", gpus=4), given.node("b", gpus=2)])

    assert said.sentence == "Even empty, all nodes together hold at most 6 of 9 pods that start together."


def test_the_message_of_a_gang_whose_rest_can_never_run_counts_all_its_pods() -> None:
    there = [given.placed(given.pod(f"w{number}", gang="w"), "a") for number in range(2)]
    torn = given.group(given.pod("w2", gang="w"), running=there, min_member=3)

    said = refusal(torn, nodes=[given.node("a", gpus=2)])

    assert said.sentence == "Even empty, all nodes together hold at most 2 of 3 pods that run together."
    assert (said.details["even_when_empty"], said.details["needed"]) == (2, 3)


# Temporary causes


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (given.node("a", ready=False), "the only node is not ready"),
        (given.node("a", unschedulable=True), "the only node is cordoned"),
        (given.node("a", problem="bad label."), "the only node cannot be read (a: bad label)"),
        (
            given.node("a", taints=(Taint("node.kubernetes.io/memory-pressure"),)),
            "the only node has a taint that it does not tolerate (node.kubernetes.io/memory-pressure)",
        ),
        (None, "the cluster has no nodes"),
    ],
    ids=["not ready", "cordoned", "unreadable", "under pressure", "no nodes"],
)
def test_a_pod_is_not_reported_as_impossible_for_a_temporary_cause(node: Node | None, sentence: str) -> None:
    said = refusal(given.group(given.pod("w")), nodes=[node] if node is not None else [])

    assert said.sentence == f"No node has room: {sentence}."
    assert said.exceeds_cluster


def test_the_message_of_a_pod_that_only_a_cordoned_node_could_hold_says_that_other_nodes_are_too_small_now() -> None:
    nodes = [given.node("a", gpus=4), given.node("b", unschedulable=True)]

    said = refusal(given.group(given.pod("w", gpus=8)), nodes=nodes)

    assert said.sentence == (
        "No node could hold the pod now, even when empty: 1 of 2 nodes has too few GPUs (requested 8, at most 4 free), "
        "1 is cordoned."
    )


def test_the_message_of_a_pod_larger_than_the_cordoned_nodes_too_says_that_it_is_too_large() -> None:
    nodes = [given.node("a", gpus=4), given.node("b", gpus=4, unschedulable=True)]

    said = refusal(given.group(given.pod("w", gpus=8)), nodes=nodes)

    assert said.sentence == "No node could hold the pod even when empty: 8 GPUs requested, the largest node has 4."


@pytest.mark.parametrize(("size", "more"), [(8, "; 1 node takes no pods now"), (9, "")])
def test_the_message_of_a_gang_that_fits_with_a_cordoned_node_names_that_node(size: int, more: str) -> None:
    nodes = [given.node("a", gpus=4), given.node("b", gpus=4, unschedulable=True)]

    said = refusal(given.group(*(given.pod(f"w{number}", gang="w") for number in range(size))), nodes=nodes)

    assert said.sentence == (
        f"Even empty, the nodes that its pods may use together hold at most 4 of {size} pods that start together{more}."
    )


# Which nodes are excluded, and why


def words(group: PodGroup, nodes: list[Node], **more: object) -> str:
    """Return the part of the message about nodes, without that about evictions."""
    snapshot = given.snapshot(nodes, [given.queue("q", deserved=2)], [group], **more)
    return plan(snapshot, Policy(actions=(Action.ALLOCATE,))).refusals[group.key].sentence


def test_each_excluded_node_is_counted_under_its_first_cause() -> None:
    here = Constraint(node_selector=(("zone", "here"),))
    pod = given.pod("w", constraint=here, said=SchedulerMessage(because="node(s) had volume node affinity conflict"))
    zone = {"zone": "here"}
    nodes = [
        given.node("broken", ready=False, unschedulable=True),
        given.node("unreadable", problem="its cpu is no quantity"),
        given.node("cordoned", unschedulable=True),
        given.node("tainted-1", taints=(Taint("dedicated"),)),
        given.node("tainted-2", taints=(Taint("dedicated", "x"),)),
        given.node("tainted-3", taints=(Taint("maintenance"),)),
        given.node("elsewhere"),
        given.node("refused", labels=zone),
        given.node("full", gpus=0, labels=zone),
    ]

    assert words(given.group(pod), nodes, refused={pod.uid: frozenset([NodeName("refused")])}) == (
        "No node has room: 1 of 9 nodes has too few GPUs (requested 1, at most 0 free), 1 is not ready, "
        "1 cannot be read (unreadable: its cpu is no quantity), 1 is cordoned, "
        "3 have a taint that it does not tolerate (mostly dedicated), "
        "1 is excluded by its node selector or affinity, "
        "1 is refused by the filters of kube-scheduler: node(s) had volume node affinity conflict."
    )


def test_a_tolerated_taint_is_no_cause_and_the_only_other_taint_is_named() -> None:
    tolerant = Constraint(tolerations=(Toleration(key="dedicated", operator="Exists"),))
    nodes = [given.node("a", taints=(Taint("dedicated"),), gpus=0), given.node("b", taints=(Taint("other"),))]

    assert words(given.group(given.pod("w", constraint=tolerant)), nodes) == (
        "No node could hold the pod even when empty: 1 of 2 nodes has too few GPUs (requested 1, at most 0 free), "
        "1 has a taint that it does not tolerate (other)."
    )


def test_the_message_about_one_scarce_resource_gives_the_request_and_the_largest_free_amount() -> None:
    nodes = [given.node(f"n{index:02}", gpus=8) for index in range(12)]
    taken = [
        given.group(
            running=[given.placed(given.pod(f"r{index}", gpus=4 + index % 3), f"n{index:02}")], preemptible=False
        )
        for index in range(12)
    ]

    said = refusal(given.group(given.pod("w", gpus=8)), *taken, nodes=[*nodes, given.node("x", taints=(Taint("x"),))])

    assert said.sentence.startswith(
        "No node has room: 12 of 13 nodes have too few GPUs (requested 8, at most 4 free), "
        "1 has a taint that it does not tolerate (x)"
    )
    assert (said.details["gpu_milli"], said.details["tainted"]) == (12, 1)


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (
            given.pod("w", cpu=64),
            "No node has room: the only node has too little CPU (requested 64 cores, at most 63 free).",
        ),
        (
            replace(given.pod("w"), request=Resources(memory_bytes=549 * 10**9)),
            "No node has room: the only node has too little memory (requested 549 GB, at most 548.755 free).",
        ),
    ],
)
def test_the_message_gives_amounts_in_readable_units(pod: Pod, sentence: str) -> None:
    other = given.pod("r", queue="r")
    small = replace(other, request=Resources(cpu_milli=1000, memory_bytes=10**9))
    runs = given.group(running=[given.placed(small, "a")])
    snapshot = given.snapshot([given.node("a")], [given.queue("q"), given.queue("r")], [given.group(pod), runs])

    assert plan(snapshot, Policy(actions=(Action.ALLOCATE,))).refusals[pod.group].sentence == sentence


def test_the_message_names_the_pod_for_which_a_node_is_reserved() -> None:
    promised = replace(
        given.placed(given.pod("first", queue="r", gang="early"), "a"), pod=given.pod("first", gang="early")
    )
    busy = given.group(running=[given.placed(given.pod("r", queue="r"), "b")])

    said = refusal(
        given.group(given.pod("w")),
        given.group(running=[promised]),
        busy,
        nodes=[given.node("a", gpus=1), given.node("b", gpus=1)],
    )

    assert told(said.sentence, EVERYTHING).startswith(
        "No node has room: 1 of 2 nodes has too few GPUs (requested 1, at most 0 free), 1 is reserved for default/early"
    )
    assert said.details["promised"] == 1


def test_the_pod_named_as_holder_of_a_reservation_does_not_depend_on_the_order_of_arrival() -> None:
    early, late = (
        given.group(running=[replace(given.placed(given.pod(name), "a"), pod=given.pod(name, gang=name))])
        for name in ("early", "late")
    )
    waiting, node = given.group(given.pod("w", gpus=2)), given.node("a", gpus=2)

    said = [refusal(waiting, *others, nodes=[node]).sentence for others in ((early, late), (late, early))]

    assert said[0] == said[1]


def test_the_message_names_the_pod_for_which_a_node_is_reserved_while_victims_terminate() -> None:
    leaving = given.placed(given.pod("leaving", deleting=True), "a")
    promised = replace(given.placed(given.pod("first", gang="early"), "a"), pod=given.pod("first", gang="early"))

    said = refusal(
        given.group(given.pod("w")),
        given.group(running=[leaving]),
        given.group(running=[promised]),
        nodes=[given.node("a", gpus=1)],
        releasing=np.array([leaving.pod.request.amounts]).T,
    )

    assert told(said.sentence, EVERYTHING).startswith("No node has room: the only node is reserved for default/early")


def test_the_message_of_a_pod_with_room_but_for_earlier_pods_says_that_it_is_behind_them() -> None:
    early = [given.group(given.pod(f"early-{index}"), created_at=float(index)) for index in range(2)]
    late = given.group(given.pod("late"), created_at=9.0)

    said = refusal(late, *early, nodes=[given.node("a", gpus=2)])

    assert said.sentence.startswith(
        "2 PodGroups ahead of it take the room that it needs; "
        "no node has room: the only node has too few GPUs (requested 1, at most 0 free)"
    )
    assert (said.reason, said.details["behind"]) == (Reason.NO_NODE_FITS, 2)


def test_the_message_does_not_name_room_that_an_earlier_pod_took() -> None:
    firm = given.group(running=[given.placed(given.pod("f", gpus=5, queue="r"), "a")], preemptible=False, min_member=1)
    first, small, last = (
        given.group(given.pod(name, gpus=gpus), created_at=float(number))
        for number, (name, gpus) in enumerate([("first", 4), ("small", 1), ("last", 4)])
    )
    queues = [given.queue("q", deserved=8), given.queue("r")]
    snapshot = given.snapshot([given.node("a")], queues, [firm, first, small, last])

    made = plan(snapshot, Policy(actions=(Action.ALLOCATE,)))

    assert [made.refusals[each.key].sentence for each in (first, last)] == [
        "No node has room: the only node has too few GPUs (requested 4, at most 3 free).",
        "No node has room: the only node has too few GPUs (requested 4, at most 2 free).",
    ]


def test_a_plan_explains_a_kind_of_pods_only_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, explained = list[object](), refusals._explain

    def count(pods: Sequence[Pod], board: PlacementState, rivals: Rivals) -> Refusal:
        calls.append(pods)
        return explained(pods, board, rivals)

    monkeypatch.setattr(refusals, "_explain", count)
    monkeypatch.setattr(refusals, "MOST_RENEWED", 3)
    firm = [
        given.group(running=[given.placed(given.pod(f"f{node}", gpus=5), node)], preemptible=False, min_member=1)
        for node in ("a", "b", "c", "d")
    ]
    groups = [
        given.group(given.pod(f"w{number}", gpus=1 if number % 2 else 4), created_at=float(number))
        for number in range(16)
    ]
    snapshot = given.snapshot([given.node(name) for name in "abcd"], [given.queue("q", deserved=99)], [*firm, *groups])

    made = plan(snapshot, Policy(actions=(Action.ALLOCATE,)))

    assert (len(made.starts), len(made.refusals), len(calls)) == (8, 8, 4)


def test_a_pod_that_has_no_room_anyway_is_behind_no_pod() -> None:
    early, late = given.group(given.pod("early"), created_at=1.0), given.group(given.pod("w", gpus=2), created_at=2.0)
    taken = given.group(running=[given.placed(given.pod("r", queue="r"), "a")])

    said = refusal(late, early, taken, nodes=[given.node("a", gpus=2)])

    assert "behind" not in said.details


def test_the_message_of_a_pod_whose_nodes_the_filters_all_refuse_says_so_and_no_victims_are_searched() -> None:
    pod = given.pod("w", said=SchedulerMessage(because="node(s) had volume node affinity conflict"))
    victim = given.group(running=[given.placed(given.pod("r", queue="r"), "a")])
    nodes = [given.node("a", gpus=1), given.node("b", gpus=1)]
    snapshot = given.snapshot(
        nodes,
        [given.queue("q", deserved=2), given.queue("r")],
        [given.group(pod), victim],
        refused={pod.uid: frozenset([NodeName("a"), NodeName("b")])},
    )

    found = plan(snapshot)

    assert found.refusals[pod.group] == Refusal(
        reason=Reason.REFUSED_BY_SCHEDULER,
        sentence=(
            "The filters of kube-scheduler refuse all 2 nodes that pod w may use: "
            "node(s) had volume node affinity conflict."
        ),
        details={"pod": "w", "refused": 2},
    )
    assert found.evictions == ()


def test_the_message_does_not_say_that_kube_scheduler_refused_a_node_where_a_shared_gpu_failed() -> None:
    said = refusal(given.group(HALF), nodes=[given.node("a")], refused={HALF.uid: frozenset([NodeName("a")])})

    assert "the only node is excluded after a failed attempt" in said.sentence
    assert not said.exceeds_cluster


def test_the_message_of_a_gang_whose_racks_are_all_tainted_names_the_taints_instead_of_the_racks() -> None:
    pods = [given.pod(f"w{index}", gang="w") for index in range(2)]
    group = given.group(*pods)
    root = SubGroup(topology=TopologyConstraint("t", required="rack"), pod_sets=group.tree.pod_sets)
    nodes = [given.node(f"n{rack}", labels={"rack": rack}, taints=(Taint("x"),)) for rack in "ab"]

    said = refusal(replace(group, root=root), nodes=nodes, topologies=RACKS)

    assert said.sentence.startswith(
        "No node could hold the pod even when empty: 2 of 2 nodes have a taint that it does not tolerate (x)"
    )


@pytest.mark.parametrize("kind", [given.pod("w", gpus=0), HALF], ids=["no-gpus", "half-a-gpu"])
def test_the_message_counts_a_node_that_is_kept_for_an_older_podgroup(kind: Pod) -> None:
    pod = given.group(kind)
    snapshot = given.snapshot([given.node("a")], [given.queue("q")], [pod])

    found = plan_some(snapshot, snapshot.groups, withheld=[NodeName("a")], aged=GroupKey("default", "older"))

    assert found.refusals[pod.key].sentence == (
        "No node has room: the only node is kept free for a PodGroup that has waited for a long time."
    )
    assert not found.refusals[pod.key].exceeds_cluster


def test_only_pods_that_start_where_the_pod_would_have_room_count_as_ahead() -> None:
    here, there = (Constraint(node_selector=(("zone", zone),)) for zone in ("here", "there"))
    nodes = [given.node(f"n-{zone}", gpus=1, labels={"zone": zone}) for zone in ("here", "there")]
    early = [
        given.group(given.pod(f"early-{number}", constraint=zone), created_at=float(number))
        for number, zone in enumerate((here, there))
    ]

    said = refusal(given.group(given.pod("late", constraint=here), created_at=9.0), *early, nodes=nodes)

    assert said.details["behind"] == 1


def test_a_pod_that_waits_with_like_pods_is_behind_others_whether_or_not_those_are_behind_any() -> None:
    elastic = given.group(*(given.pod(f"e{index}", gang="e") for index in range(3)), min_member=1)
    others = [given.group(given.pod(name, queue="r")) for name in ("x", "y")]
    queues = [given.queue("q", deserved=2), given.queue("r", deserved=2)]

    behind = {}
    for gpus in (1, 2):
        snapshot = given.snapshot([given.node("a", gpus=gpus)], queues, [elastic, *others])
        refusals = plan_some(snapshot, snapshot.groups).refusals
        behind[gpus] = {key.name: said.details.get("behind") for key, said in refusals.items()}

    # The elastic group has a pod on the only node, and on the node of two GPUs a pod beside one of the others.
    assert behind == {1: {"e": None, "uid-x": 1, "uid-y": 1}, 2: {"e": None, "uid-y": 2}}


def test_the_message_of_an_elastic_podgroup_whose_own_pods_are_all_reserved_names_no_others() -> None:
    own = [Placed(pod=given.pod(f"e{node}", gang="e"), node=NodeName(node)) for node in "ab"]
    elastic = given.group(given.pod("more", gang="e"), running=own, min_member=1)

    said = refusal(elastic, nodes=[given.node(node, gpus=1) for node in "ab"])

    assert told(said.sentence, EVERYTHING).startswith(
        "No node has room: 2 of 2 nodes are already reserved, the first for default/e"
    )


def test_an_elastic_podgroup_is_not_behind_itself() -> None:
    elastic = given.group(*(given.pod(f"w{number}", gang="w") for number in range(3)), min_member=2)

    said = refusal(elastic, nodes=[given.node("a", gpus=2)])

    assert (said.reason, "behind" in said.details) == (Reason.NO_NODE_FITS, False)


def test_a_partially_bound_gang_without_room_for_its_rest_is_ahead_of_no_pod() -> None:
    torn = given.group(
        given.pod("rest", gang="torn", gpus=2),
        running=[given.placed(given.pod("runs", gang="torn"), "a")],
        min_member=2,
        preemptible=False,
    )

    said = refusal(given.group(given.pod("w", gpus=2)), torn, nodes=[given.node("a", gpus=2)])

    assert (said.reason, "behind" in said.details) == (Reason.NO_NODE_FITS, False)


def test_a_pod_is_behind_a_partially_running_gang_if_room_is_kept_for_the_rest_of_the_gang() -> None:
    torn = given.group(
        *(given.pod(f"rest-{number}", gang="torn") for number in range(2)),
        running=[given.placed(given.pod("runs", gang="torn"), "a")],
        min_member=3,
    )
    firm = given.group(running=[given.placed(given.pod("r", gpus=3, queue="r"), "a")], min_member=1, preemptible=False)

    said = refusal(given.group(given.pod("w")), torn, firm, nodes=[given.node("a", gpus=5)])

    assert said.sentence.startswith("1 PodGroup ahead of it takes the room that it needs; no node has room: ")


def without_victims(sentence: str) -> bool:
    return "evicted" not in sentence and "reclaims nothing" not in sentence


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        (given.pod("w", constraint=Constraint(node_selector=(("pool", "nowhere"),))), given.node("a", gpus=2)),
        (given.pod("w"), given.node("a", gpus=2, taints=(Taint("broken"),))),
    ],
    ids=["selector", "taint"],
)
def test_the_message_of_a_pod_that_no_node_may_take_does_not_mention_eviction(pod: Pod, node: Node) -> None:
    firm = given.group(running=[given.placed(given.pod("o", queue="r"), "a")], preemptible=False)

    assert without_victims(refusal(given.group(pod), firm, nodes=[node]).sentence)


def test_the_message_of_a_pod_that_only_pods_of_other_schedulers_block_does_not_mention_victims() -> None:
    nodes, queues = [given.node("a", gpus=1)], [given.queue("q", deserved=2), given.queue("r", deserved=2)]
    waits = given.group(given.pod("w"))
    running = given.group(running=[given.placed(given.pod("o", gpus=0, queue="r"), "a")])
    snapshot = given.snapshot(nodes, queues, [waits, running])
    snapshot.free[GPU] = 0

    assert without_victims(plan(snapshot).refusals[waits.key].sentence)
