"""Writes operations of a JSON patch (RFC 6902), with keys escaped for JSON pointers."""

from collections.abc import Iterator, Sequence

from app.model.admission import PatchOperation

Changes = Iterator[PatchOperation]


def pointer(*keys: str | int) -> str:
    """Return the JSON pointer along these keys; the empty one is the whole object."""
    return "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in keys)


def added(path: str, value: object) -> PatchOperation:
    """Add a field, or replace its value; in a list, insert the item before the item at this position."""
    return {"op": "add", "path": path, "value": value}


def removed(path: str) -> PatchOperation:
    """Remove an existing field or item."""
    return {"op": "remove", "path": path}


def items_removed(path: str, positions: Sequence[int]) -> Changes:
    """Remove items of a list, the last first: each removal moves the items after it."""
    for position in sorted(positions, reverse=True):
        yield removed(path + pointer(position))
