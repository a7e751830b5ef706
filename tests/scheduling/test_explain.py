"""What a person reads while a PodGroup waits: which check failed where, and by how much."""

from dataclasses import replace

import pytest

from app.model.decision import Action
from app.model.node import Node
from app.model.pod import Sharing
from app.model.podgroup import PodGroup, SubGroup, TopologyConstraint
from app.model.reason import Reason, Refusal
from app.model.topology import Topology
from app.scheduling.planner import Policy, plan
from tests import given

RACKS = {"t": Topology(name="t", levels=("rack",))}


def refusal(group: PodGroup, *others: PodGroup, nodes: list[Node], **more: object) -> Refusal:
    """Plan for a cluster with two queues that deserve two GPUs each, and return why the group waits."""
    queues = [given.queue("q", deserved=2), given.queue("r", deserved=2)]
    return plan(given.snapshot(nodes, queues, [group, *others], **more)).refusals[group.key]


def test_a_pod_that_is_owed_nothing_is_told_its_queues_share_and_use() -> None:
    mine = given.group(
        given.pod("w", gang="w"), running=[given.placed(given.pod(f"w{i}", gang="w"), "a") for i in "12"]
    )
    theirs = given.group(
        running=[given.placed(given.pod(f"r{i}", gang="r", queue="r"), "a") for i in "12"], min_member=1
    )

    said = refusal(replace(mine, min_member=1), theirs, nodes=[given.node("a", gpus=4)])

    assert said.reason is Reason.NO_NODE_FITS
    assert "queue q holds 2 GPUs of a fair share of 2 GPUs and asks for 1 GPUs" in said.sentence
    assert (said.details["fair_share"], said.details["allocated"]) == ("2 GPUs", "2 GPUs")


def test_a_pod_that_is_owed_room_but_finds_no_victims_is_told_that_nobody_has_to_leave() -> None:
    firm = given.group(
        running=[given.placed(given.pod(f"r{i}", gang="r", queue="r"), "a") for i in "12"],
        preemptible=False,
        min_member=1,
    )

    said = refusal(given.group(given.pod("w")), firm, nodes=[given.node("a", gpus=2)])

    assert said.sentence.endswith(
        "nobody may be made to leave for it: others hold what is theirs, by share, priority or min-runtime."
    )


def test_nothing_is_said_of_leaving_where_nobody_may_be_made_to_leave() -> None:
    waiting = given.group(given.pod("w", gpus=2))
    runs = given.group(running=[given.placed(given.pod("r"), "a")], min_member=1)
    snapshot = given.snapshot([given.node("a", gpus=2)], [given.queue("q", deserved=2)], [waiting, runs])

    said = plan(snapshot, Policy(actions=(Action.ALLOCATE,))).refusals[waiting.key]

    assert said.sentence.endswith("1 lack GPUs, 2 GPUs asked, at most 1 free.")


def test_a_gang_that_no_rack_can_take_is_told_the_best_of_them() -> None:
    pods = [given.pod(f"w{index}", gang="w", gpus=2) for index in range(2)]
    group = given.group(*pods)
    root = SubGroup(topology=TopologyConstraint("t", required="rack"), pod_sets=group.tree.pod_sets)
    nodes = [given.node(f"n{rack}", gpus=2, labels={"rack": rack}) for rack in "ab"]

    said = refusal(replace(group, root=root), nodes=nodes, topologies=RACKS)

    assert said.reason is Reason.GANG_DOES_NOT_FIT
    assert "Of 2 domains of level rack, none takes 2 pods together" in said.sentence


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({}, "No node has the label rack of its required topology level."),
        # A node of no zone is in none of the racks of a zone.
        ({"rack": "a"}, "No node that it may use is in a domain of level rack."),
    ],
)
def test_a_gang_whose_level_no_node_is_in_is_told_so_and_nothing_of_leaving(
    labels: dict[str, str], sentence: str
) -> None:
    pods = [given.pod(f"w{index}", gang="w") for index in range(2)]
    group = given.group(*pods)
    root = SubGroup(topology=TopologyConstraint("t", required="rack"), pod_sets=group.tree.pod_sets)
    zones = {"t": Topology(name="t", levels=("zone", "rack"))}

    said = refusal(replace(group, root=root), nodes=[given.node("a", gpus=2, labels=labels)], topologies=zones)

    assert (said.reason, said.sentence) == (Reason.GANG_DOES_NOT_FIT, sentence)


def test_a_pod_that_shares_a_device_is_told_how_many_nodes_lack_the_part() -> None:
    pod = replace(given.pod("w", gpus=0), sharing=Sharing(portion_ppm=500_000))

    said = refusal(given.group(pod), nodes=[given.node("a", gpus=0), given.node("b", gpus=0)])

    assert "2 lack 0.5 of a GPU free" in said.sentence


def test_a_pod_that_asks_for_a_mig_profile_is_told_how_many_nodes_lack_it() -> None:
    pod = replace(given.pod("w", gpus=0), scalars=(("nvidia.com/mig-1g.10gb", 1),))

    said = refusal(given.group(pod), nodes=[given.node("a", gpus=0)])

    assert "1 lack 1 of nvidia.com/mig-1g.10gb" in said.sentence


def test_a_pod_that_no_node_could_ever_hold_is_told_so_and_nothing_of_shares() -> None:
    said = refusal(given.group(given.pod("w", gpus=8)), nodes=[given.node("a", gpus=4), given.node("b", gpus=2)])

    assert said.sentence == "No node could hold it even when empty: 8 GPUs asked, the largest has 4."


def test_a_gang_that_the_whole_cluster_could_never_hold_is_told_so() -> None:
    pods = [given.pod(f"w{index}", gang="w") for index in range(9)]

    said = refusal(given.group(*pods), nodes=[given.node("a", gpus=4), given.node("b", gpus=2)])

    assert said.sentence == "Even empty, all nodes together hold at most 6 of 9 pods that start together."
