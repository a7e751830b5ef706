"""Where parts of GPUs have room: cached results updated node by node equal those of a full computation."""

import numpy as np
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from app.model.names import NodeName
from app.model.pod import Placed, Pod, Sharing
from app.model.resources import GPU, Amounts
from app.model.snapshot import PART, SharedDevice
from app.scheduling.placement.free_resources import Assignment, FreeResources
from app.scheduling.placement.mask_cache import MOST_ANSWERS, Remembered
from app.scheduling.planner.planner import plan
from app.settings import PlacementStrategy
from loadtest.snapshots import NOW, shared_full, waiting
from tests import given

MIB = 1000
ASKED = (
    Sharing(portion_ppm=500_000),
    Sharing(portion_ppm=250_000, devices=2),
    Sharing(memory_mib=700),
    Sharing(portion_ppm=300_000, overhead_mib=100),
)
parts = st.integers(0, MIB).map(lambda mib: mib * PART)
devices = st.lists(st.tuples(parts, parts), max_size=3)


@st.composite
def stocks(draw: st.DrawFn) -> FreeResources:
    nodes = [given.node(f"n{number}", gpus=draw(st.integers(0, 3)), device_memory_mib=MIB) for number in range(4)]
    shared = {
        node.name: tuple(
            SharedDevice(f"d{number}", free, min(leaving, MIB * PART - free))
            for number, (free, leaving) in enumerate(draw(devices))
        )
        for node in nodes
    }
    made = given.snapshot(nodes, [], [], shared=shared)
    made.free[GPU] -= draw(st.integers(0, 2)) * 1000
    return FreeResources(made, PlacementStrategy.BINPACK)


def everywhere(stock: FreeResources, asked: Sharing) -> tuple[list[bool], list[bool], list[bool]]:
    """Return where there is room now, where later, and where in a device that is shared already, from scratch."""
    free, future, there = stock.free[GPU], stock.future[GPU], stock.devices
    later = there.room(asked, future, future, later=True)
    now = there.room(asked, free, future, later=False) & later
    return now.tolist(), later.tolist(), there.fits(asked, future).tolist()


def seen(stock: FreeResources, pod: Pod, asked: Sharing) -> tuple[list[bool], list[bool], list[bool]]:
    amounts, columns = stock.taken(pod), range(stock.free.shape[1])
    later = [stock.has_room_later(amounts, asked, column) for column in columns]
    now = [stock.has_room_now(amounts, asked, column) and later[column] for column in columns]
    return now, later, [stock.has_shared(asked, column) for column in columns]


@generated(stocks(), st.lists(st.sampled_from(ASKED), max_size=6))
def test_checks_of_one_node_after_another_equal_the_check_of_all(stock: FreeResources, asking: list[Sharing]) -> None:
    for number, asked in enumerate(asking):
        pod = given.pod(f"p{number}", gpus=0, cpu=0, sharing=asked)
        assert seen(stock, pod, asked) == everywhere(stock, asked)
        columns = np.flatnonzero(stock.room_later(stock.taken(pod), asked))
        for column in columns[:1].tolist():
            gpus = int(stock.free[GPU, column]), int(stock.future[GPU, column])
            names, waits = stock.devices.choose(pod, asked, column, gpus)
            stock.take(Assignment(pod, column, names, waits))
            placed = Placed(pod=pod, node=NodeName(f"n{column}"), devices=names)
        if columns.size and number % 3 == 2:
            stock.give_back(placed)
    for asked in ASKED:
        assert seen(stock, given.pod("last", gpus=0, cpu=0, sharing=asked), asked) == everywhere(stock, asked)


class Ledger:
    """The values of three nodes as a cache reports them; counts the full computations."""

    def __init__(self) -> None:
        self.amounts = np.array([1, 2, 3], dtype=np.int64)
        self.asked = 0

    def told(self, remembered: Remembered) -> list[int]:
        told: list[int] = remembered.answer("amounts", self._everywhere, self.amounts.item).tolist()
        return told

    def _everywhere(self) -> Amounts:
        self.asked += 1
        return self.amounts.copy()


def test_only_changed_nodes_are_checked_again() -> None:
    ledger, remembered = Ledger(), Remembered(nodes=3)
    before = ledger.told(remembered)

    ledger.amounts[:] = 7, 8, 9
    remembered.touch(1)

    assert (before, ledger.told(remembered), ledger.asked) == ([1, 2, 3], [1, 8, 3], 1)


def test_all_nodes_are_checked_again_after_many_changes_or_after_a_reset() -> None:
    ledger, remembered = Ledger(), Remembered(nodes=3)
    ledger.told(remembered)

    ledger.amounts[:] = 7, 8, 9
    remembered.touch(0)
    remembered.touch(1)
    assert (ledger.told(remembered), ledger.asked) == ([7, 8, 9], 2)
    remembered.forget()
    assert (ledger.told(remembered), ledger.asked) == ([7, 8, 9], 3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_changes_reported_to_a_copy_are_not_reported_to_the_original(order: tuple[int, int]) -> None:
    ledgers, first = (Ledger(), Ledger()), Remembered(nodes=3)
    ledgers[0].told(first)
    both = first, first.copy()

    for number in order:
        ledgers[number].amounts[1] = 10 + number
        both[number].touch(1)
        ledgers[number].told(both[number])

    assert [each.told(one) for each, one in zip(ledgers, both, strict=True)] == [[1, 10, 3], [1, 11, 3]]


def test_questions_beyond_the_size_of_the_cache_get_the_same_answers() -> None:
    ledger, remembered = Ledger(), Remembered(nodes=3)

    for number in range(MOST_ANSWERS + 5):
        told = remembered.answer(number, ledger.amounts.copy, ledger.amounts.item).tolist()
        assert told == [1, 2, 3]
    assert ledger.told(remembered) == ledger.told(remembered) == [1, 2, 3]
    assert ledger.asked == 2


# Whole GPUs with parts held by other pods


def test_no_victim_is_tried_that_releases_half_of_a_gpu_on_which_another_pod_stays() -> None:
    made = plan(shared_full(500, waiting("gang", "poor", pods=20, gpus=8, at=NOW)), now=NOW)

    assert (len(made.evictions), made.unfinished) == (20 * 8 * 2, False)


def test_a_gpu_is_whole_when_all_pods_that_share_it_are_evicted() -> None:
    stock = FreeResources(shared_full(1), PlacementStrategy.BINPACK)
    held = [group.placed[0] for group in shared_full(1).running.values()]
    here = [one for one in held if one.devices == ("d0",)]

    assert [stock.devices.whole_without(here[:count], 0) for count in (0, 1, 2)] == [0, 0, 1]
