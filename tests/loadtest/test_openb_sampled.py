"""Which nodes kube-scheduler offers in the replay of a trace, and where Leeboard then places a pod."""

import numpy as np
import pytest

from loadtest.openb import OpenbNode, OpenbPod, read_nodes, read_pods
from loadtest.openb_leeboard import LeeboardPlacer, Offers
from loadtest.placement import replays
from tests.loadtest.openb_sample import NODES, PODS

WHOLE = OpenbPod(1000, 1024, 1, 1000, ())
PART = WHOLE._replace(gpu_milli=500)
EMPTY = OpenbNode("empty", 16_000, 16_384, 1, "T4")
SMALL = EMPTY._replace(name="small", cpu_milli=1000)
"""The better node for a pod of one CPU: it is full then."""


def test_a_sample_as_large_as_the_cluster_changes_no_placement() -> None:
    nodes, trace = read_nodes(NODES), read_pods(PODS)

    of_all, of_sample, of_few = (
        [one.result for one in replays(nodes, trace, [1, 2], ["leeboard"], sample=sample)]
        for sample in (None, len(nodes), 5)
    )

    assert [one.places for one in of_sample] == [one.places for one in of_all]
    assert [one.places for one in of_few] != [one.places for one in of_all]


def test_each_search_begins_where_the_last_one_ended() -> None:
    offers, passing = Offers(2), np.array([True, False, True, True, True])

    found = [np.flatnonzero(offers.of(passing)).tolist() for _ in range(3)]

    assert found == [[0, 2], [3, 4], [0, 2]]


def test_a_search_that_finds_too_few_nodes_has_looked_at_all() -> None:
    offers = Offers(2)
    offers.of(np.array([True, True, False, True]))

    assert offers.of(np.array([True, False, False, False])).tolist() == [True, False, False, False]
    assert np.flatnonzero(offers.of(np.array([True, True, True, True]))).tolist() == [2, 3]


@pytest.mark.parametrize(("pod", "column"), [(WHOLE, 0), (PART, 1)], ids=["whole GPU", "part of a GPU"])
def test_only_a_pod_that_shares_a_gpu_gets_its_planned_node_outside_the_sample(pod: OpenbPod, column: int) -> None:
    nodes = [EMPTY, SMALL]
    everywhere, sampled = LeeboardPlacer(nodes, [], 1), LeeboardPlacer(nodes, [], 1, sample=1)

    planned, moved = everywhere.place(pod), sampled.place(pod)

    assert (planned and planned.column, moved and moved.column) == (1, column)


def test_a_pod_without_gpus_stays_off_the_gpu_nodes_of_a_sample() -> None:
    without = EMPTY._replace(name="without", gpus=0, model="")
    placer = LeeboardPlacer([EMPTY, SMALL, without], [], 1, sample=1)

    found = [placer.place(OpenbPod(8_000, 1024, 0, 0, ())) for _ in range(3)]

    assert [place and place.column for place in found] == [2, 2, 0]
