"""Replays traces of the openb format on an empty cluster: how many GPUs each placement policy allocates.

Pods arrive in random order until 130 % of the cluster's GPUs have been requested; no pod leaves. Allocation is the
part of all GPUs that pods then have. The seed decides the order of the pods and of equal nodes, the same for all
policies. `make bench-placement` runs it on a small sample of a public trace.

lookahead: Leeboard, with arrivals that wait for one another and are placed largest first; the planner does not do this,
its order is that of the queues
consolidating: Leeboard, and any pod may move for a pod that finds no room
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from app.model.resources import GPU_MILLI
from loadtest.curves import draw_curves
from loadtest.openb import (
    LONGEST_SHOWN,
    MOST_DIGITS,
    REQUESTED_PERCENT,
    OpenbError,
    OpenbNode,
    OpenbPod,
    Placer,
    Replay,
    arrivals,
    in_fixed_order,
    read_nodes,
    read_pods,
    replay,
)
from loadtest.openb_leeboard import ConsolidatingPlacer, LeeboardPlacer
from loadtest.openb_policies import BestFit, Fgd, RandomFit
from loadtest.plot import MatplotlibMissingError, pyplot

Maker = Callable[[Sequence[OpenbNode], Sequence[OpenbPod], int], Placer]
POLICIES: Mapping[str, Maker] = {
    "random": RandomFit,
    "bestfit": BestFit,
    "fgd": Fgd,
    "leeboard": LeeboardPlacer,
    "lookahead": LeeboardPlacer,
    "consolidating": ConsolidatingPlacer,
}
LOOKAHEAD = 64
"""So many arrivals wait for one another under `lookahead`, and are placed largest first."""
COMPARED_WITH = "fgd"
PREFIX = "openb_pod_list_"
PICTURES = (".svg", ".png", ".pdf")
DRAWN_FROM = 60
"""Below this percentage of requested GPUs nearly every pod finds a place."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay: the policy, the seed, and what came of it."""

    policy: str
    seed: int
    result: Replay


@dataclass(frozen=True, slots=True)
class Traced:
    """All replays of one trace."""

    trace: str
    title: str
    replays: Sequence[Replayed]

    def of(self, policy: str) -> Sequence[Replay]:
        """Return the results of a policy in the order of the seeds."""
        return [one.result for one in self.replays if one.policy == policy]

    @property
    def policies(self) -> Sequence[str]:
        """The replayed policies."""
        return list(dict.fromkeys(one.policy for one in self.replays))


def replays(
    nodes: Sequence[OpenbNode],
    trace: Sequence[OpenbPod],
    seeds: Sequence[int],
    policies: Sequence[str],
    *,
    sample: int | None = None,
) -> Iterator[Replayed]:
    """Replay one trace with each seed by each policy. Leeboard is offered all nodes, or so many at a time."""
    gpu_milli = GPU_MILLI * sum(node.gpus for node in nodes)
    makers: Mapping[str, Maker] = {**POLICIES, "leeboard": partial(LeeboardPlacer, sample=sample)}
    for seed in seeds:
        ordered, arriving = in_fixed_order(nodes, seed), arrivals(trace, gpu_milli, seed)
        for policy in policies:
            pods = largest_first(arriving, LOOKAHEAD) if policy == "lookahead" else arriving
            yield Replayed(policy, seed, replay(makers[policy](ordered, trace, seed), pods, gpu_milli))


def largest_first(arriving: Sequence[OpenbPod], number: int) -> list[OpenbPod]:
    """Return the arrivals with the largest of each `number` of them first."""
    batches = (arriving[begin : begin + number] for begin in range(0, len(arriving), number))
    return [pod for batch in batches for pod in sorted(batch, key=lambda pod: (-pod.total_milli, -pod.cpu_milli))]


def trace_name(path: Path) -> str:
    """Return the name of the trace in a file."""
    return path.stem.removeprefix(PREFIX)


def as_json(trace: str, one: Replayed) -> str:
    """Return one replay as a line of JSON."""
    return json.dumps(
        {
            "trace": trace,
            "policy": one.policy,
            "seed": one.seed,
            "allocation_percent": round(one.result.allocation_percent, 3),
            "decisions_per_second": round(one.result.decisions_per_second),
            "moved_gpus": round(one.result.moved_milli / GPU_MILLI, 3),
        }
    )


def table(traced: Traced) -> Iterator[str]:
    """Return the lines of a trace: mean and standard error of each policy, and of its difference to FGD by seed."""
    yield traced.title
    yield (
        f"  {'policy':<14} {'allocation %':>12} {'std error':>9} {f'minus {COMPARED_WITH}':>12} {'std error':>9} "
        f"{'decisions/s':>11} {'moved GPUs':>10}"
    )
    against = [one.allocation_percent for one in traced.of(COMPARED_WITH)]
    for policy in traced.policies:
        found = traced.of(policy)
        percents = [one.allocation_percent for one in found]
        line = f"  {policy:<14} {fmean(percents):12.2f} {standard_error(percents):>9}"
        if against and policy != COMPARED_WITH:
            less = [one - other for one, other in zip(percents, against, strict=True)]
            line += f" {fmean(less):+12.2f} {standard_error(less):>9}"
        else:
            line += f" {'':>12} {'':>9}"
        moved = fmean(one.moved_milli / GPU_MILLI for one in found)
        yield f"{line} {fmean(one.decisions_per_second for one in found):11,.0f} {moved:10,.1f}"


def standard_error(values: Sequence[float]) -> str:
    """Return the standard error of the mean as text; one value has none."""
    return f"{stdev(values) / sqrt(len(values)):.2f}" if len(values) > 1 else "-"


def mean_curves(every: Sequence[Traced]) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Return the mean over the seeds by trace and policy."""
    return {
        traced.trace: {
            policy: [fmean(here) for here in zip(*(one.curve for one in traced.of(policy)), strict=True)]
            for policy in traced.policies
        }
        for traced in every
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay all traces and print a table for each, or a line of JSON for each replay; return the exit code."""
    options = _options(arguments)
    try:
        if options.plot is not None:
            # Before the work, not after it.
            pyplot()
        nodes = read_nodes(options.nodes)
        traces = [(path, read_pods(path)) for path in options.pods]
        every = [_replay_file(nodes, path, pods, options) for path, pods in traces]
        if options.plot is not None:
            _draw(every, options.plot)
    except (OpenbError, MatplotlibMissingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _draw(every: Sequence[Traced], to: Path) -> None:
    try:
        draw_curves(mean_curves(every), to, start=DRAWN_FROM)
    except OSError as error:
        raise OpenbError(f"{to} cannot be written: {error.strerror}. Name another file for --plot.") from error


def _replay_file(
    nodes: Sequence[OpenbNode], path: Path, pods: Sequence[OpenbPod], options: argparse.Namespace
) -> Traced:
    trace, found = trace_name(path), list[Replayed]()
    seeds, policies = list(dict.fromkeys(options.seeds)), list(dict.fromkeys(options.policies))
    for one in replays(nodes, pods, seeds, policies, sample=options.sample):
        found.append(one)
        if options.output == "json":
            print(as_json(trace, one), flush=True)
    title = (
        f"{trace}: {len(nodes):,} nodes, {sum(node.gpus for node in nodes):,} GPUs, {len(pods):,} pods; "
        f"{REQUESTED_PERCENT} % of the GPUs requested; seeds {' '.join(map(str, seeds))}"
    )
    if options.sample is not None:
        title += f"; {options.sample:,} nodes offered to leeboard at a time"
    traced = Traced(trace, title, found)
    if options.output == "text":
        print("\n".join(table(traced)), end="\n\n", flush=True)
    return traced


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.placement", description=__doc__)
    parser.add_argument("--nodes", type=Path, required=True, metavar="FILE", help="a node list (CSV)")
    parser.add_argument("--pods", type=Path, required=True, nargs="+", metavar="FILE", help="pod lists (CSV)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43], metavar="N", help="one replay each")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), help="by default all")
    parser.add_argument(
        "--sample", type=_sample, metavar="N", help="kube-scheduler offers leeboard N nodes at a time; by default all"
    )
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="a line of JSON a replay")
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="draw allocation over arrivals, such as a.svg")
    return parser.parse_args(arguments)


def _sample(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:LONGEST_SHOWN]!r} is no number of nodes; give a whole number from 1")
    return int(text)


def _picture(text: str) -> Path:
    if not text.endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r} is no picture; name a file that ends in {', '.join(PICTURES)}")
    return Path(text)


if __name__ == "__main__":
    sys.exit(main())
