"""Compares what the scenarios say with what is kept, or keeps it: `python -m tests.oracle --help`."""

import argparse
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import orjson
import structlog

from app.recording.reader import NoRecordingError
from tests.faults.recordings import replayed
from tests.oracle.kept import KEPT, keep, kept
from tests.oracle.running import Heard, all_heard
from tests.oracle.scenarios import names


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    asked = _arguments()
    wanted = asked.names or names()
    if asked.do == "record":
        return _record(wanted, asked.workers, asked.recordings)
    return compare(asked.against) if asked.against else _check(wanted, asked.workers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("do", choices=("check", "record"))
    parser.add_argument("names", nargs="*", help="the scenarios; all of them if none is named")
    parser.add_argument("--recordings", type=Path, help="record: keep the recordings of each scenario in this folder")
    parser.add_argument(
        "--against", type=Path, help="check: replay the recordings that an older version made in a folder"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many processes run them")
    return parser.parse_args()


def _record(wanted: Iterable[str], workers: int, recordings: Path | None) -> int:
    before = kept()
    found = dict(all_heard(wanted, workers, recordings))
    keep({name: one for name, one in (before | found).items() if name in set(names())})
    changed = _tell(before, found)
    print(f"{len(found)} scenarios, {sum(one.commands for one in found.values())} Commands; {changed} changed: {KEPT}")
    return 0


def _check(wanted: Iterable[str], workers: int) -> int:
    before, found = kept(), dict(all_heard(wanted, workers))
    changed = _tell({name: one for name, one in before.items() if name in found}, found)
    lost = sorted(before.keys() - set(names()))
    print(f"{len(found)} scenarios, {sum(one.commands for one in found.values())} Commands; {changed} changed")
    for name in lost:
        print(f"  {name} is kept, and is no scenario")
    if changed:
        print("`check --against DIR` shows what, if the older version has made DIR by `record --recordings DIR`")
    return bool(changed or lost)


def _tell(before: dict[str, Heard], found: dict[str, Heard]) -> int:
    changed = [name for name, one in found.items() if before.get(name) != one]
    for name in changed:
        old, new = before.get(name), found[name]
        was = f"{old.commands} Commands, {old.answers} answers" if old else "nothing"
        print(f"  {name}: {was} before, {new.commands} Commands, {new.answers} answers now")
    return len(changed)


def compare(folder: Path) -> int:
    """Replay each recording of a folder, and print the first difference of each scenario; return 1 for any."""
    differ = 0
    for scenario in sorted(one for one in folder.iterdir() if one.is_dir()):
        try:
            first = next((one.differences[0] for one in replayed(scenario) if one.differences), None)
        except NoRecordingError:
            continue
        if first is not None:
            differ += 1
            print(f"{scenario.name}: {first.at}, line {first.line}")
            print(f"  recorded  {orjson.dumps(first.recorded).decode()}")
            print(f"  replayed  {orjson.dumps(first.replayed).decode()}")
    print(f"{differ} scenarios differ")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
