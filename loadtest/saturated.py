"""Plays an hour of a full cluster with the planner alone, in virtual time: how much work is lost, who gets how much.

64 GPUs, three queues of different weights that always have more to run, pods of 1 to 8 GPUs and gangs, run times of one
to thirty minutes.

    python -m loadtest.saturated --seeds 10
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from random import Random

from app.control.cycle.policy_settings import policy_of
from app.model.names import QueueName
from app.model.queue import Entitlement, Queue
from app.model.resources import GPU_MILLI
from app.scheduling.policy import Policy
from app.scheduling.queues.fairshare import fair_shares
from app.settings import Preset, Settings
from loadtest.planned import PlannedCluster
from loadtest.snapshots import GPUS, node
from loadtest.virtual_time import Job

NODES = 8
WARM_UP_S, HOUR_S = 600.0, 3600.0
AGAIN_S = 600.0
"""A pod that is evicted twice within this time is counted."""


@dataclass(slots=True)
class Tally:
    """What is counted."""

    starts: int = 0
    evictions: int = 0
    again: int = 0
    lost_s: float = 0.0
    used_s: dict[str, float] = field(default_factory=dict)
    fair_s: dict[str, float] = field(default_factory=dict)
    time_s: float = 0.0
    waits: dict[int, float] = field(default_factory=dict)

    def whole(self) -> float:
        """Return all GPU-seconds there were."""
        return self.time_s * NODES * GPUS


@dataclass(frozen=True, slots=True)
class Load:
    """What the queues ask for."""

    queues: Sequence[Queue]
    new: Callable[[Random, str, int, float], Job | None]
    """Makes the next job of a queue, given its number and the time."""
    backlog: int = 30


class Play(PlannedCluster):
    """One hour of one cluster, and what is counted of it."""

    def __init__(self, load: Load, seed: int, policy: Policy) -> None:
        """Begin with an empty cluster."""
        super().__init__(map(node, range(NODES)), load.queues, policy)
        self.load = load
        self.random = Random(seed)  # not for secrets
        self.tally = Tally()
        self.counted_from = 0.0

    def run(self, warm_up_s: float = WARM_UP_S, hour_s: float = HOUR_S) -> Tally:
        """Play; what happens before the end of the warming up is not counted."""
        self.counted_from = warm_up_s
        self.run_until(warm_up_s + hour_s)
        return self.tally

    def pass_time(self, to: float) -> None:
        """Go on to a time, and count what was held until then."""
        begin = max(self.now, self.counted_from)
        if to > begin:
            tally, took = self.tally, to - begin
            tally.time_s += took
            for job in self.jobs.values():
                if job.nodes:
                    tally.used_s[job.queue] = tally.used_s.get(job.queue, 0.0) + took * job.size
            for name, share in self.shares.items():
                tally.fair_s[name] = tally.fair_s.get(name, 0.0) + took * share.fair_share.gpu_milli / GPU_MILLI
            for job in self.jobs.values():
                if not job.nodes:
                    tally.waits[job.size] = max(tally.waits.get(job.size, 0.0), to - job.created_at)
        super().pass_time(to)

    def refill(self) -> None:
        """Have every queue ask for as much as it always does."""
        for queue in self.load.queues:
            waiting = sum(1 for job in self.jobs.values() if job.queue == queue.name and not job.nodes)
            while waiting < self.load.backlog:
                self.number += 1
                job = self.load.new(self.random, queue.name, self.number, self.now + self.number * 1e-6)
                if job is None:
                    break
                self.add(job)
                waiting += 1

    def changed(self) -> None:
        """Decide for as many jobs as always wait."""
        self.refill()
        self.shares = fair_shares(self.snapshot())
        super().changed()

    def woken(self) -> None:
        """Replace the jobs that a plan with victims has started."""
        made = self.search()
        if made.starts or made.evictions:
            self.refill()

    def next_change_by_time(self) -> float:
        """Search every ten seconds, also when no search can find more."""
        return self.now

    def begin(self, job: Job) -> None:
        """Count the starts."""
        self.tally.starts += self.now >= self.counted_from
        super().begin(job)

    def evict(self, job: Job) -> None:
        """Count what is lost."""
        if self.now >= self.counted_from and job.started_at is not None:
            tally, ran_s = self.tally, self.now - job.started_at
            tally.evictions += 1
            tally.again += job.evicted_at is not None and self.now - job.evicted_at < AGAIN_S
            tally.lost_s += ran_s * job.size
        super().evict(job)


# What is played -----------------------------------------------------------------------------------------------------

SHAPES = (
    ((1, 1),) * 8 + ((1, 2),) * 5 + ((1, 4),) * 3 + ((1, 8),) * 2 + ((2, 1), (4, 1), (2, 4), (4, 2), (2, 8), (4, 4))
)
"""Pods and GPUs of each."""


def mixed_job(random: Random, queue: str, number: int, at: float) -> Job:
    """Make a job of any shape; run times are spread evenly over the orders of magnitude."""
    largest = {"a": 32, "b": 16, "c": 8}[queue]
    pods, gpus = random.choice([shape for shape in SHAPES if shape[0] * shape[1] <= largest])
    run_s = math.exp(random.uniform(math.log(60), math.log(1800)))
    return Job(f"{queue}{number}", queue, pods, gpus, run_s, at)


def weighted(name: str, weight: int, deserved: int) -> Queue:
    """Build a queue by its weight and what it deserves."""
    entitled = Entitlement(deserved=deserved * GPU_MILLI, over_quota_weight_micro=weight * 1_000_000)
    return Queue(name=QueueName(name), gpu_milli=entitled)


BORROWING = Load([weighted("a", 3, 0), weighted("b", 2, 0), weighted("c", 1, 0)], mixed_job)
DESERVING = Load([weighted("a", 3, 16), weighted("b", 2, 8), weighted("c", 1, 8)], mixed_job)


@dataclass(frozen=True, slots=True)
class Figures:
    """One hour in numbers; parts are of all GPU-seconds, errors of a queue's own fair share."""

    churn: float
    """Evictions a start."""
    lost: float
    idle: float
    error: float
    """The largest of any queue."""
    parts: float
    """The largest error of a queue's part of what all have used: the work that is missing may be idle GPUs alone."""
    again: float
    large_wait_s: float

    @staticmethod
    def of(tally: Tally) -> "Figures":
        """Read a tally."""
        used = sum(tally.used_s.values())
        held = {name: tally.used_s.get(name, 0.0) / fair_s for name, fair_s in tally.fair_s.items()}
        everywhere = used / sum(tally.fair_s.values())
        return Figures(
            churn=tally.evictions / max(1, tally.starts),
            lost=tally.lost_s / tally.whole(),
            idle=1 - used / tally.whole(),
            error=max(abs(each - 1) for each in held.values()),
            parts=max(abs(each / everywhere - 1) for each in held.values()),
            again=tally.again,
            large_wait_s=max((wait_s for size, wait_s in tally.waits.items() if size >= LARGE), default=0.0),
        )

    @staticmethod
    def mean(every: Sequence["Figures"]) -> "Figures":
        """Return the means of several hours."""
        names = [each.name for each in fields(Figures)]
        return Figures(**{name: sum(getattr(one, name) for one in every) / len(every) for name in names})


LARGE = 8
"""GPUs of a PodGroup whose longest wait is shown."""

LOADS = {"without quota": BORROWING, "with quota": DESERVING}
POLICIES = {"kai": policy_of(Settings(preset=Preset.KAI)), "leeboard": policy_of(Settings())}
GOAL = Figures(churn=math.inf, lost=0.02, idle=math.inf, error=math.inf, parts=0.02, again=0, large_wait_s=math.inf)
"""What is wanted of every hour."""

BUDGET = Figures(churn=0.12, lost=0.03, idle=0.074, error=0.155, parts=0.16, again=5, large_wait_s=math.inf)
"""What has been reached, as a mean of ten seeds, and a little: more is an error. Of fewer seeds nothing is judged.

The shares are far from the goal: nothing tells how long pods run, so what is kept for a large gang is idle for long.
"""

SEEDS = 10
HEAD = f"{'':24} {'churn':>6} {'lost':>7} {'idle':>7} {'error':>7} {'parts':>7} {'again':>6} {'waited, s':>10}"


def line(name: str, each: Figures) -> str:
    """Return one line of the table."""
    parts = " ".join(_percent(one) for one in (each.lost, each.idle, each.error, each.parts))
    others = (f"{each.churn:6.2f}", f"{each.again:6.1f}", f"{each.large_wait_s:10.0f}")
    churn, again, waited = (one.replace("inf", "   ") for one in others)
    return f"{name:24} {churn} {parts} {again} {waited}"


def _percent(part: float) -> str:
    return f"{part:7.1%}" if math.isfinite(part) else " " * 7


def is_within(each: Figures) -> bool:
    """Return whether nothing is worse than the budget."""
    names = [one.name for one in fields(Figures)]
    return all(getattr(each, name) <= getattr(BUDGET, name) for name in names)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.saturated", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--preset", choices=list(POLICIES), default="leeboard")
    chosen = parser.parse_args()
    print(f"saturated hour, preset {chosen.preset}\n{HEAD}\n{line('goal', GOAL)}\n{line('budget of the mean', BUDGET)}")
    is_right = True
    for name, load in LOADS.items():
        every = list[Figures]()
        for seed in range(chosen.seeds if chosen.only in name else 0):
            every.append(Figures.of(Play(load, seed, POLICIES[chosen.preset]).run()))
            print(line(f"{name}, seed {seed}", every[-1]), flush=True)
        if every:
            print(line(f"{name}, mean", Figures.mean(every)), flush=True)
        if len(every) >= SEEDS and chosen.preset == Preset.LEEBOARD:
            is_right &= is_within(Figures.mean(every))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
