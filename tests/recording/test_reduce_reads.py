"""What `decode` reads of an object has a rule: a field that it begins to read fails here until the field has one."""

import pytest

from app.model.seam import Resource
from app.recording.pod_fields import ANNOTATIONS, LABELS
from app.recording.reduce import reduced
from tests.recording.readers import FULL, readings
from tests.recording.watched import Watched, paths

SUMMED_UP = {".spec.schedulingGates[].name", ".status.capacity"}
"""Fields of which only one fact is kept."""


@pytest.mark.parametrize("resource", Resource, ids=repr)
def test_every_field_that_is_read_is_kept(resource: Resource) -> None:
    for raw in FULL[resource]:
        read = set[str]()
        readings(resource, Watched(raw, read))

        kept = set(paths(reduced(resource.value, raw)))

        assert {path for path in (read & set(paths(raw))) - kept if ".env" not in path} <= SUMMED_UP


@pytest.mark.parametrize(("part", "kept"), [("labels", LABELS), ("annotations", ANNOTATIONS)])
def test_every_label_and_annotation_of_a_pod_that_is_read_is_kept(part: str, kept: frozenset[str]) -> None:
    read = set[str]()
    for raw in FULL[Resource.PODS]:
        readings(Resource.PODS, Watched(raw, read))

    start = f".metadata.{part}."
    assert {path.removeprefix(start) for path in read if path.startswith(start)} <= kept
