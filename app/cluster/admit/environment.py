"""What a container that shares devices learns of them: variables that show it the annotations which bind writes."""

from collections.abc import Mapping, Sequence

from app.cluster.admit.parts import CONTAINERS, annotations_of, fields, items, spec_of
from app.cluster.admit.patch import Changes, added, items_removed, pointer
from app.cluster.decode.reading import Fields
from app.cluster.decode.sharing import CONTAINER_ANNOTATION, DEVICES_ANNOTATION, asks_for_part
from app.model.marks import DEVICES_ANNOTATION as DEVICES_MARK
from app.model.marks import PORTION_ANNOTATION
from app.model.seam import RawObject

ENVIRONMENT: Mapping[str, str] = {"NVIDIA_VISIBLE_DEVICES": DEVICES_MARK, "GPU_PORTION": PORTION_ANNOTATION}
"""The variables, and the annotation that each shows."""


def devices(raw: RawObject) -> Changes:
    """Have the container that shares devices learn which, and nothing that its owner wrote instead."""
    annotations = annotations_of(raw)
    if not (asks_for_part(annotations) or DEVICES_ANNOTATION in annotations):
        return
    found = sharing_container(raw)
    if found is None:
        return
    kind, position = found
    container, path = items(spec_of(raw), kind)[position], pointer("spec", kind, position, "env")
    there = items(container, "env")
    right, wrong = _sorted_out(there)
    missing = [from_annotation(name, annotation) for name, annotation in ENVIRONMENT.items() if name not in right]
    if not there:
        yield added(path, missing)
        return
    yield from items_removed(path, wrong)
    # In front: what its owner wrote may refer to them as $(NAME), which only looks back.
    for entry in reversed(missing):
        yield added(path + pointer(0), entry)


def sharing_container(raw: RawObject) -> tuple[str, int] | None:
    """Return where the container is that shares devices: the one that an annotation names, else the first."""
    spec, wanted = spec_of(raw), annotations_of(raw).get(CONTAINER_ANNOTATION)
    if not wanted:
        return ("containers", 0) if items(spec, "containers") else None
    for kind in CONTAINERS:
        for position, container in enumerate(items(spec, kind)):
            if container.get("name") == wanted:
                return kind, position
    return None


def from_annotation(name: str, annotation: str) -> dict[str, object]:
    """Return the entry of a container's environment that shows it one annotation of its pod."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _sorted_out(there: Sequence[Fields]) -> tuple[set[str], list[int]]:
    """Return which of our variables are there already, and the positions of others under their names."""
    right: set[str] = set()
    wrong: list[int] = []
    for position, entry in enumerate(there):
        name = entry.get("name")
        if not isinstance(name, str) or name not in ENVIRONMENT:
            continue
        if name not in right and _without_version(entry) == _without_version(from_annotation(name, ENVIRONMENT[name])):
            right.add(name)
        else:
            wrong.append(position)
    return right, wrong


def _without_version(entry: Fields) -> Fields:
    """Return an entry without the version of its reference, which the API server fills in."""
    source = fields(entry, "valueFrom")
    reference = {
        key: value for key, value in fields(source, "fieldRef").items() if (key, value) != ("apiVersion", "v1")
    }
    return {**entry, "valueFrom": {**source, "fieldRef": reference}}
