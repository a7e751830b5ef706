"""The expected use of free GPUs, beside plain recursions and the normal distribution itself."""

from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.model.mix import TypicalMix, TypicalPod
from app.scheduling.placement.expected_use import (
    MOST_GPUS,
    NODE_OFFERS,
    PART_OFFERS,
    UNIT,
    Demand,
    ExpectedUse,
    expected_use,
)


def kind(devices: int = 1, part_milli: int = 1000, *, cpu: int = 8) -> TypicalPod:
    return TypicalPod(cpu * 1000, 0, devices, part_milli)


def use_of(*pods: TypicalPod, counts: tuple[int, ...] = (), rooms: tuple[int, ...] = ()) -> ExpectedUse:
    found = expected_use(TypicalMix(pods, counts or (1,) * len(pods), rooms or (1,) * len(pods), gpu_nodes=1))
    assert found is not None
    return found


def test_a_rest_is_worth_what_typical_pods_can_fill() -> None:
    use = use_of(kind(part_milli=500))

    assert use.part[[0, 499, 500, 999, 1000]].tolist() == [0, 0, 500 * UNIT, 500 * UNIT, 1000 * UNIT]
    assert use.whole[[0, 1, 2]].tolist() == [0, 1000 * UNIT, 2000 * UNIT]


def test_too_few_gpus_for_the_typical_pod_are_worth_nothing() -> None:
    assert use_of(kind(8)).whole[[4, 7, 8, 15, 16]].tolist() == [0, 0, 8000 * UNIT, 8000 * UNIT, 16_000 * UNIT]


OFFERS = {(1, 1000): 0.5, (1, 250): 0.25, (1, 400): 0.125, (2, 1000): 0.125}


@cache
def plain_part(left: int, offers: int) -> float:
    if not offers:
        return 0.0
    found = 0.0
    for (devices, milli), weight in OFFERS.items():
        fits = devices == 1 and milli <= left
        found += weight * (milli + plain_part(left - milli, offers - 1) if fits else plain_part(left, offers - 1))
    return found


@cache
def plain_whole(gpus: int, offers: int) -> float:
    if not offers:
        return 0.0
    found = 0.0
    # The parts that pods open in the first offers are offered to as many pods as were whole GPUs.
    for (devices, milli), weight in OFFERS.items():
        if devices <= gpus:
            opened = devices * (milli + plain_part(1000 - milli, offers - 1))
            found += weight * (opened + plain_whole(gpus - devices, offers - 1))
        else:
            found += weight * plain_whole(gpus, offers - 1)
    return found


def test_the_tables_equal_a_plain_recursion_over_all_offers() -> None:
    counts = tuple(int(weight * 8) for weight in OFFERS.values())
    use = use_of(*(kind(devices, milli) for devices, milli in OFFERS), counts=counts)

    for left in (0, 250, 399, 400, 650, 1000):
        assert use.part[left] == pytest.approx(UNIT * plain_part(left, PART_OFFERS), abs=1)
    for gpus in (0, 1, 2, 3, 8):
        assert use.whole[gpus] == pytest.approx(UNIT * plain_whole(gpus, NODE_OFFERS), abs=1)


def test_a_kind_with_little_room_left_counts_more() -> None:
    pods = kind(1), kind(4)
    common, scarce = use_of(*pods, rooms=(100, 100)), use_of(*pods, rooms=(100, 1))

    # Three GPUs are worth less where pods of four GPUs are offered more often.
    assert scarce.whole[3] < common.whole[3] / 2


def test_there_is_no_expected_use_where_typical_pods_request_too_many_gpus() -> None:
    assert expected_use(TypicalMix((kind(MOST_GPUS + 1),), (1,), (1,), gpu_nodes=1)) is None


def test_the_shortage_is_that_of_the_normal_distribution() -> None:
    demand = Demand(mean=10.0, variance=40_000.0)
    for gpu_milli, free in ((4000, 40_000), (4000, 20_000), (4000, 60_000), (500, 0), (8000, 200_000)):
        deviation = (demand.variance * gpu_milli) ** 0.5
        z = (demand.mean * gpu_milli - free) / deviation
        lacking = deviation * (z * NormalDist().cdf(z) + NormalDist().pdf(z)) / demand.mean

        assert demand.shortage(gpu_milli, free) / UNIT == pytest.approx(0.5 * min(lacking, gpu_milli), abs=0.05)


@for_all(
    st.floats(0, 1e9),
    st.floats(1e-6, 1e18),
    st.lists(st.tuples(st.integers(0, 128_000), st.integers(0, 1 << 42)), min_size=1),
)
def test_the_shortage_of_one_node_is_the_same_as_that_of_all(
    mean: float, variance: float, nodes: list[tuple[int, int]]
) -> None:
    demand, (gpu_milli, free) = Demand(mean, variance), np.array(nodes, dtype=np.int64).T

    found = demand.shortages(gpu_milli, free).tolist()

    assert found == [demand.shortage(*node) for node in nodes]
    assert all(0 <= short <= UNIT * gpus for short, (gpus, _) in zip(found, nodes, strict=True))
