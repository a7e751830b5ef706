"""Follows a pod's owners to the row of the table that groups the pod."""

from dataclasses import replace

from app.grouping import marks
from app.grouping.case import Case, Chain, GroupShape
from app.grouping.defaults import NO_DEFAULTS, GroupingDefaults
from app.grouping.pods import as_owner, below, is_spark
from app.grouping.table import NAMED, UNLISTED, row_of
from app.grouping.terms import grouping
from app.model.owner import Grouping, Kind, Origin, Owner, OwnerRef
from app.model.pod import Pod
from app.model.seam import Depth

NOWHERE = Origin()


def group(pod: Pod, chain: Chain, defaults: GroupingDefaults = NO_DEFAULTS) -> Grouping | None:
    """Return the PodGroup of a pod; None when the pod is its own group without any terms of an owner.

    `pod.origin` is not None. `Grouping.problem` has no full stop; `Grouping.suspended` has one.
    """
    origin = pod.origin or NOWHERE
    if _is_skipped(origin, chain):
        return None
    owners = _deciding(pod, origin, chain.owners)
    if not owners:
        return None
    case = Case(pod=pod, origin=origin, owners=owners, chain=chain, defaults=defaults)
    row = row_of(case.owner.ref.kind)
    shape = row.shape(case) if row.shape is not None else GroupShape()
    found = grouping(case, shape, fallback=row.fallback)
    if problem := _unread(chain.owners):
        found = replace(found, problem=problem)
    suspended = suspension(chain.owners)
    return replace(found, suspended=suspended) if suspended else found


def _unread(owners: tuple[Owner, ...]) -> str:
    """Return the problem of the first owner that could not be read completely; empty when all could."""
    return next((f"{one.ref.kind.name} {one.ref.name}: {one.problem}" for one in owners if one.problem), "")


def first_link(pod: Pod) -> OwnerRef | None:
    """Return the first object to look up for a pod: its owner, or the one that its labels name; None for neither.

    `Owner.owner` leads from there to the next owner.
    """
    origin = pod.origin or NOWHERE
    named = next((origin.labels[label] for label in marks.NAMED_GROUPS if origin.labels.get(label)), "")
    return OwnerRef(NAMED, named) if named else origin.owner


def reads(kind: Kind) -> Depth:
    """Return how much of the objects of a kind `group` reads."""
    return row_of(kind).depth


def fields_read(kind: Kind) -> frozenset[str]:
    """Return the fields of the objects of a kind that `group` reads, besides their metadata."""
    row = row_of(kind)
    return row.parts if row.depth is Depth.WHOLE else frozenset()


def _is_skipped(origin: Origin, chain: Chain) -> bool:
    said = (origin.annotations, *(owner.annotations for owner in chain.owners))
    return any(annotations.get(marks.SKIP) == "true" for annotations in said)


def _deciding(pod: Pod, origin: Origin, owners: tuple[Owner, ...]) -> tuple[Owner, ...]:
    """Return the owners up to the one whose kind decides; empty for a pod that needs no PodGroup."""
    # 1. a PodGroup that the pod names, also when it has an owner  2. the top owner, or the one below it  3. Spark's
    # pods
    if owners and (owners[0].ref.kind.group, owners[0].ref.kind.name) == (NAMED.group, NAMED.name):
        return owners[:1]
    while owners and row_of(owners[-1].ref.kind).shape is None:
        skipped, owners = owners[-1], owners[:-1]
        owners = (*owners[:-1], below(skipped, owners[-1] if owners else as_owner(pod, origin)))
    if owners:
        return owners
    return (as_owner(pod, origin),) if is_spark(origin) else ()


def suspension(owners: tuple[Owner, ...]) -> str:
    """Return the sentence about the topmost suspended owner; empty when none is suspended."""
    for owner in reversed(owners):
        row = row_of(owner.ref.kind)
        if row is UNLISTED or not row.suspend or not _says(owner, row.suspend):
            continue
        where, name = ".".join(row.suspend), f"{owner.ref.kind.name} {owner.ref.name}"
        return f"{name} is suspended ({where} is true); set it to false to go on."
    return ""


def _says(owner: Owner, path: tuple[str, ...]) -> bool:
    value: object = owner.fields
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value is True
