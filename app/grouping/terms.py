"""What is the same for every kind: the name, the owner and the terms of a PodGroup."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json import dumps

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.defaults import PREEMPTIBILITIES
from app.grouping.parts import LONGEST_NAME, constraint
from app.grouping.reading import OwnerReading
from app.model.owner import Grouping, Owner, OwnerRef
from app.model.seam import RawObject

PLAIN_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9./-]*|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))
"""Words that YAML does not read as text."""


def group_name(of: str, uid: str, suffix: str = "") -> str:
    """Return the name of a PodGroup in KAI's form. A long owner name is truncated."""
    room = LONGEST_NAME - len(f"pg--{uid}{suffix}")
    return f"pg-{of if len(of) <= room else of[:room].rstrip('.-')}-{uid}{suffix}"


def grouping(case: Case, shape: GroupShape, *, fallback: str) -> Grouping:
    """Return the PodGroup of a pod, with the shape from its owner's row.

    `fallback` is the priority class when neither the owners nor the administrators name one.
    """
    owner = shape.owner or case.owner
    reading = OwnerReading(owner)
    classes = (*shape.priority_classes, *_priority_classes(case, owner), case.default.priority_class, fallback)
    return Grouping(
        name=shape.name or group_name(owner.ref.name, owner.ref.uid),
        alone=shape.alone,
        spec=_spec(case, shape, reading, owner),
        priority_classes=tuple(dict.fromkeys(name for name in classes if name)),
        owner=None if shape.alone else owner.ref,
        labels=_labels(case, owner),
        annotations=_annotations(case, owner),
        subgroup=shape.subgroup,
        created_at=case.pod.created_at if shape.alone else owner.created_at,
        asked_for=shape.asked_for,
        problem=shape.problem or reading.problem,
    )


def _spec(case: Case, shape: GroupShape, reading: OwnerReading, owner: Owner) -> RawObject:
    spec: RawObject = {"minMember": reading.members(shape.min_member), "queue": _queue(case, owner)}
    if preemptibility := _preemptibility(case, owner):
        spec["preemptibility"] = preemptibility
    topology = _topology(reading, owner) if shape.topology is None else shape.topology
    if topology:
        spec["topologyConstraint"] = topology
    if shape.parts:
        spec["subGroups"] = list(shape.parts)
    return spec


def _queue(case: Case, owner: Owner) -> str:
    if named := _first(owner.labels, marks.QUEUES):
        return named
    project = owner.labels.get(marks.PROJECT, "") if case.defaults.owners_project else ""
    if not project or _first(case.origin.labels, marks.QUEUES):
        return case.pod.queue
    node_pool = case.label(marks.NODE_POOL)
    return f"{project}-{node_pool}" if node_pool else project


def _first(texts: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((texts[key] for key in keys if texts.get(key)), "")


def _priority_classes(case: Case, owner: Owner) -> tuple[str, ...]:
    return (owner.labels.get(marks.PRIORITY_CLASS, ""), *case.pod.priority_classes)


def _preemptibility(case: Case, owner: Owner) -> str:
    """Return the owner's preemptibility, else the pod's, else the default. Unknown values are ignored (KAI)."""
    named = owner.labels.get(marks.PREEMPTIBILITY)
    if named in PREEMPTIBILITIES:
        return named
    explicit = case.pod.explicit_preemptible
    if explicit is None:
        return case.default.preemptibility
    return PREEMPTIBILITIES[0] if explicit else PREEMPTIBILITIES[1]


def _topology(reading: OwnerReading, owner: Owner) -> RawObject | None:
    written = owner.annotations
    return constraint(
        reading,
        topology=written.get(marks.TOPOLOGY, ""),
        required=written.get(marks.REQUIRED_LEVEL, ""),
        preferred=written.get(marks.PREFERRED_LEVEL, ""),
    )


def _labels(case: Case, owner: Owner) -> Mapping[str, str]:
    user = case.label(marks.USER)
    return owner.labels if not user or marks.USER in owner.labels else {**owner.labels, marks.USER: user}


def _annotations(case: Case, owner: Owner) -> Mapping[str, str]:
    """Return the annotations that a PodGroup uses. All annotations together may be as large as the owner itself."""
    kept = {key: text for key, text in owner.annotations.items() if key.startswith(marks.KAI_PREFIX)}
    user = owner.annotations.get(marks.USER) or case.origin.annotations.get(marks.USER)
    if user:
        kept[marks.USER] = user
    grace = case.origin.annotations.get(marks.STALENESS_GRACE)
    if grace is not None:
        kept.setdefault(marks.STALENESS_GRACE, grace)
    kept[marks.TOP_OWNER] = top_owner(owner.ref)
    return kept


@lru_cache(maxsize=1024)
def top_owner(ref: OwnerRef) -> str:
    """Return the owner of a PodGroup as YAML, in the form that KAI writes for its tools."""
    texts = {
        "name": ref.name,
        "uid": ref.uid,
        "group": ref.kind.group,
        "version": ref.kind.version,
        "kind": ref.kind.name,
    }
    return "".join(f"{key}: {_scalar(text)}\n" for key, text in texts.items())


def _scalar(text: str) -> str:
    is_plain = PLAIN_SCALAR.fullmatch(text) and text.lower() not in YAML_WORDS
    return text if is_plain else dumps(text)
