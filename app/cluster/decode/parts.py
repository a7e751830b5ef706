"""Finds parts of a raw object without reporting problems: a field of the wrong shape counts as absent."""

from collections.abc import Sequence

from app.cluster.decode.reading import NO_FIELDS, Fields

CONTAINERS = ("containers", "initContainers")


def fields(parent: Fields, key: str) -> Fields:
    """Return a mapping, empty when there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else NO_FIELDS


def items(parent: Fields, key: str) -> Sequence[Fields]:
    """Return a list of mappings; empty for anything else, because positions in it would not be reliable."""
    value = parent.get(key)
    return value if value and isinstance(value, list) and all(isinstance(item, dict) for item in value) else ()
