"""Counts steps of Python, so that growth is measured without a clock: a count is the same on every machine."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import Any

NOT_HELD = type, ModuleType, FunctionType
"""Types that lead to all of Python and belong to no object."""

HOLDERS = dict, set, frozenset, list, tuple


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep garbage of other code from being collected and finalized during the measurement.

    A collection also calls back into Python once Hypothesis has been used, and may happen at any time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def steps(work: Callable[[], object]) -> int:
    """Return how many bytecode instructions `work` takes; work in C counts as one."""
    taken = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal taken
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return count

    before = sys.gettrace()
    with nothing_collected():
        sys.settrace(count)
        try:
            work()
        finally:
            sys.settrace(before)
    return taken


def entries(root: object) -> int:
    """Return the number of entries of all containers that an object holds, at any depth."""
    seen: dict[int, object] = {}
    left, found = [root], 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, NOT_HELD):
            continue
        seen[id(one)] = one
        found += len(one) if isinstance(one, HOLDERS) else 0
        left.extend(gc.get_referents(one))
    return found
