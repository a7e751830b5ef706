"""`make bench-cluster`: the same work through kube-scheduler alone, with Leeboard, and through others, side by side."""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from loadtest import sheets
from loadtest.bench import ADMISSION, Bench, Plan
from loadtest.contender import Contender
from loadtest.ours import ours, watched
from loadtest.report import Report
from loadtest.scenarios import QUICK, ImpossibleSizeError, Size, scenarios
from loadtest.watchers import Watchers

INTERRUPTED = 130
WIDTH = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; the report is written after each run, also of one that is interrupted."""
    options = _options(arguments)
    bench = Bench(_plan(options), options.out)
    try:
        bench.run()
    except KeyboardInterrupt:
        bench.finish("Interrupted: this is what was done until then.")
        return INTERRUPTED
    except BaseException as failed:
        bench.finish(f"Broken off by {type(failed).__name__}: this is what was done until then.")
        raise
    _print(bench.finish(""))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=__doc__)
    names = [*(one.name for one in scenarios(Size())), ADMISSION]
    add = parser.add_argument
    add("--nodes", type=_count, help=f"nodes of 8 GPUs of the first scenario; others follow (default {Size().nodes})")
    add("--pods", type=_count, help=f"single-GPU pods of the first scenario; others follow (default {Size().pods})")
    add("--repeats", type=_count, help="runs of each, interleaved (default 3, with --quick 1)")
    add("--quick", action="store_true", help=f"small: {QUICK.nodes} nodes, {QUICK.pods} pods, one run of each")
    add("--only", action="append", choices=names, default=[], help="this scenario; may be given again")
    add("--contender", action="append", default=[], metavar="NAME", help="schedulers whose name has this in it")
    add(
        "--viewers",
        type=_count,
        default=0,
        help="only Leeboard, with and without so many viewers of its page, and a probe",
    )
    add("--readers", type=_count, default=0, help="the same with so many readers of its API besides")
    add("--peers", choices=("all", "none"), default="all", help="whether others than ours are built and run")
    add("--limit", type=_seconds, default=300.0, metavar="SECONDS", help="of each run (default 300)")
    add("--out", type=Path, default=Path("build/bench-cluster"), metavar="FOLDER", help="of the report")
    return _checked(parser, parser.parse_args(arguments))


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    # Of nan neither this nor any comparison with a clock is true.
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds above 0")
    return seconds


def _checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    usual = QUICK if options.quick else Size()
    options.repeats = options.repeats or (1 if options.quick else 3)
    try:
        options.size = Size(nodes=options.nodes or usual.nodes, pods=options.pods or usual.pods)
    except ImpossibleSizeError as impossible:
        parser.error(str(impossible))
    there = _contenders(options)
    options.contenders = [one for one in there if _is_meant(one, options.contender)]
    if not options.contenders:
        known = ", ".join(one.name for one in there)
        parser.error(f"No scheduler has {' or '.join(options.contender)} in its name; there are: {known}.")
    return options


def _plan(options: argparse.Namespace) -> Plan:
    only = options.only or [*(one.name for one in scenarios(options.size)), ADMISSION]
    return Plan(
        size=options.size,
        scenarios=[one for one in scenarios(options.size) if one.name in only],
        contenders=options.contenders,
        repeats=options.repeats,
        limit_s=options.limit,
        admission=ADMISSION in only,
    )


def _contenders(options: argparse.Namespace) -> Sequence[Contender]:
    if options.viewers or options.readers:
        return watched(Watchers(viewers=options.viewers, readers=options.readers))
    if options.peers == "none":
        return ours()
    # A run without the other schedulers does not need the packages that build them.
    from loadtest.peers import peers as others  # noqa: PLC0415

    return (*ours(), *others())


def _is_meant(contender: Contender, names: Sequence[str]) -> bool:
    return not names or any(name.lower() in contender.name.lower() for name in names)


def _print(report: Report) -> None:
    sheets.to_terminal(report, Console(width=WIDTH))


if __name__ == "__main__":
    sys.exit(main())
