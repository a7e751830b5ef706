"""The message why no pod is evicted for a PodGroup: it names only true facts about the pods that hold the room."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given as for_all

from app.control.journal.wording import Words
from app.model.decision import Action, Plan
from app.model.memory import NO_MEMORY
from app.model.names import NodeName
from app.model.pod import Constraint, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.resources import GPU
from app.model.sentence import EVERYTHING, told
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan, plan_some
from app.scheduling.policy import Policy
from tests import given
from tests.scheduling.worlds import NOW, World, worlds

MIG = "nvidia.com/mig-1g.5gb"


def runs(name: str, *, queue: str = "r", gpus: int = 1, **more: object) -> PodGroup:
    """Build a PodGroup of one pod on node a."""
    return given.group(running=[given.placed(given.pod(name, queue=queue, gpus=gpus), "a")], min_member=1, **more)  # type: ignore[arg-type] # free-form by design


def clause(group: PodGroup, *others: PodGroup, policy: Policy | None = None, deserved: int = 2, gpus: int = 1) -> str:
    """Return the sentence about evictions on a cluster of one node and the queues q and r."""
    queues = [given.queue("q", deserved=deserved), given.queue("r", deserved=1)]
    return clause_of(given.snapshot([given.node("a", gpus=gpus)], queues, [group, *others]), group, policy)


def clause_of(snapshot: Snapshot, group: PodGroup, policy: Policy | None = None) -> str:
    """Return the sentence about evictions; empty when there is none."""
    sentence = plan(snapshot, policy or Policy(), now=NOW).refusals[group.key].sentence
    return sentence.partition("; ")[2]


WAITS = given.group(given.pod("w"))
WITHOUT_PREEMPT = Policy(actions=(Action.ALLOCATE, Action.RECLAIM))
WITHOUT_RECLAIM = Policy(actions=(Action.ALLOCATE, Action.PREEMPT))


def test_the_message_names_non_preemptible_pods_as_the_cause() -> None:
    assert clause(WAITS, runs("o", preemptible=False)) == (
        "no pod is evicted for it because pods that hold the room are not preemptible."
    )


def test_the_message_names_pods_of_the_same_queue_and_priority_as_the_cause() -> None:
    assert clause(WAITS, runs("o", queue="q")) == (
        "no pod is evicted for it because pods of its own queue have the same or a higher priority."
    )


def test_the_message_names_a_queue_within_its_fair_share_as_the_cause() -> None:
    assert clause(WAITS, runs("o"), deserved=1) == (
        "no pod is evicted for it because other queues hold no more than their fair share."
    )


def test_the_message_names_pods_that_have_just_started_as_the_cause() -> None:
    low = replace(runs("o", queue="q"), priority=10, started_at=NOW - 5.0)

    assert clause(replace(WAITS, priority=90), low) == (
        "no pod is evicted for it because pods that hold the room have not run for their min-runtime yet."
    )


def test_the_message_says_that_preempt_is_off_where_it_would_help() -> None:
    low = replace(runs("o", queue="q"), priority=10)

    assert clause(replace(WAITS, priority=90), low, policy=WITHOUT_PREEMPT) == (
        "no pod is evicted for it because the preempt action is switched off."
    )


def test_the_message_does_not_say_that_reclaim_is_off_where_the_own_queue_holds_the_room() -> None:
    assert clause(WAITS, runs("o", queue="q"), policy=WITHOUT_RECLAIM) == (
        "no pod is evicted for it because pods of its own queue have the same or a higher priority."
    )


def test_the_message_names_all_causes() -> None:
    others = runs("firm", queue="q", preemptible=False), runs("own", queue="q"), runs("theirs")

    assert clause(WAITS, *others, gpus=3, deserved=3) == (
        "no pod is evicted for it because pods that hold the room are not preemptible, "
        "pods of its own queue have the same or a higher priority and other queues hold no more than their fair share."
    )


def test_the_message_of_a_queue_at_its_share_says_so_and_why_its_own_pods_stay() -> None:
    assert clause(WAITS, runs("own", queue="q"), runs("theirs"), gpus=2, deserved=1) == (
        "queue q holds 1 GPU and would exceed its fair share of 1 GPU with 1 GPU more, so it reclaims nothing, "
        "and pods of its own queue have the same or a higher priority."
    )


def test_pods_that_hold_nothing_scarce_are_no_cause() -> None:
    idle = runs("idle", gpus=0, queue="q")

    assert clause(WAITS, runs("o", preemptible=False), idle) == (
        "no pod is evicted for it because pods that hold the room are not preemptible."
    )


def test_pods_on_nodes_that_the_pod_may_not_use_are_no_cause() -> None:
    here = given.group(given.pod("w", constraint=Constraint(node_selector=(("zone", "here"),))))
    elsewhere = given.group(running=[given.placed(given.pod("o", queue="q"), "b")], min_member=1)
    nodes = [given.node("a", gpus=1, labels={"zone": "here"}), given.node("b", gpus=1)]
    snapshot = given.snapshot(
        nodes, [given.queue("q", deserved=2), given.queue("r")], [here, runs("firm", preemptible=False), elsewhere]
    )

    assert clause_of(snapshot, here) == "no pod is evicted for it because pods that hold the room are not preemptible."


def test_the_message_of_a_podgroup_alone_in_the_cluster_does_not_mention_evictions() -> None:
    own = [given.placed(given.pod(f"e{number}", gang="e"), "a") for number in range(2)]
    elastic = given.group(given.pod("more", gang="e"), running=own, min_member=1)

    assert clause(elastic, gpus=2) == ""


def test_pods_of_the_same_podgroup_that_start_in_the_plan_are_counted_once() -> None:
    elastic = given.group(*(given.pod(f"e{number}", gang="e") for number in range(2)), min_member=1)

    assert clause(elastic, runs("o", preemptible=False), gpus=2) == (
        "no pod is evicted for it because pods that hold the room are not preemptible."
    )


HALF = replace(given.pod("w", gpus=0), sharing=Sharing(portion_ppm=500_000))
PROFILE = replace(given.pod("w", gpus=0), scalars=((MIG, 1),))
CLAIM = given.claim("default/c", "gpu", 1)
CLAIMS = replace(given.pod("w", gpus=0), claims=(CLAIM,))


def held_by_others(pod: Pod) -> Snapshot:
    """Build a cluster whose only GPU is used by a pod of another scheduler; a pod of queue r holds CPU."""
    node = replace(given.node("a", gpus=1), scalars=((MIG, 1), ("dra:gpu", 1)))
    queues = [given.queue("q", deserved=2), given.queue("r", deserved=2)]
    none = {name: given.snapshot([node], [], []).free[GPU] * 0 for name in (MIG, "dra:gpu")}
    snapshot = given.snapshot([node], queues, [given.group(pod), runs("cpu", gpus=0)], scalars=none)
    snapshot.free[GPU] = 0
    return snapshot


@pytest.mark.parametrize("pod", [given.pod("w"), HALF, PROFILE, CLAIMS], ids=["whole", "part", "mig", "claim"])
def test_the_message_of_a_pod_that_only_pods_of_other_schedulers_block_does_not_mention_evictions(pod: Pod) -> None:
    snapshot = held_by_others(pod)

    assert clause_of(snapshot, snapshot.groups[pod.group]) == ""


@pytest.mark.parametrize(
    ("waits", "holds"),
    [
        (HALF, given.pod("o", queue="r")),
        (PROFILE, replace(given.pod("o", gpus=0, queue="r"), scalars=((MIG, 1),))),
        (
            CLAIMS,
            replace(given.pod("o", gpus=0, queue="r"), claims=(given.claim("d", "gpu", 1),)),
        ),
    ],
    ids=["part", "mig", "claim"],
)
def test_the_message_of_a_pod_that_a_pod_of_leeboard_blocks_says_why_that_pod_stays(waits: Pod, holds: Pod) -> None:
    node = replace(given.node("a", gpus=1), scalars=((MIG, 1), ("dra:gpu", 1)))
    none = {name: given.snapshot([node], [], []).free[GPU] * 0 for name in (MIG, "dra:gpu")}
    firm = given.group(running=[given.placed(holds, "a")], min_member=1, preemptible=False)
    queues = [given.queue("q", deserved=2), given.queue("r", deserved=2)]
    claimed = {given.claim_key("d"): (NodeName("a"), 1)}
    snapshot = given.snapshot([node], queues, [given.group(waits), firm], scalars=none, claimed=claimed)

    assert clause_of(snapshot, snapshot.groups[waits.group]) == (
        "no pod is evicted for it because pods that hold the room are not preemptible."
    )


# The same sentence of the same state


def said(made: Plan) -> dict[str, str]:
    """Return the message of each PodGroup."""
    return {key.name: told(refusal.sentence, EVERYTHING) for key, refusal in made.refusals.items()}


def without_changes(made: Iterable[Plan]) -> bool:
    """Whether the plan starts and evicts no pod."""
    return all(not each.starts and not each.evictions for each in made)


def test_a_second_plan_gives_the_same_message_about_nodes_kept_for_an_aged_podgroup() -> None:
    firm = given.group(running=[given.placed(given.pod("firm"), "a")], preemptible=False, min_member=1)
    old = replace(given.group(given.pod("old", gpus=2)), created_at=0.0)
    young = replace(given.group(given.pod("young", gpus=2)), created_at=900.0)
    nodes = [given.node("a", gpus=2), given.node("b", gpus=1)]
    snapshot = given.snapshot(nodes, [given.queue("q", deserved=8)], [old, young, firm])

    first = plan(snapshot, Policy(), now=NOW)
    second = plan(snapshot, Policy(), now=NOW, memory=first.memory)

    assert first.aged == old.key
    assert said(first) == said(second)


@pytest.mark.slow
@for_all(worlds)
def test_plans_of_one_state_give_the_same_messages_whatever_the_plan_before_searched_for(world: World) -> None:
    snapshot, made, memory = world.snapshot(), list[Plan](), NO_MEMORY
    for _ in range(3):
        made.append(plan(snapshot, Policy(), now=world.now, memory=memory))
        memory = made[-1].memory

    if without_changes(made) and not any(each.unfinished for each in made):
        assert said(made[0]) == said(made[1]) == said(made[2])


@pytest.mark.slow
@for_all(worlds)
def test_a_change_elsewhere_does_not_change_the_message(world: World) -> None:
    idle = given.node("elsewhere", gpus=0, cpu=0)
    before = replace(world, nodes=(*world.nodes, idle)).snapshot()
    after = replace(world, nodes=(*world.nodes, replace(idle, labels={"changed": "yes"}))).snapshot()

    first = plan(before, Policy(), now=world.now)
    second = plan(after, Policy(), now=world.now, memory=first.memory)

    if without_changes([first, second]) and not first.unfinished and not second.unfinished:
        assert said(first) == said(second)


def test_a_short_plan_gives_the_same_message_about_a_share_kept_for_an_aged_podgroup() -> None:
    firm = given.group(running=[given.placed(given.pod("firm"), "a")], preemptible=False, min_member=1)
    old = replace(given.group(given.pod("old", gpus=2)), created_at=0.0)
    young = replace(given.group(given.pod("young", gpus=1)), created_at=900.0)
    snapshot = given.snapshot([given.node("a", gpus=2)], [given.queue("q", deserved=2)], [old, young, firm])
    full = plan(snapshot, Policy(), now=NOW)

    short = plan_some(snapshot, snapshot.groups, withheld=full.withheld, aged=full.aged, now=NOW, memory=full.memory)

    assert said(full)["uid-young"].startswith("Queue q reserves the rest of its fair share for")
    assert said(short)["uid-young"] == said(full)["uid-young"]


@pytest.mark.slow
@for_all(worlds)
def test_short_and_full_plans_of_one_state_name_the_same_causes(world: World) -> None:
    snapshot, words = world.snapshot(), Words()
    full = plan(snapshot, Policy(), now=world.now)
    known = {"withheld": full.withheld, "aged": full.aged, "memory": full.memory}
    short = plan_some(snapshot, snapshot.groups, now=world.now, **known)  # type: ignore[arg-type] # three unlike values

    if without_changes([full, short]) and not full.unfinished:
        after_full = [words.of_full_plan(key, each, 1).sentence for key, each in full.refusals.items()]
        after_short = [words.of_short_plan(key, short.refusals[key], 2).sentence for key in full.refusals]
        assert after_full == after_short
