"""Compares our result with KAI's, and returns the differences."""

from dataclasses import dataclass
from decimal import Decimal
from math import isclose
from typing import Any

TOLERANCE = 1e-6
"""KAI's numbers are doubles, and some carry the error of a few additions."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """A case that is not supported yet, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """A case in which our code raised an exception, which is a failure whatever it expects."""

    why: str


def expectation(case: dict[str, Any]) -> Any:
    """Return the expected result of the case, None when it was removed or is not stated."""
    if "events" in case:
        pops = [event["pop_expect"] for event in case["events"] if "pop_expect" in event]
        # An empty queue pops nothing, which is stated; where nothing at all is stated, it was removed.
        return pops if any(pops) or not pops else None
    return case.get("expected")


def differences(expected: Any, result: Any, at: str = "") -> list[str]:
    """Return a line for every difference."""
    if isinstance(expected, dict) and isinstance(result, dict):
        names = sorted(expected.keys() | result.keys())
        return [line for name in names for line in differences(expected.get(name), result.get(name), f"{at}.{name}")]
    if _equal(expected, result):
        return []
    return [f"{at.lstrip('.') or 'result'}: expected {_said(expected)}, got {_said(result)}"]


def _equal(expected: Any, result: Any) -> bool:
    if _number(expected) and _number(result):
        return isclose(expected, result, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(expected) is type(result) and bool(expected == result)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _said(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)
