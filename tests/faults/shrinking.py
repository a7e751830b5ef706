"""Finds a smaller script that breaks the same rule: delta debugging over its operations."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.faults.script import Operation, Script
from tests.faults.world import World


def shrunk(script: Script, rule: str, *, tell: Callable[[str], None] = lambda _: None) -> Script:
    """Return the smallest script found. Each part that can go is removed, from halves down to single operations."""

    def fails(operations: Sequence[Operation]) -> bool:
        outcome = World(script.keep(operations)).run()
        return any(one.rule == rule for one in outcome.violations)

    script = _ended(script, rule)
    left, size = list(script.operations), max(1, len(script.operations) // 2)
    while True:
        before = len(left)
        for begin in range(len(left) - size, -1, -size):
            without = left[:begin] + left[begin + size :]
            if fails(without):
                left = without
        tell(f"{len(left)} operations fail, tried without {size} at a time")
        if size == 1 and len(left) == before:
            return script.keep(left)
        size = max(1, size // 2)


def _ended(script: Script, rule: str) -> Script:
    """Return the script without what comes after its violation, if it fails without."""
    outcome = World(script).run()
    at = min((one.at for one in outcome.violations if one.rule == rule), default=script.end_at)
    if at >= script.quiet_at:
        return script
    return replace(script, operations=tuple(one for one in script.operations if one.at <= at))
