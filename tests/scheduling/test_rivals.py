"""Whether a group is behind others is found in bounded work, because the event loop makes small plans."""

from dataclasses import replace

import pytest

from app.model.podgroup import PodGroup
from app.scheduling.placement import rivals
from app.scheduling.placement.free_resources import Assignment
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.rivals import Rivals
from app.scheduling.placement.state import PlacementState
from tests import given


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[PlacementState]:
    made, copy = list[PlacementState](), PlacementState.copy

    def count(board: PlacementState) -> PlacementState:
        made.append(board)
        return copy(board)

    monkeypatch.setattr(PlacementState, "copy", count)
    return made


def behind(*groups: PodGroup) -> list[int]:
    """Return behind how many groups each of these is when a pod has started on the only node."""
    snapshot = given.snapshot([given.node("a", gpus=8)], [given.queue("q")], groups)
    found = Rivals(snapshot, Strategy())
    found.note(given.pod("first").group, [Assignment(given.pod("first"), 0, (), later=False)])
    return [found.ahead(group, group.pending) for group in groups]


def test_single_pods_are_compared_without_a_copy_of_the_nodes(copies: list[PlacementState]) -> None:
    plain = [given.group(given.pod(f"p{number}")) for number in range(50)]
    special = [given.group(replace(given.pod(f"s{number}"), labels={"app": "x"})) for number in range(50)]

    assert behind(*plain, *special) == [1] * 100
    assert copies == []


def test_gangs_of_one_kind_are_compared_once(copies: list[PlacementState]) -> None:
    gangs = [
        given.group(*(given.pod(f"g{number}-{pod}", gang=f"g{number}") for pod in range(2))) for number in range(50)
    ]

    assert behind(*gangs) == [1] * 50
    assert len(copies) <= 2


def test_the_number_of_gangs_of_unlike_kinds_that_are_compared_is_limited(
    copies: list[PlacementState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "MOST_LOOKS", 10)
    gangs = [
        given.group(
            *(given.pod(f"g{number}-{pod}", gang=f"g{number}", labels={"app": str(number)}) for pod in range(2))
        )
        for number in range(50)
    ]

    assert behind(*gangs) == [1] * 10 + [0] * 40
    assert len(copies) <= 20
