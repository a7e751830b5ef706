"""Which devices of a machine are chosen, compared with published results of go-gpuallocator and an enumeration."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.layout import Layout
from app.scheduling.placement import cliques
from tests.scheduling.machines import RECORDED, devices, layout, machine, mask

Set = tuple[int, ...]


def choose(on: Layout, size: int, available: Sequence[int], required: Sequence[int] = ()) -> list[int]:
    return devices(cliques.choose(on, size, mask(available), mask(required)))


def in_turn(on: Layout, sizes: Sequence[int]) -> list[list[int]]:
    """Take one set after the other from a machine that is empty at first."""
    left, taken = set(range(on.size)), []
    for size in sizes:
        taken.append(choose(on, size, sorted(left)))
        left -= set(taken[-1])
    return taken


# As published ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", RECORDED["choices"], ids=lambda case: case["case"])
def test_the_chosen_set_is_the_one_of_go_gpuallocator(case: dict[str, Any]) -> None:
    found = choose(machine(case["machine"]), case["size"], case["available"], case["required"])

    assert found == case["expect"]


@pytest.mark.parametrize("case", RECORDED["sequences"], ids=lambda case: case["case"])
def test_sets_chosen_until_no_device_is_free_are_those_of_go_gpuallocator(case: dict[str, Any]) -> None:
    sizes, expected = zip(*case["steps"], strict=True)

    assert in_turn(machine(case["machine"]), sizes) == list(expected)


@pytest.mark.parametrize("case", RECORDED["valid_sets"], ids=lambda case: f"{case['machine']} by {case['size']}")
def test_sets_on_a_dgx_are_those_that_nvidia_lists_as_valid(case: dict[str, Any]) -> None:
    sets = case["sets"]

    assert in_turn(machine(case["machine"]), [case["size"]] * len(sets)) == sets


# As an enumeration gives ----------------------------------------------------------------------------------------------


def divisions(left: Set, size: int) -> Iterator[list[Set]]:
    """Yield every division into sets of the size and one of the rest, in order; a short set is after a long one."""
    if not left:
        yield []
        return
    counts = {size, len(left) % size} - {0} if len(left) >= size else {len(left)}
    parts = [(left[0], *others) for count in counts for others in combinations(left[1:], count - 1)]
    for part in sorted(parts, key=lambda part: (*part, *[99] * (size - len(part)))):
        for others in divisions(tuple(device for device in left if device not in part), size):
            yield [part, *others]


class Slow:
    """One machine, with plain enumeration."""

    def __init__(self, on: Layout) -> None:
        self._scores = on.scores

    def worth(self, part: Set) -> int:
        return sum(self._scores[one][other] for one, other in combinations(part, 2))

    def together(self, division: list[Set]) -> int:
        return sum(map(self.worth, division))

    def choose(self, size: int, available: Set) -> Set:
        if not 0 < size <= len(available):
            return ()
        best = max(divisions(available, size), key=self.together)
        return max((part for part in best if len(part) == size), key=self.worth)

    def choose_with(self, required: Set, size: int, available: Set) -> Set:
        def value(part: Set) -> tuple[int, int]:
            left = tuple(device for device in available if device not in part)
            return max(map(self.together, divisions(left, size))) + self.worth(part), self.worth(part)

        parts = (part for part in combinations(available, size) if set(required) <= set(part))
        return max(parts, key=value, default=())


@st.composite
def machines(draw: st.DrawFn) -> Layout:
    """Draw a small machine, often with many equal pairs, so that there is more than one best division."""
    size = draw(st.integers(1, 7))
    score = st.sampled_from(draw(st.sampled_from([(0, 100), (10, 110, 230), tuple(range(0, 600, 7))])))
    upper = {pair: draw(score) for pair in combinations(range(size), 2)}
    return layout([upper.get((min(pair), max(pair)), 0) for pair in ((a, b) for b in range(size))] for a in range(size))


@settings(max_examples=300, deadline=None)
@for_all(machines(), st.data())
def test_the_chosen_set_is_the_best_one_of_the_first_of_the_best_divisions(on: Layout, data: st.DataObject) -> None:
    available = tuple(sorted(data.draw(st.sets(st.integers(0, on.size - 1)))))
    size = data.draw(st.integers(0, on.size + 1))

    assert tuple(choose(on, size, available)) == Slow(on).choose(size, available)


@settings(max_examples=300, deadline=None)
@for_all(machines(), st.data())
def test_required_devices_are_in_the_best_set_that_can_contain_them(on: Layout, data: st.DataObject) -> None:
    available = tuple(sorted(data.draw(st.sets(st.integers(0, on.size - 1), min_size=1))))
    required = tuple(sorted(data.draw(st.sets(st.sampled_from(available), min_size=1))))
    size = data.draw(st.integers(1, on.size))

    assert tuple(choose(on, size, available, required)) == Slow(on).choose_with(required, size, available)


def test_no_division_of_sixteen_unlike_devices_into_eights_scores_higher() -> None:
    on, every = unlike(16), tuple(range(16))
    slow = Slow(on)

    found = tuple(choose(on, 8, every))

    rest = tuple(device for device in every if device not in found)
    halves = ((part, tuple(device for device in every if device not in part)) for part in combinations(every, 8))
    assert slow.together([found, rest]) == max(slow.together(list(each)) for each in halves)


def unlike(size: int) -> Layout:
    """Return a machine with hardly any two equal pairs."""
    rows = ([0 if a == b else (min(a, b) * 37 + max(a, b) * 61) % 97 * 7 for b in range(size)] for a in range(size))
    return layout(rows)


# By kind of machine ---------------------------------------------------------------------------------------------------


def test_all_sets_are_equal_behind_nvswitch_and_the_first_is_chosen() -> None:
    switched = layout([0 if one == other else 1800 for other in range(8)] for one in range(8))

    assert choose(switched, 3, [1, 2, 5, 6, 7]) == [1, 2, 5]
    assert choose(switched, 3, [1, 2, 5, 6, 7], [6]) == [1, 2, 6]


def test_a_missing_connection_scores_zero() -> None:
    lonely = layout([[0, 0, 0], [0, 0, 10], [0, 10, 0]])

    assert choose(lonely, 2, [0, 1, 2]) == [1, 2]


def test_a_half_used_machine_gives_the_set_that_keeps_its_last_quad_whole() -> None:
    assert choose(machine("dgx1-v100"), 2, [0, 3, 4, 5, 6, 7]) == [0, 3]


@pytest.mark.parametrize(
    ("size", "available", "required"),
    [(0, [0], []), (-1, [0], []), (3, [0, 1], []), (1, [0], [1]), (1, [0, 1], [0, 1]), (1, [8], []), (1, [], [])],
)
def test_an_impossible_set_is_refused(size: int, available: list[int], required: list[int]) -> None:
    assert choose(machine("dgx1-v100"), size, available, required) == []


# More devices than are enumerated -------------------------------------------------------------------------------------


def fives(size: int) -> Layout:
    """Return a machine of fully linked sets of five, whose first devices are linked to their neighbours too."""
    near = [[one // 5 == other // 5 for other in range(size)] for one in range(size)]
    return layout(
        [0 if a == b else 10 + 200 * near[a][b] + 10 * (a % 5 == b % 5 == 0) for b in range(size)] for a in range(size)
    )


@pytest.mark.parametrize("machine_size", [20, 40, 60])
def test_a_large_machine_gives_a_clique_that_leaves_whole_cliques(machine_size: int) -> None:
    every = list(range(machine_size))

    assert choose(fives(machine_size), 5, every) == [0, 1, 2, 3, 4]
    assert choose(fives(machine_size), 5, every[3:]) == [5, 6, 7, 8, 9]
    assert choose(fives(machine_size), 5, every, [17]) == [15, 16, 17, 18, 19]
    assert choose(fives(machine_size), 2, every[3:]) == [3, 4]
    assert choose(fives(machine_size), 3, every) == [1, 2, 3]


@settings(max_examples=50, deadline=None)
@for_all(st.integers(17, 64), st.data())
def test_a_set_on_a_large_machine_has_the_available_size_and_the_required_devices(
    size: int, data: st.DataObject
) -> None:
    available = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    required = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=4))
    asked = data.draw(st.integers(max(len(required), 1), len(available)))

    found = choose(unlike(size), asked, sorted(available), sorted(required))

    assert len(found) == asked
    assert required <= set(found) <= available
