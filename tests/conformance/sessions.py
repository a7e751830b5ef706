"""Runs a scheduling case: one session or several with the product's planner, and the state of every task."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.control.cycle.policy_settings import policy_of
from app.model.decision import Action, Plan
from app.model.memory import NO_MEMORY, PlanMemory
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.settings import PlacementStrategy, Preset, Settings
from tests.conformance.clusters import Cluster, has_plugin
from tests.conformance.seats import BINDING, PIPELINED, RELEASING, Seat, Seats, initial, next_round
from tests.conformance.vectors import Case

PRESET = Preset.KAI
"""The preset of defaults for the cases; the command line may choose others, to see which cases that changes."""

ACTIONS = {
    "allocate": Action.ALLOCATE,
    "consolidation": Action.CONSOLIDATE,
    "reclaim": Action.RECLAIM,
    "preempt": Action.PREEMPT,
    "stalegangeviction": Action.EVICT_STALE,
}

UNTIL_MATCH, AFTER_MATCH = 2, 5
"""Rounds of KAI's tests without a number."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The calls that KAI would have made in one session; a victim with a new place is both evicted and pipelined."""

    binds: int
    evictions: int
    pipelined: int

    def written(self) -> dict[str, int]:
        """Return the counts as `-o json` prints them."""
        return {"binds": self.binds, "evictions": self.evictions, "pipelined": self.pipelined}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was computed for one case."""

    matches: tuple[Seats, ...]
    """One entry for each point at which the expectation applies."""
    rounds: tuple[Counts, ...]
    """One entry for each session."""

    def written(self) -> dict[str, Any]:
        """Return the outcome as `-o json` prints it."""
        return {
            "matches": [{"tasks": {name: seat.written() for name, seat in seats.items()}} for seats in self.matches],
            "rounds": [each.written() for each in self.rounds],
        }


def run(case: Case) -> Outcome:
    """Run all sessions of a case, without reading its expected result."""
    cluster, seats = Cluster.of(case), initial(case)
    if case["mode"] == "single":
        after, counts, _ = session(cluster, seats)
        return Outcome((after,), (counts,))
    return _rounds(cluster, seats)


def _rounds(cluster: Cluster, seats: Seats) -> Outcome:
    rounds = cluster.case.get("rounds") or {}
    settled, after_match = rounds.get("until_match", UNTIL_MATCH), rounds.get("after_match", AFTER_MATCH)
    matches: list[Seats] = []
    counts: list[Counts] = []
    memory = NO_MEMORY
    for number in range(settled + after_match):
        if number == settled:
            matches.append(seats)
        after, called, memory = session(cluster, seats, version=number + 1, memory=memory)
        counts.append(called)
        if number >= settled:
            matches.append(after)
        seats = next_round(cluster.case, after)
    # Without rounds after the match, the rebuilt state is still one.
    return Outcome(tuple(matches or [seats]), tuple(counts))


def session(
    cluster: Cluster, seats: Seats, *, version: int = 1, memory: PlanMemory = NO_MEMORY
) -> tuple[Seats, Counts, PlanMemory]:
    """Plan once; return the places of the tasks afterwards, the counts, and what the next session knows."""
    decided = plan(cluster.snapshot(seats, version=version), policy(cluster.case), now=0.0, memory=memory)
    return {**seats, **dict(_moved(decided, seats))}, counts(decided), decided.memory


def policy(case: Case) -> Policy:
    """Read what the case configures."""
    config = case["config"]
    return replace(
        policy_of(Settings(preset=PRESET)),
        placement=_placement(case),
        sharing=_sharing(case),
        actions=tuple(ACTIONS[name] for name in config["actions"]),
        stale_grace_s=float(config["staleness_grace_period_s"]),
    )


def _placement(case: Case) -> PlacementStrategy:
    plugins = case["config"]["plugins"] or ()
    chosen = next((each["arguments"]["gpu"] for each in plugins if each["name"] == "nodeplacement"), None)
    return PlacementStrategy(chosen or PlacementStrategy.BINPACK)


def _sharing(case: Case) -> PlacementStrategy:
    chosen = case["config"]["plugins"] is not None and has_plugin(case, "gpuspread")
    return PlacementStrategy.SPREAD if chosen else PlacementStrategy.BINPACK


def counts(decided: Plan) -> Counts:
    """Count the calls that KAI would have made to apply the plan."""
    waiting = sum(len(start.placements) for start in decided.starts if start.awaits_release)
    return Counts(
        binds=sum(len(start.placements) for start in decided.starts if not start.awaits_release),
        evictions=len(decided.evictions),
        pipelined=waiting + sum(each.moves_to is not None for each in decided.evictions),
    )


def _moved(decided: Plan, seats: Seats) -> Iterator[tuple[str, Seat]]:
    for start in decided.starts:
        status = PIPELINED if start.awaits_release else BINDING
        for placement in start.placements:
            yield placement.pod, Seat(status, placement.node, placement.devices)
    for eviction in decided.evictions:
        if eviction.moves_to is None:
            yield eviction.pod, Seat(RELEASING, eviction.node, seats[eviction.pod].devices)
        else:
            yield eviction.pod, Seat(PIPELINED, eviction.moves_to, eviction.devices)
