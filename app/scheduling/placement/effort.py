"""Estimates the most work that a decision can take, before it is made. Work is counted from the request, never timed.

A decision of little work is made in the event loop. All other decisions are planned in a thread, or the pod stays
gated. One unit of work is one look at one node (about 10 ns). Work that does not depend on the nodes is counted in the
same unit.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from app.model.pod import Constraint, Operator, Pod
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.snapshot import NodeTable
from app.model.topology import Topology
from app.scheduling.placement.emptied import MOST_KINDS
from app.scheduling.placement.gang import IN_VAIN, MOST_TRIALS, members
from app.scheduling.placement.labels import labels_of
from app.scheduling.placement.state import shape_of
from app.scheduling.placement.topology import domains_of, knows_levels, topology_of

MOST_AT_ONCE = 2_000_000
"""The most work of one decision in the event loop (about 20 ms)."""

FEW_GROUPS = 64
"""The most PodGroups of one decision in the event loop, whatever their size."""

FEW_PODS = 500
"""The most pods in these PodGroups."""

FEW_WITH_TERMS = 8
"""The most pods with affinity or anti-affinity among these pods. Each is compared with all pods to which a term may
refer.
"""

POD = 2_000
"""The work to place a pod, or to find that it has no place."""

SHAPE, RANKED = 10_000, 1
"""The work to judge pods of one shape, and to rank the nodes for these pods; for each node."""

COMPARISON, COMPARED = 1_500, 1
"""The work to compare some shapes of one PodGroup with the emptied cluster; for each node."""

REQUIREMENT, TOLERATION = 1_500, 50
"""The work to judge one requirement of a pod, beside the work for each node; the work for one toleration."""

TIMES = 4
"""How often one plan judges the requirements of a pod whose requirements are too large to be remembered."""

COLUMN, LEVEL = 60, 160
"""The work to index a label for the first time; the work for a level of a Topology, for each node."""

TRIAL, TRIED = 1_500, 3
"""The work to try a pod in one domain; for each node."""

NEIGHBOUR, NEIGHBOURING = 6_000, 30
"""The work to count a placed pod with labels to which a term may refer; the work to compare one term with such a pod.
"""


SHARE = 1_000
"""The work to divide the cluster for one queue."""


def is_small(  # noqa: PLR0913 - one argument for each kind of object
    groups: Sequence[PodGroup],
    nodes: NodeTable,
    topologies: Mapping[str, Topology],
    *,
    neighbours: int,
    queues: int,
    keeps: bool,
) -> bool:
    """Return whether the work for these PodGroups is small enough for the event loop.

    `neighbours` is the number of placed pods with labels to which an affinity term may refer. `queues` is the number of
    queues. `keeps` tells that nodes and a part of its queue's share are kept for another PodGroup.
    """
    # A single group needs no order, and fair shares only when a share is kept.
    divides = keeps or len(groups) != 1 or bool(groups[0].placed)
    left = MOST_AT_ONCE - (SHARE * queues if divides else 0)
    if left < 0:
        return False
    if len(groups) == 1 and _is_one_plain_pod(groups[0]):
        return True
    if len(groups) > FEW_GROUPS or sum(len(group.pending) for group in groups) > FEW_PODS:
        return False
    if sum(bool(pod.near) for group in groups for pod in group.pending) > FEW_WITH_TERMS:
        return False
    return estimate(groups, nodes, topologies, neighbours=neighbours) <= left


def estimate(
    groups: Iterable[PodGroup], nodes: NodeTable, topologies: Mapping[str, Topology], *, neighbours: int
) -> int:
    """Return the work to decide for these PodGroups when no answer about them is remembered."""
    groups = list(groups)
    pods = [pod for group in groups for pod in group.pending]
    shapes = {shape_of(pod): pod for pod in pods}
    work = POD * len(pods) + (SHAPE + RANKED * len(nodes.nodes)) * len(shapes)
    work += of_constraints(dict.fromkeys(pod.constraint for pod in shapes.values()), nodes)
    work += of_terms(pods, neighbours)
    asking = [group for group in groups if group.root is not None and any(group.root.constrained())]
    constraints = (one for group in asking if group.root is not None for _, one in group.root.constrained())
    work += of_levels(constraints, nodes, topologies)
    return (
        work
        + sum(_of_kinds(group, nodes) for group in groups)
        + sum(_of_trials(one, nodes, topologies) for one in asking)
    )


def of_judging(group: PodGroup, nodes: NodeTable, topologies: Mapping[str, Topology]) -> int:
    """Return the work to find out whether a PodGroup can run at all."""
    work = POD * max(1, len(group.pending)) + _of_kinds(group, nodes)
    work += of_constraints(dict.fromkeys(pod.constraint for pod in group.pending if pod.constraint.size), nodes)
    constrained = group.root.constrained() if group.root is not None else ()
    return work + of_levels((one for _, one in constrained), nodes, topologies)


def of_one(
    pod: Pod,
    constraints: Iterable[TopologyConstraint],
    nodes: NodeTable,
    topologies: Mapping[str, Topology],
    *,
    neighbours: int,
) -> int:
    """Return the work to find the nodes for one pod, inside domains of these constraints."""
    asked = of_constraints((pod.constraint,), nodes, times=1) + of_terms((pod,), neighbours)
    return asked + of_levels(constraints, nodes, topologies)


def of_constraints(constraints: Collection[Constraint], nodes: NodeTable, *, times: int = TIMES) -> int:
    """Return the work to find the nodes that satisfy each constraint; `TIMES` as much if not remembered."""
    work, unknown = 0, set[tuple[str, bool]]()
    for constraint in constraints:
        # The mask of most pods is remembered, or costs nothing to find.
        if constraint.size and constraint not in nodes.memo:
            once = (REQUIREMENT + len(nodes.nodes)) * constraint.requirements
            once += TOLERATION * len(constraint.tolerations)
            work += once * times if constraint.is_long else once
            if work > MOST_AT_ONCE:
                return work  # Stop here: the estimate itself takes time.
            unknown |= _columns(constraint)
    return work + (COLUMN * len(nodes.nodes) * labels_of(nodes).unknown(unknown) if unknown else 0)


def of_terms(pods: Iterable[Pod], neighbours: int) -> int:
    """Return the work to compare pods with all pods to which an affinity term may refer."""
    compared = [len(pod.near) + 1 for pod in pods if pod.near or pod.labels is not None]
    return neighbours * (NEIGHBOUR + NEIGHBOURING * sum(compared)) if compared else 0


def of_levels(constraints: Iterable[TopologyConstraint], nodes: NodeTable, topologies: Mapping[str, Topology]) -> int:
    """Return the work to divide the nodes into domains, for each Topology whose domains are not known yet."""
    named = (topology_of(one, topologies) for one in constraints)
    keys = {each.levels for each in named if each is not None}
    return sum(LEVEL * len(nodes.nodes) * len(each) for each in keys if not knows_levels(each, nodes))


def _is_one_plain_pod(group: PodGroup) -> bool:
    """Return whether this is one pod without constraints: it is decided at once in a cluster of any size."""
    if len(group.pending) != 1 or group.root is not None:
        return False
    pod = group.pending[0]
    return not (pod.constraint.size or pod.near) and pod.labels is None


def _columns(constraint: Constraint) -> set[tuple[str, bool]]:
    """Return the keys of the labels that are read, each with whether its values are read as numbers."""
    found = {(key, False) for key, _ in constraint.node_selector}
    for requirement in chain.from_iterable(constraint.terms or ()):
        found.add((requirement.key, False))
        if requirement.operator in {Operator.GT, Operator.LT}:
            found.add((requirement.key, True))
    return found


def _of_kinds(group: PodGroup, nodes: NodeTable) -> int:
    """Return the work to compare the shapes of one PodGroup with the emptied cluster, in every combination."""
    if len(group.pending) == 1:
        return 0
    kinds = len(set(map(shape_of, group.pending)))
    sets = 2**kinds if kinds <= MOST_KINDS else kinds + 1
    return sets * (COMPARISON + COMPARED * len(nodes.nodes))


def _of_trials(group: PodGroup, nodes: NodeTable, topologies: Mapping[str, Topology]) -> int:
    """Return the work to try the pods of a group in one domain after another, in both orders."""
    once = 2 * (TRIAL + TRIED * len(nodes.nodes))
    if group.root is None:
        return 0
    tried = _tried(group, group.root, nodes, topologies)
    return once * min(tried, MOST_TRIALS // IN_VAIN * len(group.pending))


def _tried(group: PodGroup, branch: SubGroup | PodSet, nodes: NodeTable, topologies: Mapping[str, Topology]) -> int:
    """Return how often a pod is tried at most. Each domain may take the pods of all parts except the last."""
    domains = 1 if branch.topology is None else domains_of(branch.topology, nodes, topologies)
    if isinstance(branch, PodSet):
        return domains * len(members(group, branch, group.pending))
    parts: tuple[SubGroup | PodSet, ...] = (*branch.groups, *branch.pod_sets)
    return domains * sum(_tried(group, part, nodes, topologies) for part in parts)
