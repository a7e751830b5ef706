"""Reads the origin of a pod, and the objects that own pods: only what grouping needs.

A field of the wrong shape counts as absent: an unreadable owner must not prevent its pods from running. If a row of the
grouping table needs a missing field, the row reports it in its own words.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern

from app.cluster.decode.parts import fields, items
from app.cluster.decode.reading import LONGEST_NAME, MOST_ITEMS, NO_FIELDS, Fields, ObjectReading, identified
from app.cluster.decode.sparing import shared
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
"""Objects with this field state there what pods run: it is most of an owner, and contains nothing about its group."""

DROPPED = frozenset({"managedFields", "conditions"})

ALL_PARTS = frozenset({"spec", "status"})

DEEPEST = 12
"""Levels of an owner that are read: the fields that the table reads are within eight."""


MOST_VALUES = 8192
"""Values of an owner that are read, including lists and mappings: a JobSet of 256 Jobs has half of them."""

TOO_LARGE = "it has more fields, labels or annotations than are read of an owner; make it smaller, or divide it"


READ_LABELS = ("kai.scheduler/", "runai/", "project", "priorityClassName", "user")


class _TooLargeError(Exception):
    """An owner has more values than are read; this error never leaves this module."""


@dataclass(frozen=True, slots=True)
class Keeps:
    """Which labels and annotations of pods are kept for grouping."""

    labels: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    is_on: bool = True


NOTHING_KEPT = Keeps(is_on=False)


def origin(metadata: Fields, keeps: Keeps, *, native_group: str = "") -> Origin | None:
    """Return the origin of a pod; None when the pod has no owner and none of its labels matters.

    `native_group` is the native PodGroup that the pod names.
    """
    if not keeps.is_on:
        return None
    ref = owner_of(metadata)
    labels = _kept(fields(metadata, "labels"), keeps.labels)
    annotations = _kept(fields(metadata, "annotations"), keeps.annotations)
    return _shared(ref, labels, annotations, native_group) if ref or labels or annotations else None


def owner(raw: object, *, kind: Kind, parts: frozenset[str] = ALL_PARTS) -> Owner:
    """Decode an object of this kind that may own pods, with `parts` of it; raises `DecodeError` without a name."""
    whole, metadata = identified(raw)
    read, problem = ObjectReading(), ""
    pruned: dict[str, object] = {}
    try:
        left = iter(range(MOST_VALUES))
        pruned = {key: _pruned(whole[key], DEEPEST, left) for key in sorted(parts) if isinstance(whole.get(key), dict)}
    except _TooLargeError:
        problem = TOO_LARGE
    if max(len(fields(metadata, "labels")), len(fields(metadata, "annotations"))) > MOST_ITEMS:
        problem = TOO_LARGE
    return Owner(
        ref=_reference(kind.api_version, kind.name, metadata["name"], metadata["uid"]),
        namespace=intern(read.name(metadata, "namespace")),
        labels=_texts(metadata, "labels"),
        annotations={key: value for key, value in _texts(metadata, "annotations").items() if _matters(key)},
        owner=owner_of(metadata),
        fields=pruned,
        created_at=read.seconds(metadata, "creationTimestamp"),
        problem=problem,
    )


def _matters(annotation: str) -> bool:
    return annotation == USER or annotation.startswith(KEPT_ANNOTATIONS)


def owner_of(metadata: Fields) -> OwnerRef | None:
    """Return the controller of an object, else the first owner that it names."""
    stated = metadata.get("ownerReferences")
    # Further owners matter only to the garbage collector; grouping does not read them.
    first = stated[:MOST_ITEMS] if isinstance(stated, list) else []
    named = [one for one in items({"of": first}, "of") if _is_reference(one)]
    if not named:
        return None
    one = next((each for each in named if each.get("controller") is True), named[0])
    return _reference(one["apiVersion"], one["kind"], one["name"], one["uid"])


def _is_reference(one: Fields) -> bool:
    # No object has a name, or a kind, that is longer.
    return all(
        isinstance(one.get(key), str) and 0 < len(one[key]) <= LONGEST_NAME
        for key in ("apiVersion", "kind", "name", "uid")
    )


@shared(4096)
def _reference(api_version: str, kind: str, name: str, uid: str) -> OwnerRef:
    """Return one value for equal ones: a thousand pods name the same owner."""
    return OwnerRef(_kind(api_version, kind), name, uid)


@shared(256)
def _kind(api_version: str, kind: str) -> Kind:
    return Kind.of(intern(api_version), intern(kind))


def _kept(stated: Fields, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    found = [(key, value) for key, value in stated.items() if key in names and isinstance(value, str)]
    return tuple(sorted(found)) if found else ()


@shared(4096)
def _shared(
    ref: OwnerRef | None,
    labels: tuple[tuple[str, str], ...],
    annotations: tuple[tuple[str, str], ...],
    native_group: str,
) -> Origin:
    return Origin(ref, dict(labels), dict(annotations), native_group)


def _texts(metadata: Fields, key: str) -> Mapping[str, str]:
    stated = fields(metadata, key)
    if len(stated) > MOST_ITEMS:
        # A pod with too many labels is refused, but a running pod stays in the queue that is named here.
        stated = {name: stated[name] for name in stated if name.startswith(READ_LABELS)}
    return {name: value for name, value in stated.items() if isinstance(value, str)} or NO_FIELDS


def _pruned(value: object, levels: int, left: Iterator[int]) -> object:
    """Return what is kept of a value; raise `_TooLargeError` when it has too many values."""
    if next(left, None) is None:
        raise _TooLargeError
    if levels == 0:
        return None
    match value:
        case dict() if POD_SPEC in value:
            return {}
        case dict():
            return {key: _pruned(inner, levels - 1, left) for key, inner in value.items() if key not in DROPPED}
        case list():
            return [_pruned(inner, levels - 1, left) for inner in value]
        case _:
            return value
