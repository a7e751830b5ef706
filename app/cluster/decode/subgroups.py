"""Reads the sub-groups of a PodGroup and where they must run: the tree of sub-groups, with their topology."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from app.cluster.decode.reading import Fields, ObjectReading
from app.model.podgroup import PodSet, SubGroup, TopologyConstraint
from app.model.quantity import json_integer, shown

MAX_MEMBERS = 100_000
MAX_SUB_GROUPS = 256
MAX_DEPTH = 16
"""Levels of nested sub-groups: as many as a Topology has levels."""

members = partial(json_integer, minimum=0, maximum=MAX_MEMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One item of spec.subGroups."""

    name: str
    parent: str
    min_member: int
    topology: TopologyConstraint | None


def tree(reading: ObjectReading, spec: Fields, min_member: int) -> SubGroup | None:
    """Return the tree of a PodGroup; None when all its pods are one set that may run anywhere.

    Leaves are pod sets. A sub-group that is named as a parent is an inner node, whose own minimum has no meaning (KAI).
    A pod set may have the minimum 0 (KAI 0.17) as long as others have more. If the sub-groups do not form a tree, this
    is noted, and the group is read as if it were not divided.
    """
    topology = _topology(reading, spec)
    parts = _parts(reading, spec)
    if not parts:
        leaf = PodSet(min_member=min_member)
        return SubGroup(topology=topology, pod_sets=(leaf,)) if topology is not None else None
    if not _is_tree(reading, parts):
        return None
    parents = {part.parent for part in parts}
    if not any(part.min_member for part in parts if part.name not in parents):
        parts = [replace(part, min_member=1) for part in parts]
    below: dict[str, list[_Part]] = {}
    for part in parts:
        below.setdefault(part.parent, []).append(part)
    return _inner("", topology, below)


def _inner(name: str, topology: TopologyConstraint | None, below: Mapping[str, Sequence[_Part]]) -> SubGroup:
    mine = below[name]
    return SubGroup(
        name=name,
        topology=topology,
        groups=tuple(_inner(part.name, part.topology, below) for part in mine if part.name in below),
        pod_sets=tuple(
            PodSet(name=part.name, min_member=part.min_member, topology=part.topology)
            for part in mine
            if part.name not in below
        ),
    )


def _parts(reading: ObjectReading, spec: Fields) -> list[_Part]:
    raws = reading.mappings(spec, "subGroups")
    if len(raws) > MAX_SUB_GROUPS:
        reading.doubt(f"spec.subGroups has {len(raws)} items; write at most {MAX_SUB_GROUPS}")
    return [_part(reading, raw) for raw in raws[:MAX_SUB_GROUPS]]


def _part(reading: ObjectReading, raw: Fields) -> _Part:
    name = reading.name(raw, "name")
    if not name:
        reading.doubt("a sub-group has no name; give every item of spec.subGroups a name")
    what = f"minMember of sub-group {shown(name)}"
    return _Part(
        name=name,
        parent=reading.name(raw, "parent"),
        min_member=reading.number(what, raw.get("minMember"), members, otherwise=1),
        topology=_topology(reading, raw),
    )


def _topology(reading: ObjectReading, parent: Fields) -> TopologyConstraint | None:
    if parent.get("topologyConstraint") is None:
        return None
    fields = reading.mapping(parent, "topologyConstraint")
    topology = reading.name(fields, "topology")
    required, preferred = (reading.text(fields, f"{kind}TopologyLevel") for kind in ("required", "preferred"))
    if not (required or preferred):
        return None
    if not topology:
        reading.doubt("topologyConstraint names a level but no topology; write the name of a Topology beside it")
    return TopologyConstraint(topology, required, preferred)


def _is_tree(reading: ObjectReading, parts: Sequence[_Part]) -> bool:
    """Note what is wrong with the names and parents; return whether they form a tree."""
    parents = {part.name: part.parent for part in parts}
    if "" in parents:
        return False
    if len(parents) < len(parts):
        names = [part.name for part in parts]
        twice = next(name for name in parents if names.count(name) > 1)
        reading.doubt(f"sub-group {shown(twice)} is listed twice; give every item of spec.subGroups a name of its own")
        return False
    for name, parent in parents.items():
        if parent and parent not in parents:
            reading.doubt(
                f"sub-group {shown(name)} has parent {shown(parent)}, which is not listed; add it, or change it"
            )
            return False
    for name in parents:
        if _depth(name, parents) > MAX_DEPTH:
            deep = f"sub-group {shown(name)} is more than {MAX_DEPTH} deep, or its parents form a circle"
            reading.doubt(f"{deep}; change the parent of one of them")
            return False
    return True


def _depth(name: str, parents: Mapping[str, str]) -> int:
    """Return how many sub-groups there are from this one up; one more than allowed stands for any more."""
    depth = 0
    while name and depth <= MAX_DEPTH:
        name, depth = parents[name], depth + 1
    return depth
