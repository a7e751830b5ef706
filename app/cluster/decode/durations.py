"""Reads a Kubernetes duration (metav1.Duration, such as 90s or 1h30m) by one strict grammar."""

import re
from fractions import Fraction
from math import ceil

from app.model.quantity import MAX_TEXT, QuantityError, shown

LONGEST_MS = 1000 * 3600 * 24 * 3650
"""Ten years: a longer time is a mistake."""

_PART = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_PART})+", re.ASCII)
_PARTS = re.compile(_PART, re.ASCII)

_MS = {
    "ns": Fraction(1, 1_000_000),
    "us": Fraction(1, 1000),
    "ms": Fraction(1),
    "s": Fraction(1000),
    "m": Fraction(60_000),
    "h": Fraction(3_600_000),
}


def duration_ms(text: object) -> int:
    """Read a duration as milliseconds, rounded up; raise `QuantityError` on a text that is no duration, or negative."""
    if text == "0":
        return 0
    if not (isinstance(text, str) and len(text) <= MAX_TEXT and _DURATION.fullmatch(text)):
        raise QuantityError(f"{shown(text)} is not a duration; write numbers with units, such as 90s or 1h30m")
    total = ceil(sum(Fraction(number) * _MS[unit] for number, unit in _PARTS.findall(text)))
    if total > LONGEST_MS:
        raise QuantityError(f"{shown(text)} is too long; write at most {LONGEST_MS // 3_600_000}h")
    return total
