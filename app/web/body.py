"""Bounds how many values a JSON body holds: reading it holds up the event loop, whatever is made of it afterwards."""

from app.web.asgi import MIB

LARGE_BYTES = MIB // 2
MOST_VALUES = 100_000
"""Of a body that is larger: each takes up to half a microsecond to read."""


def too_many_values(body: bytes) -> str:
    """Return how many values there are in a body with too many of them; empty when it may be read."""
    if len(body) <= LARGE_BYTES:
        return ""
    number = sum(map(body.count, (b",", b"[", b"{")))
    return f"about {number} values, more than the {MOST_VALUES} that are read" if number > MOST_VALUES else ""
