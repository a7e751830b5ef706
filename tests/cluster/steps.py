"""Counts what Python does, so that growth can be told without a clock: a count is the same on every machine."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import Any

NOT_HELD = type, ModuleType, FunctionType
"""Leads to all of Python, and belongs to nobody."""

HOLDERS = dict, set, frozenset, list, tuple


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep what others have left over from being collected, and finalized, on the account of what is done inside.

    A collection also calls back into Python once Hypothesis has been used, and comes at any time.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def steps(work: Callable[[], object]) -> int:
    """Return how many bytecode instructions `work` takes; what is done in C counts as one."""
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
    """Return how many entries all containers have together that an object holds, however deep."""
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
