"""Builds the sub-groups of a PodGroup, and their topology constraints."""

from collections.abc import Sequence

from app.grouping.reading import OwnerReading
from app.model.quantity import shown
from app.model.seam import RawObject

MAX_PARTS = 256
LONGEST_NAME = 253
"""The longest name of a Kubernetes object. A longer reference names nothing."""


def part(name: str, min_member: int, *, parent: str = "", topology: RawObject | None = None) -> RawObject:
    """Return one sub-group in the form of a PodGroup's `spec.subGroups`."""
    raw: RawObject = {"name": name, "minMember": min_member}
    if parent:
        raw["parent"] = parent
    if topology:
        raw["topologyConstraint"] = topology
    return raw


def are_too_many(reading: OwnerReading, count: int) -> bool:
    """Return whether there are too many sub-groups. It is checked first, because each pod builds all of them again."""
    if count > MAX_PARTS:
        reading.doubt(f"it has {count} sub-groups; divide it into at most {MAX_PARTS}, each of more pods")
    return count > MAX_PARTS


def divided(reading: OwnerReading, parts: Sequence[RawObject]) -> tuple[RawObject, ...]:
    """Return the sub-groups; empty when there are too many, or when a name is invalid or not unique."""
    if are_too_many(reading, len(parts)):
        return ()
    names = [one["name"] for one in parts]
    wrong = next((name for name in names if not name or len(name) > LONGEST_NAME), None)
    if wrong is None and len(set(names)) == len(names):
        return tuple(parts)
    wrong = wrong if wrong is not None else next(name for name in names if names.count(name) > 1)
    reading.doubt(f"{names.count(wrong)} of its sub-groups are called {shown(wrong)}; give each a name of its own")
    return ()


def constraint(reading: OwnerReading, *, topology: str, required: str, preferred: str) -> RawObject | None:
    """Return the topology constraint of pods; None when no level is named."""
    if not (required or preferred):
        return None
    if not topology or len(topology) > LONGEST_NAME:
        level = shown(required or preferred)
        reading.doubt(
            f"it names topology level {level} but no topology; write one into annotation kai.scheduler/topology"
        )
        return None
    raw = {"topology": topology, "requiredTopologyLevel": required, "preferredTopologyLevel": preferred}
    return {key: value for key, value in raw.items() if value}
