"""Finds parts of a raw object of which nothing is told: what is not shaped as the API server shapes it is not there."""

from collections.abc import Sequence

from app.cluster.decode.reading import NO_FIELDS, Fields

CONTAINERS = ("containers", "initContainers")


def fields(parent: Fields, key: str) -> Fields:
    """Return a mapping, empty when there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else NO_FIELDS


def items(parent: Fields, key: str) -> Sequence[Fields]:
    """Return a list of mappings; empty when it is anything else, for then no position in it would be sure."""
    value = parent.get(key)
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else ()
