"""The parts of a raw pod that admission reads; a field of the wrong shape counts as absent."""

from app.cluster.decode.parts import fields
from app.cluster.decode.reading import Fields
from app.model.seam import RawObject


def spec_of(raw: RawObject) -> Fields:
    """Return the pod's spec, empty when it has none."""
    return fields(raw, "spec")


def annotations_of(raw: RawObject) -> Fields:
    """Return the pod's annotations, empty when it has none."""
    return fields(fields(raw, "metadata"), "annotations")
