"""Limits how many values a JSON body holds, because parsing blocks the event loop."""

from app.web.asgi import MIB

LARGE_BYTES = MIB // 2
MOST_VALUES = 100_000
"""The limit for a body larger than `LARGE_BYTES`. Parsing one value takes up to half a microsecond."""


def too_many_values(body: bytes) -> str:
    """Return a text with the number of values when a body has too many; empty when it may be parsed."""
    if len(body) <= LARGE_BYTES:
        return ""
    number = sum(map(body.count, (b",", b"[", b"{")))
    return f"about {number} values, more than the {MOST_VALUES} that are read" if number > MOST_VALUES else ""
