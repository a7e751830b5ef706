"""Runs seeds, repeats one, and shrinks the script of one that fails: `python -m tests.faults --help`."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path

from tests.faults.generate import generate
from tests.faults.recordings import recorded_in
from tests.faults.script import Script, load
from tests.faults.shrinking import shrunk
from tests.faults.world import Outcome, World, run_seed

HOUR_S = 3600.0
PROGRESS = 20
"""After so many seeds a line says how far it is."""


def main() -> int:
    asked = _arguments()
    if asked.script or asked.seed is not None:
        script = load(Path(asked.script).read_text()) if asked.script else generate(asked.seed)
        if asked.record:
            script = recorded_in(Path(asked.record), script)
        return _one(script, shrinks=asked.shrink, logs=asked.log)
    return _many(range(asked.first, asked.first + asked.seeds), asked.workers, goes_on=asked.go_on)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--workers", type=int, default=1, help="how many processes run them")
    parser.add_argument("--go-on", action="store_true", help="run all of them, also after a violation")
    parser.add_argument("--seed", type=int, help="repeat this seed")
    parser.add_argument("--script", help="run the script of this file, as --shrink prints it")
    parser.add_argument("--shrink", action="store_true", help="print the smallest script that fails in the same way")
    parser.add_argument("--log", action="store_true", help="print every write")
    parser.add_argument("--record", help="keep a recording of each life of Leeboard in this folder")
    return parser.parse_args()


def _one(script: Script, *, shrinks: bool, logs: bool) -> int:
    log: list[str] | None = [] if logs else None
    outcome = World(script, log=log).run()
    for line in log or ():
        print(line)
    print(_told(outcome), f"digest {outcome.digest}")
    for violation in outcome.violations:
        print(f"  {violation!r}")
    if outcome.violations and shrinks:
        small = shrunk(script, outcome.violations[0].rule, tell=lambda text: print(text, file=sys.stderr))
        print("\n".join(map(repr, small.operations)))
        print(small.dump())
    return bool(outcome.violations)


def _many(seeds: Iterable[int], workers: int, *, goes_on: bool) -> int:
    began, failed, hours = time.monotonic(), 0, 0.0
    faults: Counter[str] = Counter()
    number = 0
    for outcome in _outcomes(seeds, workers):
        number += 1
        hours += outcome.virtual_s / HOUR_S
        faults.update(outcome.faults)
        if number % PROGRESS == 0:
            print(f"{number} seeds, {hours:.1f} simulated hours", file=sys.stderr)
        if outcome.violations:
            failed += 1
            print(_told(outcome))
            for violation in outcome.violations:
                print(f"  {str(violation)[:600]!r}", flush=True)
            print(f"  repeat and shrink it: make simulate SEED={outcome.seed}", flush=True)
            if not goes_on:
                break
    print(f"{number} seeds, {hours:.1f} simulated hours, {time.monotonic() - began:.0f} s; {failed} failed")
    print(", ".join(f"{kind} {count}" for kind, count in faults.most_common()))
    return bool(failed)


def _outcomes(seeds: Iterable[int], workers: int) -> Iterator[Outcome]:
    if workers == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(run_seed, seeds)


def _told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.virtual_s:.0f} virtual s, {outcome.writes} writes, {outcome.rounds} rounds"


if __name__ == "__main__":
    sys.exit(main())
