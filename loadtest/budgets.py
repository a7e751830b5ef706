"""Times single plans of large clusters, how they grow, and device choice, each beside its budget; `make bench`.

Everything is CPU time of this process on one core, so a busy machine changes it less than wall time; every figure of a
plan is one run. The clusters are made of values, so what is timed is the planner alone. No two pairs of devices of the
machines are alike, which is what takes longest.
"""

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from app.model.decision import Action, Plan, Start
from app.model.layout import Layout
from app.model.podgroup import PodGroup
from app.model.resources import GPU_MILLI
from app.model.snapshot import Snapshot
from app.scheduling.placement import cliques
from app.scheduling.planner.planner import plan
from app.scheduling.policy import DEFAULT_POLICY, Policy
from loadtest import largest
from loadtest.crowds import crowded
from loadtest.mixtures import mixed, racks
from loadtest.snapshots import (
    NOW,
    elastic,
    fragmented,
    gangs,
    gangs_of_parts,
    halves,
    helpless,
    hopeless,
    known,
    lone_halves,
    lone_pods,
    machine,
    many_queues,
    reclaim,
    rigid,
    shared_full,
    waiting,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """One plan to be timed."""

    name: str
    budget_s: float | None
    """None: shown for its growth only."""
    starts: int
    """How many pods the plan must find a place for; another number is no result."""
    snapshot: Callable[[], Snapshot]
    policy: Policy = DEFAULT_POLICY


STAYING = Policy(actions=(Action.ALLOCATE,))
"""No pod is evicted."""


def _whole(gpus: int) -> PodGroup:
    return waiting("gang", "poor", pods=50, gpus=gpus, at=NOW)


BENCHES = (
    Bench("10,000 lone pods, 5,000 nodes", 1.0, 10_000, lambda: lone_pods(5000, 10_000)),
    Bench("500 gangs of 20, 5,000 nodes", 1.0, 10_000, lambda: gangs(5000, 500, pods=20)),
    Bench("10,000 pods that fit nowhere, 5,000 nodes", 1.0, 0, lambda: lone_pods(5000, 10_000, gpus=9)),
    Bench("reclaim for 10 x 8 GPUs, 100 nodes", None, 10, lambda: reclaim(100)),
    Bench("reclaim for 20 x 8 GPUs, 200 nodes", None, 20, lambda: reclaim(200)),
    Bench("reclaim for 50 x 8 GPUs, 500 nodes", None, 50, lambda: reclaim(500)),
    Bench("reclaim for 100 x 8 GPUs, 1,000 nodes", 2.0, 100, lambda: reclaim(1000)),
    Bench("1,000 pods that are owed nothing, 1,000 nodes", None, 0, lambda: hopeless(1000)),
    Bench("200 gangs that no eviction helps, 1,000 nodes", None, 0, lambda: helpless(1000)),
    Bench("10,000 pods in 1,000 queues, 50,000 running", None, 5000, lambda: many_queues(5000)),
    Bench("2,500 halves of GPUs, 1,250 nodes", None, 2500, lambda: halves(1250, 2500)),
    Bench("10,000 halves of GPUs, 5,000 nodes", 1.0, 10_000, lambda: halves(5000, 10_000)),
    Bench("500 gangs of 20, a quarter of 2 GPUs each", None, 10_000, lambda: gangs_of_parts(5000, 500, pods=20)),
    Bench("reclaim for 50 x 1 GPU from halves, 500 nodes", None, 50, lambda: shared_full(500, _whole(1))),
    Bench("reclaim for 50 x 8 GPUs from halves, 500 nodes", 2.0, 50, lambda: shared_full(500, _whole(8))),
    Bench("reclaim for 200 halves from halves, 500 nodes", 2.0, 200, lambda: shared_full(500, *lone_halves(200))),
    Bench("an elastic group of 5,000, 1,000 nodes", None, 5000, lambda: elastic(1000, 5000)),
    Bench("consolidate for 10 x 8 GPUs, 500 nodes", None, 10, lambda: fragmented(500)),
    Bench("gangs of 20 x 8 GPUs, 5,000 nodes", None, 4000, lambda: gangs(5000, 200, pods=20, gpus=8)),
    Bench("the same, with an agent on every node", None, 4000, lambda: known(gangs(5000, 200, pods=20, gpus=8))),
    Bench("no pod can be moved, 1,000 nodes", None, 0, lambda: rigid(1000)),
    Bench("10,000 pods of 20 shapes, 5,000 nodes, no evictions", None, 7119, lambda: mixed(5000, 10_000), STAYING),
    Bench("500 gangs of 20, each in a rack, 5,000 nodes", None, 10_000, lambda: racks(5000, 500, pods=20)),
)


@dataclass(frozen=True, slots=True)
class Growth:
    """One plan to be timed at two sizes, to see how it grows."""

    name: str
    few: int
    many: int
    snapshot: Callable[[int], Snapshot]


GROWTHS = (
    Growth("lone pods, 15,000 nodes", 10_000, 50_000, lambda pods: lone_pods(15_000, pods)),
    Growth("nodes, 10,000 lone pods", 7500, 15_000, lambda nodes: lone_pods(nodes, 10_000)),
    Growth("gangs of 20, 15,000 nodes", 500, 2500, lambda count: gangs(15_000, count, pods=20)),
    Growth("gangs of 20, each in a rack, 5,000 nodes", 250, 500, lambda count: racks(5000, count, pods=20)),
    Growth("halves of GPUs, 15,000 nodes", 10_000, 50_000, lambda pods: halves(15_000, pods)),
    Growth("pods that fit nowhere, 15,000 nodes", 10_000, 50_000, lambda pods: lone_pods(15_000, pods, gpus=9)),
    Growth("pods of 20 shapes in 50 queues, 15,000 nodes", 10_000, 50_000, lambda pods: mixed(15_000, pods)),
    Growth("nodes reclaimed from, for 100 x 8 GPUs", 1000, 2000, reclaim),
    Growth("pods of an elastic group, 1,000 nodes", 2500, 5000, lambda pods: elastic(1000, pods)),
    Growth("halves reclaimed for, 500 nodes", 200, 400, lambda pods: shared_full(500, *lone_halves(pods))),
)


def measure(made: Snapshot, policy: Policy = DEFAULT_POLICY) -> tuple[float, Plan]:
    """Return the CPU seconds of one plan, and the plan."""
    gc.collect()
    gc.freeze()
    began = time.process_time()
    result = plan(made, policy, now=NOW)
    took_s = time.process_time() - began
    gc.unfreeze()
    return took_s, result


CHOICES = ((8, 8), (4, 8), (2, 8), (3, 8), (16, 16), (4, 16), (2, 16), (5, 16), (6, 16), (8, 16), (8, 64))
"""How many of how many devices."""

CHOICE_BUDGET_S = 100e-6
MASKS = 1000


@dataclass(frozen=True, slots=True)
class ChoiceTimes:
    """CPU seconds of a choice of devices."""

    first_s: float
    """On a machine of a kind never met before, all of which is idle."""
    other_s: float
    """Where other devices are idle than ever before, on a machine of a kind met often; the mean."""
    again_s: float
    """Where the same devices are idle as before; the mean."""


def choice_times(size: int, devices: int) -> ChoiceTimes:
    """Time the choice of so many devices of so many."""
    layout, every, random = machine(devices, unlike=size + 1), (1 << devices) - 1, np.random.default_rng(size)
    counts = random.integers(size, devices + 1, MASKS).tolist()
    masks = {sum(1 << each for each in random.permutation(devices)[:count].tolist()) for count in counts}
    first_s = choosing_s(layout, size, [every])
    choosing_s(layout, size, masks)
    cliques.choose.cache_clear()
    other_s = choosing_s(layout, size, masks) / len(masks)
    return ChoiceTimes(first_s, other_s, again_s=choosing_s(layout, size, masks) / len(masks))


def choosing_s(layout: Layout, size: int, masks: Iterable[int]) -> float:
    """Return the CPU seconds of choosing among each of these idle devices."""
    began = time.process_time()
    for mask in masks:
        assert cliques.choose(layout, size, mask).bit_count() == size
    return time.process_time() - began


def show_choices(only: str) -> None:
    """Time every choice of devices and print a line each."""
    print(f"\n{'choice of devices':30} {'first, ms':>10} {'others idle, us':>16} {'budget':>7} {'as before, us':>14}")
    for size, devices in CHOICES:
        name = f"device choice: {size} of {devices}"
        if only in name:
            times = choice_times(size, devices)
            budget = f"< {CHOICE_BUDGET_S * 1e6:g}" if devices <= cliques.MOST_EXACT else ""
            first_ms, other_us, again_us = times.first_s * 1e3, times.other_s * 1e6, times.again_s * 1e6
            print(f"{name:30} {first_ms:10.1f} {other_us:16.1f} {budget:>7} {again_us:14.2f}")


def show_plans(only: str) -> int:
    """Time every plan and print a line each; return how many were wrong."""
    print(f"{'plan':52} {'CPU s':>7} {'budget':>7} {'starts':>7} {'evicted':>8}")
    wrong = 0
    for bench in BENCHES:
        if only in bench.name:
            took_s, made = measure(bench.snapshot(), bench.policy)
            placed = sum(len(start.placements) for start in made.starts)
            budget = "" if bench.budget_s is None else f"< {bench.budget_s:g}"
            is_wrong = placed != bench.starts or made.unfinished
            wrong += is_wrong
            remark = f"  WRONG PLAN, {bench.starts} starts expected" if is_wrong else ""
            print(f"{bench.name:52} {took_s:7.2f} {budget:>7} {placed:7} {len(made.evictions):8}{remark}")
    return wrong


@dataclass(frozen=True, slots=True)
class Crowd:
    """One plan of a crowded cluster."""

    nodes: int
    whatifs: int
    """What it may try at most."""
    served: int
    """The least number of PodGroups that it serves with victims or moved pods (see docs/measurements.md)."""
    gpus: int
    """The least number of whole GPUs of these PodGroups."""


CROWDS = (
    Crowd(300, 700, 170, 900),
    Crowd(1000, 1500, 240, 2550),
    Crowd(5000, 1000, 390, 6000),
    Crowd(15_000, 1000, 480, 8000),
)


def show_crowds(only: str) -> int:
    """Plan every crowded cluster and print a line each; return how many took too much work or served too few."""
    titles = (
        f"{'CPU s':>7} {'what-ifs':>9} {'most':>7} {'served':>8} {'least':>7} {'GPUs':>7} {'least':>7} {'unserved':>9}"
    )
    print(f"\n{'crowded cluster':24} {titles}")
    wrong = 0
    for each in CROWDS:
        name = f"crowded: {each.nodes:,} nodes"
        if only in name:
            snapshot = crowded(each.nodes)
            took_s, made = measure(snapshot)
            helped = [start for start in made.starts if start.action is not Action.ALLOCATE]
            gpus = sum(_gpus(snapshot, start) for start in helped)
            is_wrong = made.whatifs > each.whatifs or len(helped) < each.served or gpus < each.gpus
            wrong += is_wrong or made.unfinished
            figures = f"{took_s:7.2f} {made.whatifs:9} {f'< {each.whatifs}':>7} {len(helped):8} {f'> {each.served}':>7}"
            figures = f"{figures} {gpus:7} {f'> {each.gpus}':>7} {len(made.refusals):9}"
            print(f"{name:24} {figures}{'  unfinished' if made.unfinished else ''}")
    return wrong


def _gpus(snapshot: Snapshot, start: Start) -> int:
    """Return how many whole GPUs the pods get that start."""
    placed = {each.pod for each in start.placements}
    asked = (pod.request.gpu_milli for pod in snapshot.groups[start.group].pending if pod.uid in placed)
    return sum(asked) // GPU_MILLI


def show_growths(only: str) -> None:
    """Time every growing plan at both sizes and print a line each: 1 is linear, 2 the square."""
    print(f"\n{'growth, by the number of':52} {'few':>7} {'CPU s':>7} {'many':>7} {'CPU s':>7} {'exponent':>8}")
    for each in GROWTHS:
        if only in each.name:
            (few_s, one), (many_s, other) = (measure(each.snapshot(size)) for size in (each.few, each.many))
            remark = "  the search for victims reached its budget" if one.unfinished or other.unfinished else ""
            exponent = math.log(many_s / few_s) / math.log(each.many / each.few)
            print(f"{each.name:52} {each.few:7} {few_s:7.2f} {each.many:7} {many_s:7.2f} {exponent:8.2f}{remark}")


def main() -> int:
    """Time everything and print a line each; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.budgets", description=__doc__)
    parser.add_argument("--only", default="", help="only benchmarks whose name contains this")
    only = parser.parse_args().only
    wrong = show_plans(only) + show_crowds(only)
    show_growths(only)
    show_choices(only)
    if only in "largest objects":
        largest.show()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
