"""Ranks updated node by node equal a new ranking of all nodes; which ranked node is chosen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.pod import Constraint
from app.model.resources import Amounts
from app.scheduling.placement import ranks
from app.scheduling.placement.ranks import LATER, UNSHARED, Strategy, Where, Wish
from app.scheduling.placement.score import FORBIDDEN
from app.scheduling.placement.state import PlacementState
from app.settings import PlacementStrategy
from tests import given
from tests.scheduling.worlds import World, worlds

examples = settings(max_examples=60)
strategies = st.builds(Strategy, st.sampled_from(PlacementStrategy), st.sampled_from(PlacementStrategy))


def updated_and_recomputed(board: PlacementState, wish: Wish) -> tuple[list[int], list[int]]:
    every = range(len(board.snapshot.nodes.nodes))
    one_by_one = [board.ranking.at(wish, board.stock, column) for column in every]
    return one_by_one, board.ranking.everywhere(wish, board.stock).tolist()


@examples
@for_all(worlds, strategies, st.booleans())
def test_the_rank_of_one_node_equals_its_rank_among_all(world: World, strategy: Strategy, waits: object) -> None:
    board = PlacementState(world.snapshot(), strategy)

    for pod in (pod for group in world.groups for pod in group.pending):
        wish = Wish.of(pod, board.stock.taken(pod), board.eligible(pod), waits=bool(waits))
        one_by_one, anew = updated_and_recomputed(board, wish)
        assert one_by_one == anew


@examples
@for_all(worlds, strategies)
def test_a_placement_state_after_many_changes_chooses_like_a_new_one(world: World, strategy: Strategy) -> None:
    board = PlacementState(world.snapshot(), strategy)
    pods = [pod for group in world.groups for pod in group.pending]

    for pod in pods:
        board.copy().place([pod])  # the memory of a what-if is its own
        board.place([pod])
    for group in world.groups:
        for one in group.placed:
            board.give_back(one)
            found = [board.find(pod) for pod in pods]
            board.stock.remembered.forget()
            assert found == [board.find(pod) for pod in pods]


def told(*each: int) -> Amounts:
    return np.array(each, dtype=np.int64)


@pytest.mark.parametrize(
    ("each", "nominated", "chosen"),
    [
        ((5, 3, 3, 9), None, 1),
        ((5, 3, 3, 9), 3, 3),
        ((5, 3, LATER, FORBIDDEN), 2, 1),
        ((FORBIDDEN, LATER + 5, LATER), 1, 1),
        ((UNSHARED, LATER, FORBIDDEN), 0, 1),
        ((UNSHARED + LATER, FORBIDDEN), 1, 0),
        ((FORBIDDEN, FORBIDDEN), 1, None),
        ((), None, None),
    ],
)
def test_the_node_of_the_lowest_rank_is_chosen_or_the_nominated_node_at_the_same_step(
    each: tuple[int, ...], nominated: int | None, chosen: int | None
) -> None:
    assert ranks.best(told(*each), nominated) == chosen


def test_the_nodes_with_most_steps_and_room_are_kept_for_a_gang() -> None:
    where = Where(within=np.array([True, True, True, False]), steps=told(3, 1, 1, 2))

    assert where.narrowed(told(FORBIDDEN, 4, 5, 6)).tolist() == [FORBIDDEN, 4, 5, FORBIDDEN]
    assert where.narrowed(told(7, 4, 5, 6)).tolist() == [7, FORBIDDEN, FORBIDDEN, FORBIDDEN]
    assert where.narrowed(told(FORBIDDEN, FORBIDDEN, FORBIDDEN, 6)).tolist() == [FORBIDDEN] * 4


def test_only_the_first_of_pods_of_one_shape_is_checked() -> None:
    first, second, third = given.pod("a"), given.pod("b"), given.pod("c", labels={})
    other = replace(given.pod("d"), constraint=Constraint(node_selector=(("zone", "z"),)))
    board = PlacementState(given.snapshot([given.node("n")], [], []), Strategy())

    assert board.unlike([first, second, third, other]) == [first, third, other]
