"""Reads where a pod comes from, and the objects that own pods: what grouping looks at, and no more.

What is not shaped as the API server shapes it is not there: an owner that cannot be read must not keep its pods from
running, and what a row of the grouping table needs it asks for in words of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

from app.cluster.decode.parts import fields, items
from app.cluster.decode.reading import NO_FIELDS, Fields, Reading, identified
from app.model.owner import Kind, Origin, Owner, OwnerRef

KEPT_ANNOTATIONS = (
    "kai.scheduler/",
    "leeboard.dev/",
    "grove.io/",
    "autoscaling.knative.dev/",
    "leaderworkerset.sigs.k8s.io/",
    "alpha.jobset.sigs.k8s.io/",
)
USER = "user"

POD_SPEC = "containers"
"""Whatever has this field says what pods run: most of an owner, and nothing about its group."""

DROPPED = frozenset({"managedFields", "conditions"})

ALL_PARTS = frozenset({"spec", "status"})

DEEPEST = 12
"""Levels of an owner that are looked at: what a row reads lies within eight."""


@dataclass(frozen=True, slots=True)
class Keeps:
    """Which labels and annotations of pods are kept for grouping."""

    labels: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    is_on: bool = True


NOTHING_KEPT = Keeps(is_on=False)


def origin(metadata: Fields, keeps: Keeps) -> Origin | None:
    """Return where a pod comes from; None when nobody owns it and no label of it matters."""
    if not keeps.is_on:
        return None
    ref = owner_of(metadata)
    labels = _kept(fields(metadata, "labels"), keeps.labels)
    annotations = _kept(fields(metadata, "annotations"), keeps.annotations)
    return _shared(ref, labels, annotations) if ref or labels or annotations else None


def owner(raw: object, *, kind: Kind, parts: frozenset[str] = ALL_PARTS) -> Owner:
    """Decode an object of this kind that owns pods, or may, with `parts` of it; raises `DecodeError` without a name."""
    whole, metadata = identified(raw)
    labels, annotations = _texts(metadata, "labels"), _texts(metadata, "annotations")
    return Owner(
        ref=_reference(kind.api_version, kind.name, metadata["name"], metadata["uid"]),
        namespace=intern(str(metadata.get("namespace") or "")),
        labels=labels,
        annotations={key: value for key, value in annotations.items() if _matters(key)},
        owner=owner_of(metadata),
        fields={key: _pruned(whole[key], DEEPEST) for key in sorted(parts) if isinstance(whole.get(key), dict)},
        created_at=Reading().seconds(metadata, "creationTimestamp"),
    )


def _matters(annotation: str) -> bool:
    return annotation == USER or annotation.startswith(KEPT_ANNOTATIONS)


def owner_of(metadata: Fields) -> OwnerRef | None:
    """Return the controller of an object, else the first owner that it names."""
    named = [one for one in items(metadata, "ownerReferences") if _is_reference(one)]
    if not named:
        return None
    one = next((each for each in named if each.get("controller") is True), named[0])
    return _reference(one["apiVersion"], one["kind"], one["name"], one["uid"])


def _is_reference(one: Fields) -> bool:
    return all(isinstance(one.get(key), str) and one[key] for key in ("apiVersion", "kind", "name", "uid"))


@lru_cache(maxsize=4096)
def _reference(api_version: str, kind: str, name: str, uid: str) -> OwnerRef:
    """Return one value for equal ones: a thousand pods name the same owner."""
    return OwnerRef(_kind(api_version, kind), name, uid)


@lru_cache(maxsize=256)
def _kind(api_version: str, kind: str) -> Kind:
    return Kind.of(intern(api_version), intern(kind))


def _kept(stated: Fields, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    found = [(key, stated[key]) for key in stated.keys() & names if isinstance(stated[key], str)]
    return tuple(sorted(found))


@lru_cache(maxsize=4096)
def _shared(
    ref: OwnerRef | None, labels: tuple[tuple[str, str], ...], annotations: tuple[tuple[str, str], ...]
) -> Origin:
    return Origin(ref, dict(labels), dict(annotations))


def _texts(metadata: Fields, key: str) -> Mapping[str, str]:
    return {name: value for name, value in fields(metadata, key).items() if isinstance(value, str)} or NO_FIELDS


def _pruned(value: object, levels: int) -> object:
    if levels == 0:
        return None
    match value:
        case dict() if POD_SPEC in value:
            return {}
        case dict():
            return {key: _pruned(inner, levels - 1) for key, inner in value.items() if key not in DROPPED}
        case list():
            return [_pruned(inner, levels - 1) for inner in value]
        case _:
            return value
