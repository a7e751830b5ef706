"""Counts what Python does, so that growth can be told without a clock: a count is the same on every machine."""

import gc
import sys
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import Any

NOT_HELD = type, ModuleType, FunctionType
"""Leads to all of Python, and belongs to nobody."""

HOLDERS = dict, set, frozenset, list, tuple


def steps(work: Callable[[], object]) -> int:
    """Return how many bytecode instructions `work` takes; what is done in C counts as one."""
    taken = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal taken
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return count

    before = sys.gettrace()
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
