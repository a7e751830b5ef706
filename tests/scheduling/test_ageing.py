"""Who has waited for long: nodes are kept for one such PodGroup, when the policy says so."""

from typing import Any

import pytest

from app.model.decision import Plan
from app.model.names import NodeName
from app.model.pod import Sharing
from app.model.podgroup import PodGroup
from app.model.snapshot import Snapshot
from app.scheduling.planner import Policy, plan, plan_some
from tests import given

AGEING = Policy(ageing_s=3600.0)
NOW = 10_000.0


def started(made: Plan) -> list[str]:
    return sorted(start.group.name.removeprefix("uid-") for start in made.starts)


def cluster() -> Snapshot:
    """Build two nodes, one of them half empty, for which an old big pod and a young small one wait."""
    busy = [running("r0", "a", gpus=8), running("r1", "b", gpus=4)]
    waiting = [given.group(given.pod("big", gpus=8)), given.group(given.pod("small", gpus=1), created_at=NOW)]
    return given.snapshot([given.node("a"), given.node("b")], [given.queue("q", deserved=16)], [*busy, *waiting])


def running(name: str, on: str, *, gpus: int) -> PodGroup:
    return given.group(running=[given.placed(given.pod(name, gpus=gpus), on)], min_member=1, preemptible=False)


def test_without_ageing_small_pods_take_what_a_big_one_waits_for() -> None:
    assert started(plan(cluster(), now=NOW)) == ["small"]


def test_nodes_that_will_be_empty_soonest_are_kept_for_a_group_that_has_aged() -> None:
    made = plan(cluster(), AGEING, now=NOW)

    assert started(made) == []
    assert made.withheld == ("b",)


@pytest.mark.parametrize(
    "asked",
    [{"sharing": Sharing(portion_ppm=500_000, devices=9)}, {"scalars": (("nvidia.com/mig-3g.40gb", 1),)}],
    ids=["parts of more GPUs than any node has", "a slice that no node has"],
)
def test_nothing_is_kept_for_a_pod_that_not_even_empty_nodes_would_hold(asked: dict[str, Any]) -> None:
    first = given.group(given.pod("first", gpus=0, **asked), priority=1000)
    big = given.group(given.pod("big", gpus=8))
    busy = [running("r0", "a", gpus=8), running("r1", "b", gpus=4)]
    sizes = {"a": 8, "b": 8, "c": 6}
    nodes = [given.node(name, gpus=gpus, device_memory_mib=80_000) for name, gpus in sizes.items()]

    made = plan(given.snapshot(nodes, [given.queue("q", deserved=16)], [*busy, first, big]), AGEING, now=NOW)

    assert made.withheld == ("b",)


def test_nothing_is_kept_for_a_group_that_has_not_aged_yet() -> None:
    made = plan(cluster(), AGEING, now=3599.0)

    assert (started(made), made.withheld) == (["small"], ())


def test_a_pod_that_is_decided_at_once_does_not_slip_onto_a_kept_node() -> None:
    snapshot = cluster()
    small = given.pod("small").group

    assert started(plan_some(snapshot, [small], AGEING)) == ["small"]
    assert started(plan_some(snapshot, [small], AGEING, withheld=[NodeName("b")])) == []
