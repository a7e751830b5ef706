"""The variables of a container that shares devices: they show it the annotations which bind writes."""

from collections.abc import Mapping, Sequence

from app.cluster.admit.parts import annotations_of, spec_of
from app.cluster.admit.patch import Changes, added, items_removed, pointer
from app.cluster.decode.environment import path_of, sharing_container, variables
from app.cluster.decode.parts import fields, items
from app.cluster.decode.reading import Fields
from app.model.quantity import shown
from app.model.seam import RawObject


def devices(raw: RawObject) -> Changes:
    """Add the variables that show a container its shared devices; remove its owner's variables of the same names."""
    spec, annotations = spec_of(raw), annotations_of(raw)
    wanted = variables(annotations)
    found = sharing_container(spec, annotations) if wanted else None
    if found is None:
        return
    kind, position = found
    container, path = items(spec, kind)[position], pointer("spec", kind, position, "env")
    there = items(container, "env")
    right, wrong = _sorted_out(there, wanted)
    missing = [from_annotation(name, annotation) for name, annotation in wanted.items() if name not in right]
    if not there:
        yield added(path, missing)
        return
    yield from items_removed(path, wrong)
    # In front: the owner's variables may refer to them as $(NAME), which works only for earlier variables.
    for entry in reversed(missing):
        yield added(path + pointer(0), entry)


def with_devices(raw: RawObject) -> RawObject:
    """Return the pod with the variables that `devices` adds; only those of this container differ."""
    spec, annotations = spec_of(raw), annotations_of(raw)
    wanted = variables(annotations)
    found = sharing_container(spec, annotations) if wanted else None
    if found is None:
        return raw
    kind, position = found
    containers, names = list(items(spec, kind)), {shown(name) for name in wanted}
    others = [entry for entry in items(containers[position], "env") if shown(entry.get("name")) not in names]
    ours = [from_annotation(name, annotation) for name, annotation in wanted.items()]
    containers[position] = {**containers[position], "env": [*ours, *others]}
    return {**raw, "spec": {**spec, kind: containers}}


def from_annotation(name: str, annotation: str) -> dict[str, object]:
    """Return the entry of a container's environment that shows it one annotation of its pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path_of(annotation)}}}


def _sorted_out(there: Sequence[Fields], wanted: Mapping[str, str]) -> tuple[set[str], list[int]]:
    """Return which of Leeboard's variables are present already, and the positions of other entries with these names."""
    right: set[str] = set()
    wrong: list[int] = []
    for position, entry in enumerate(there):
        name = entry.get("name")
        if not isinstance(name, str) or name not in wanted:
            continue
        if name not in right and _without_version(entry) == _without_version(from_annotation(name, wanted[name])):
            right.add(name)
        else:
            wrong.append(position)
    return right, wrong


def _without_version(entry: Fields) -> Fields:
    """Return an entry without the version of its reference, which the API server adds."""
    source = fields(entry, "valueFrom")
    reference = {
        key: value for key, value in fields(source, "fieldRef").items() if (key, value) != ("apiVersion", "v1")
    }
    return {**entry, "valueFrom": {**source, "fieldRef": reference}}
