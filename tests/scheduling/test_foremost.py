"""The nodes on which victims are searched first."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.model.podgroup import PodGroup
from app.model.resources import GPU_MILLI
from app.model.snapshot import Snapshot
from app.scheduling.planner.planner import plan
from app.scheduling.policy import DEFAULT_POLICY
from app.scheduling.preemption import prospects, search
from app.scheduling.preemption.evictable import EVERYBODY
from app.scheduling.preemption.whatif import WhatIf
from tests import given

NOW = 1000.0


def runs(name: str, node: str, *, queue: str = "q", gpus: int = 2, **more: Any) -> PodGroup:
    """Build a single pod that runs."""
    placed = given.placed(given.pod(name, queue=queue, gpus=gpus), node)
    return replace(given.group(running=[placed], min_member=1), **more)


def cluster(*groups: PodGroup) -> Snapshot:
    queues = [given.queue("q", deserved=4), given.queue("p", deserved=4)]
    return given.snapshot([given.node(f"n{each}", gpus=4) for each in range(3)], queues, groups)


def first(made: Snapshot, *, gpus: int, most: int = 1) -> list[int]:
    """Return on which nodes this number of GPUs becomes free first."""
    state = WhatIf(made, DEFAULT_POLICY.strategy)
    state.divide()
    prospects.most(state)
    every, needed = np.ones(3, dtype=np.bool_), np.full(3, gpus * GPU_MILLI)
    return np.flatnonzero(prospects.foremost(state, (EVERYBODY,), every, needed, most)).tolist()


def test_victims_are_searched_first_on_the_node_whose_pods_have_the_lowest_priority() -> None:
    made = cluster(runs("a", "n0", priority=2), runs("b", "n1", priority=1), runs("c", "n2", priority=3))

    assert first(made, gpus=2) == [1]
    assert first(made, gpus=2, most=2) == [0, 1]


def test_victims_are_searched_first_on_the_node_of_the_queue_that_is_fuller() -> None:
    held = [runs(f"q{node}", f"n{node}") for node in (0, 2)]
    made = cluster(*held, runs("more", "n2", gpus=1), runs("p", "n1", queue="p"))

    assert 1 not in first(made, gpus=2)


def test_all_victims_of_a_node_count_for_its_rank() -> None:
    low, high = (runs(f"{at}-{each}", f"n{at}", priority=each) for at, each in ((0, 1), (0, 9)))
    made = cluster(low, high, runs("b", "n1", priority=5), runs("c", "n1", priority=6))

    assert first(made, gpus=4) == [1]


def test_other_nodes_are_searched_when_the_first_ones_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    # Clusters in which not all nodes are searched are large.
    monkeypatch.setattr(search, "LOOK", 0)
    young = runs("young", "n0", gpus=4, priority=1, started_at=NOW - 1)
    made = cluster(young, *(runs(f"old{each}", f"n{each}", gpus=4, priority=2, started_at=0.0) for each in (1, 2)))
    asking = given.group(given.pod("w", queue="q", gpus=4), priority=3)
    made = replace(made, groups={asking.key: asking})

    found = plan(made, now=NOW)

    assert [each.pod for each in found.evictions] == ["uid-old2"]


def test_no_node_is_first_if_all_its_pods_are_non_preemptible() -> None:
    assert first(cluster(runs("firm", "n0", preemptible=False)), gpus=4) == []
