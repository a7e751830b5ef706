"""The parts of a raw pod that admission looks at; what is not shaped as the API server shapes it counts as absent."""

from collections.abc import Sequence

from app.cluster.decode.reading import NO_FIELDS, Fields
from app.model.seam import RawObject

CONTAINERS = ("containers", "initContainers")


def spec_of(raw: RawObject) -> Fields:
    """Return the pod's spec, empty when it has none."""
    return fields(raw, "spec")


def annotations_of(raw: RawObject) -> Fields:
    """Return the pod's annotations, empty when it has none."""
    return fields(fields(raw, "metadata"), "annotations")


def fields(parent: Fields, key: str) -> Fields:
    """Return a mapping, empty when there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else NO_FIELDS


def items(parent: Fields, key: str) -> Sequence[Fields]:
    """Return a list of mappings; empty when it is anything else, for then no position in it would be sure."""
    value = parent.get(key)
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else ()
