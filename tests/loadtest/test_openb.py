"""No policy cheats in the replay of a trace, and FGD is the published one."""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, floor

import numpy as np
import pytest

from loadtest.openb import OpenbNode, OpenbPlace, OpenbPod, arrivals, in_fixed_order, read_nodes, read_pods, replay
from loadtest.openb_policies import Fgd, typical_mix
from loadtest.placement import POLICIES
from tests.loadtest.openb_sample import NODES, PODS

WHOLE = OpenbPod(1000, 1024, 1, 1000, ())


@dataclass
class Ledger:
    """What the pods on one node have, counted without the code of the bench."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str
    pods: int = 0
    unnamed: int = 0
    devices: dict[object, int] = field(default_factory=lambda: defaultdict(int))

    def fits(self, pod: OpenbPod) -> bool:
        left = [1000 - milli for milli in self.devices.values()] + [1000] * (
            self.gpus - self.unnamed - len(self.devices)
        )
        return (
            self.cpu_milli >= pod.cpu_milli
            and self.memory_mib >= pod.memory_mib
            and (not pod.models or self.model in pod.models)
            and sum(milli >= pod.gpu_milli for milli in left) >= pod.gpus
        )

    def take(self, pod: OpenbPod, devices: Sequence[object]) -> None:
        self.cpu_milli -= pod.cpu_milli
        self.memory_mib -= pod.memory_mib
        self.pods += 1
        if not devices and pod.gpu_milli == 1000:
            self.unnamed += pod.gpus
        else:
            assert len(set(devices)) == len(devices) == pod.gpus
            for device in devices:
                self.devices[device] += pod.gpu_milli

    def leave(self, pod: OpenbPod, devices: Sequence[object]) -> None:
        self.cpu_milli += pod.cpu_milli
        self.memory_mib += pod.memory_mib
        self.pods -= 1
        if not devices and pod.gpu_milli == 1000:
            self.unnamed -= pod.gpus
        for device in devices:
            self.devices[device] -= pod.gpu_milli
            if not self.devices[device]:
                del self.devices[device]

    @property
    def is_overcommitted(self) -> bool:
        too_many = self.unnamed + len(self.devices) > self.gpus or self.pods > 1001
        return too_many or min(self.cpu_milli, self.memory_mib) < 0 or max(self.devices.values(), default=0) > 1000


def ledgers(nodes: Sequence[OpenbNode]) -> list[Ledger]:
    with NODES.open(encoding="utf-8") as file:
        rows = {row["sn"]: row for row in csv.DictReader(file)}
    mine = (rows[node.name] for node in nodes)
    return [Ledger(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"]) for row in mine]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_node_or_device_is_overcommitted_and_no_pod_with_room_is_dropped(policy: str) -> None:
    nodes, trace = in_fixed_order(read_nodes(NODES), 7), read_pods(PODS)
    # GPUs in parts of two sizes, and parts of two GPUs at once, which no public trace has.
    trace = [*trace, *[OpenbPod(2000, 4096, 2, 300, ())] * 20, *[OpenbPod(2000, 4096, 1, 333, ("T4",))] * 20]
    arriving = arrivals(trace, 314_000, 7)

    result = replay(POLICIES[policy](nodes, trace, 7), arriving, 314_000)

    books, allocated, dropped = ledgers(nodes), 0, 0
    places = list(result.places)
    for number, (pod, place) in enumerate(zip(arriving, result.places, strict=True)):
        moves = [move for move in result.moves if move.beneficiary == number]
        for move in moves:
            before = places[move.pod]
            assert before is not None
            books[before.column].leave(arriving[move.pod], before.devices)
        if place is None:
            dropped += 1
            assert not moves
            assert not any(one.fits(pod) for one in books)
        else:
            assert books[place.column].fits(pod)
            books[place.column].take(pod, place.devices)
            allocated += pod.gpus * pod.gpu_milli
        for move in moves:
            assert books[move.to.column].fits(arriving[move.pod])
            books[move.to.column].take(arriving[move.pod], move.to.devices)
            places[move.pod] = move.to
        assert not any(book.is_overcommitted for book in books)
    assert dropped > 50
    assert bool(result.moves) is (policy == "consolidating")
    assert result.allocation_percent == pytest.approx(allocated / 3140, abs=0.3)


@pytest.mark.parametrize("times", [1, 3], ids=["more pods than the trace has", "fewer"])
def test_arrivals_request_130_percent_in_an_order_that_the_seed_decides(times: int) -> None:
    trace = read_pods(PODS) * times

    arriving = arrivals(trace, 314_000, 42)

    assert sum(pod.gpus * pod.gpu_milli for pod in arriving) == pytest.approx(1.3 * 314_000, abs=8000)
    assert (len(arriving) > len(trace)) is (times == 1)
    assert arriving == arrivals(trace, 314_000, 42) != arrivals(trace, 314_000, 43)


class FirstTen:
    """Places ten pods."""

    moves = ()

    def __init__(self) -> None:
        self.arrived = 0

    def place(self, pod: OpenbPod) -> OpenbPlace | None:
        del pod
        self.arrived += 1
        return OpenbPlace(0, ()) if self.arrived <= 10 else None


def test_allocation_is_the_mean_of_the_arrivals_at_the_same_percentage_or_the_last_before() -> None:
    no_gpu = OpenbPod(1000, 1024, 0, 0, ())

    curve = replay(FirstTen(), [WHOLE, no_gpu, *[WHOLE] * 12], 10_000).curve

    assert [curve[percent] for percent in (0, 9, 10, 19, 20, 90, 100, 130)] == [0, 0, 10, 10, 20, 90, 90, 90]
    assert len(curve) == 131
    # Two arrivals round to 0 %.
    assert replay(FirstTen(), [no_gpu, OpenbPod(1, 1, 1, 40, ())], 10_000).curve[0] == pytest.approx(0.2)


def unusable(cpu: int, gpus: Sequence[int], model: str, typical: Mapping[OpenbPod, int]) -> float:
    """FGD's fragment of one node, word by word as published."""
    total = 0.0
    for pod, number in typical.items():
        cannot = pod.gpus == 0 or (pod.models and model not in pod.models) or cpu < pod.cpu_milli
        cannot = cannot or sum(free >= pod.gpu_milli for free in gpus) < pod.gpus
        total += number * sum(free for free in gpus if cannot or free < pod.gpu_milli)
    return total / sum(typical.values())


def test_fgd_costs_are_those_of_the_published_formulas() -> None:
    nodes, trace = in_fixed_order(read_nodes(NODES), 42), read_pods(PODS)
    policy = Fgd(nodes, trace, 42)
    for pod in trace[:200]:
        policy.place(pod)
    typical = typical_mix(trace)
    for pod in (OpenbPod(4000, 1024, 1, 310, ()), OpenbPod(4000, 1024, 2, 1000, ()), OpenbPod(9000, 1024, 0, 0, ())):
        columns = np.flatnonzero(
            ((policy.gpus >= max(pod.gpu_milli, 1)).sum(axis=1) >= pod.gpus) & (policy.cpu >= 9000)
        )
        expected = []
        for column in columns.tolist():
            cpu, gpus, model = int(policy.cpu[column]), policy.gpus[column].tolist(), nodes[column].model
            places = [
                places
                for places in combinations(range(len(gpus)), pod.gpus)
                if all(gpus[place] >= pod.gpu_milli for place in places)
            ]
            afters = [[free - pod.gpu_milli * (at in those) for at, free in enumerate(gpus)] for those in places]
            before = unusable(cpu, gpus, model, typical)
            more = min(unusable(cpu - pod.cpu_milli, after, model, typical) - before for after in afters)
            expected.append(-floor(100 / (1 + exp(more / 1000))))
        assert policy.cost(pod, columns).tolist() == expected
        assert len(set(expected)) > 1
