"""No decision depends on the order of a set."""

from pathlib import Path

import pytest

from tests.set_loops import set_loops

ROOT = Path(__file__).parents[1]
ROOMS = ("cluster", "control", "core", "grouping", "model", "scheduling")
CACHE = str(ROOT / ".mypy_cache" / "set_loops")

ALLOWED = {
    "app.control.cycle.preemptions.PendingPreemptions._moves": "a mask of nodes has no order",
    "app.scheduling.placement.exclusions.refused": "a mask of nodes has no order",
    "app.scheduling.placement.state.PlacementState._own_mask": "a mask of nodes has no order",
    "app.scheduling.placement.labels.LabelIndex.unknown": "counts",
}
"""Functions that iterate over a set, and why the order has no consequence."""

SAMPLE = """
from collections.abc import Collection, Container, Iterable
from collections.abc import Set as AbstractSet

def whole(names: set[str], known: dict[str, frozenset[str]], numbers: set[int]) -> object:
    found = sorted(names), len(names), max(names), any(name for name in names), {name for name in names}
    union = names.union(known["a"]) | {*names}
    for number in numbers:
        total = sum(len(name) for name in union) + number
    for key in known.keys():
        found_in(key, names)
    return found, total, "a" in names, names == known.keys()

def loop(names: set[str]) -> None:
    for name in names:
        print(name)

def listed(names: AbstractSet[str]) -> list[str]:
    return [name for name in names]

def joined(names: frozenset[str]) -> str:
    return ", ".join(names) + f"{names}"

def first(names: set[str]) -> tuple[str, str]:
    return next(iter(names)), names.pop()

def best(names: set[str]) -> str:
    return min(names, key=len)

def summed(amounts: dict[str, float], names: set[str]) -> float:
    return sum(amounts[name] for name in names)

def of_keys(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return list(before.keys() - after.keys())

def of_default(known: dict[str, set[str]], key: str) -> Collection[str]:
    return known.get(key, ())

def spread(names: set[str]) -> list[str]:
    return [*names]

def passed_on(names: set[str]) -> None:
    loop_over(names)

def loop_over(names: Iterable[str]) -> None:
    for name in names:
        print(name)

def found_in(name: str, names: Container[str]) -> bool:
    return name in names
"""


@pytest.mark.slow
def test_only_allowed_functions_iterate_over_a_set() -> None:
    loops = set_loops(texts(), cache_dir=CACHE)

    assert [str(loop) for loop in loops if loop.function not in ALLOWED] == [], "iterate over a dict, or sort"
    assert {loop.function for loop in loops} >= ALLOWED.keys(), "an exception is no longer needed"


@pytest.mark.slow
def test_every_way_to_iterate_over_a_set_is_found() -> None:
    loops = set_loops({"sample": SAMPLE}, cache_dir=CACHE)

    assert [(loop.function.removeprefix("sample."), loop.way) for loop in loops] == [
        ("loop", "for"),
        ("listed", "comprehension"),
        ("joined", "join()"),
        ("joined", "text"),
        ("first", "iter()"),
        ("first", "pop()"),
        ("best", "min()"),
        ("summed", "comprehension"),
        ("of_keys", "list()"),
        ("of_default", "returned as an iterable"),
        ("spread", "*"),
        ("passed_on", "loop_over()"),
    ]


def texts() -> dict[str, str]:
    """Return the text of each module of the rooms that decide."""
    paths = sorted(path for room in ROOMS for path in (ROOT / "app" / room).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return {name: path.read_text() for name, path in zip(names, paths, strict=True)}
