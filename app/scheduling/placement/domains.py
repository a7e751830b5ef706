"""Tells whether the sub-groups of a PodGroup that each need one domain can find enough domains together.

`gang.refusal` judges each sub-group alone. This module counts the sub-groups that need domains of one level: a domain
that fits 8 pods takes one sub-group of 5 pods, and not 1.6 sub-groups. Only pods of one shape are compared, so a
refusal is certain.
"""

from collections.abc import Sequence

import numpy as np

from app.model.pod import Pod
from app.model.podgroup import PodGroup, TopologyConstraint
from app.model.reason import Reason, Refusal
from app.scheduling.placement.gang import members
from app.scheduling.placement.state import PlacementState, shape_of
from app.scheduling.placement.topology import fitting_counts, sums_by_domain

Level = tuple[str, str]
"""A Topology and its required level."""


def refusal(board: PlacementState, group: PodGroup, pods: Sequence[Pod]) -> Refusal | None:
    """Return why the pods' sub-groups cannot find one domain each. Return None when they may find them.

    The topologies of the group are usable, because `gang.refusal` has checked them.
    """
    found = (_too_few(board, level, alike) for (level, _), alike in _alike(group, pods).items() if len(alike) > 1)
    return next((each for each in found if each is not None), None)


def _alike(group: PodGroup, pods: Sequence[Pod]) -> dict[tuple[Level, object], list[list[Pod]]]:
    """Return the pods of one shape that must be in one domain together, by level and shape.

    A sub-group inside another one of the same level is skipped; the outer one counts. A sub-group that already holds
    pods is skipped too: its domain may have room for the rest.
    """
    taken = set[tuple[Level, str]]()
    holds = {group.pod_set(one.pod) for one in group.placed}
    found = dict[tuple[Level, object], list[list[Pod]]]()
    for branch, constraint in group.root.constrained() if group.root is not None else ():
        level, names = (constraint.topology, constraint.required), {leaf.name for leaf in branch.leaves()}
        if not constraint.required or names & holds or any((level, name) in taken for name in names):
            continue
        taken |= {(level, name) for name in names}
        shapes = dict[object, list[Pod]]()
        for pod in members(group, branch, pods):
            shapes.setdefault(shape_of(pod), []).append(pod)
        for shape, alike in shapes.items():
            found.setdefault((level, shape), []).append(alike)
    return found


def _too_few(board: PlacementState, level: Level, alike: Sequence[Sequence[Pod]]) -> Refusal | None:
    """Return a refusal when not all sub-groups of equal pods find a domain; the largest sub-groups go first."""
    pod, sizes = alike[0][0], sorted(map(len, alike), reverse=True)
    asked = np.array([board.stock.amounts(pod) or board.stock.impossible] * sum(sizes), dtype=np.int64)
    counts = np.where(board.eligible(pod) & board.room_later(pod), fitting_counts(asked, board.stock.future), 0)
    constraint = TopologyConstraint(level[0], required=level[1])
    room = sums_by_domain(counts, constraint, board.snapshot.nodes, board.snapshot.topologies)
    for number, size in enumerate(sizes, start=1):
        most = int((room // size).sum())
        if most < number:
            return Refusal(
                reason=Reason.GANG_DOES_NOT_FIT,
                sentence=(
                    f"Even empty, all domains of level {level[1]} hold at most {most} of {number} sub-groups that "
                    f"each need a domain for {size} pods or more."
                ),
                details={"topology": level[0], "level": level[1], "even_when_empty": most, "needed": number},
            )
    return None
