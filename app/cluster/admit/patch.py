"""Writes operations of a JSON patch (RFC 6902), with keys escaped as JSON pointers want it."""

from collections.abc import Iterator, Sequence

from app.model.admission import PatchOperation

Changes = Iterator[PatchOperation]


def pointer(*keys: str | int) -> str:
    """Return the JSON pointer that leads along these keys; the empty one is the whole object."""
    return "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in keys)


def added(path: str, value: object) -> PatchOperation:
    """Add a field, or take the place of what it holds; into a list, before what is there."""
    return {"op": "add", "path": path, "value": value}


def removed(path: str) -> PatchOperation:
    """Remove a field or item that is there."""
    return {"op": "remove", "path": path}


def items_removed(path: str, positions: Sequence[int]) -> Changes:
    """Remove items of a list, the last first: each removal moves those behind it."""
    for position in sorted(positions, reverse=True):
        yield removed(path + pointer(position))
