"""Tells which sets of nodes keep pods as close together as their TopologyConstraint requires, the best set first.

This module gives an upper bound, so it never leaves out a set that would work. Placing the pods tells whether they
really fit. The planner walks over the tree of sub-groups.

1. levels: the domains of each level of the Topology, from node labels; remembered in the table
2. judge: how many of the pods each domain may take, and how tight it is
3. choose: the domains from the preferred level up to the required one that may take all the pods, the tightest first
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.model.names import NodeName
from app.model.podgroup import TopologyConstraint
from app.model.reason import Reason, Refusal
from app.model.resources import Amounts
from app.model.snapshot import Mask, NodeTable
from app.model.spelling import hint_among
from app.model.topology import Topology
from app.scheduling.placement.labels import labels_of

STEPS = 10
"""The most steps by which a node is preferred for its domain (KAI: each step is worth 10,000 points)."""

MOST_REMEMBERED = 64
"""The most Topologies whose levels are remembered. Each takes some MB in a cluster of 15,000 nodes."""

Numbers = NDArray[np.int64]
"""Counts of pods, or the numbers of nodes or domains."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subtree:
    """The pods of one PodSet or SubGroup that start together, and the resources for these pods."""

    constraint: TopologyConstraint
    asked: Amounts
    """Shape [pod, resource], the resources in the order of `free`."""
    counts: Numbers
    """Shape [node]: an upper bound of how many of the pods fit there (`fitting_counts`); 0 on nodes that they may not
    use.
    """
    free: Amounts
    """Shape [resource, node]: what is free after all terminating pods are gone; may be negative."""
    within: Mask
    """The nodes that the parent leaves to the subtree."""
    occupied: Mask
    """The nodes of its pods that already hold places; all False when there are none."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeSets:
    """The sets of nodes in the order of the trials, at least one. A mask is made only when its set is tried."""

    steps: Numbers | None
    """Shape [node], 0..STEPS: how much a node is preferred inside any of the sets; None without a preferred level.

    The roomiest domain of the preferred level has the most steps, so that pods which do not fit into one such domain
    use few domains. Steps outweigh every score except a nomination. They also hold for descendants without a preferred
    level.
    """
    _chosen: "tuple[tuple[_Level, Numbers], ...]"
    _within: Mask

    @property
    def domains(self) -> Iterator[tuple[str, str]]:
        """Level and name of the domain of each set; both empty for the set of all nodes of the parent."""
        return ((level.key, level.names[domain]) for level, several in self._chosen for domain in several)

    def __iter__(self) -> Iterator[Mask]:
        return (self._within & (level.codes == domain) for level, several in self._chosen for domain in several)

    def __len__(self) -> int:
        return sum(several.size for _, several in self._chosen)

    def __repr__(self) -> str:
        return f"<NodeSets {' '.join(name or '*' for _, name in self.domains)}>"


def fitting_counts(asked: Amounts, free: Amounts) -> Numbers:
    """Return how many of the pods fit into each column at most, shape [node]; exact for equal pods.

    `asked` has shape [pod, resource], `free` [resource, node]. Any k pods request at least as much of a resource as the
    k pods with the smallest requests for it. Resources that a pod does not request are not judged, so an overcommitted
    node takes it.
    """
    counts = np.full(free.shape[1], len(asked), dtype=np.int64)
    # Resources that no node has are `UNLIMITED`. The sum of two of these overflows an int64.
    summable = np.minimum(asked, np.iinfo(np.int64).max // max(len(asked), 1))
    least = np.sort(summable, axis=0).cumsum(axis=0)
    for row in np.flatnonzero(asked.any(axis=0)):
        fitting = np.searchsorted(least[:, row], np.maximum(free[row], 0), side="right")
        np.minimum(counts, fitting, out=counts)
    return counts


def node_sets(subtree: Subtree, nodes: NodeTable, topologies: Mapping[str, Topology]) -> NodeSets | Refusal:
    """Return the candidate sets of nodes in the order of the trials, or why there is none.

    The sets go from the preferred level up to the required level, or up to all nodes without a required level. In each
    level the tightest domain is first (KAI rule 14): the domain of which the pods would take the largest part, by the
    scarcest resource there. Domains inside a tighter domain go first; ties are resolved by name. With a required level
    only the domains that already hold pods of the subtree count. A preferred level wider than the required one has no
    effect.
    """
    constraint = subtree.constraint
    unusable = _unusable(constraint, topologies)
    if unusable is not None:
        return unusable
    topology = _named(constraint, topologies)
    keys, constraint = topology.levels, _by_label(constraint, topology)
    required = keys.index(constraint.required) + 1 if constraint.required else 0
    preferred = keys.index(constraint.preferred) + 1 if constraint.preferred else 0
    levels = _levels(keys, nodes)[: max(required, preferred) + 1]
    within = subtree.within
    if required and subtree.occupied.any():
        within = within & levels[required].around(subtree.occupied)
    judged = _judge(subtree, within, levels)
    chosen = tuple((one.level, one.choose(len(subtree.asked))) for one in reversed(judged[required:]))
    steps = judged[preferred].steps() if preferred else None
    sets = NodeSets(steps, chosen, within)
    return sets if len(sets) else _no_domain(subtree, judged[required])


def same_domains(
    node: NodeName, constraints: Iterable[TopologyConstraint], nodes: NodeTable, topologies: Mapping[str, Topology]
) -> Mask:
    """Return the nodes in the same domain as one node at every required or preferred level, shape [node].

    A pod that uses one of these nodes instead stays as close to its group as was planned. No node qualifies while a
    Topology is unusable, or while the node lacks the label of a required level.
    """
    column = nodes.index.get(node)
    same = np.full(len(nodes.nodes), column is not None)
    for stated in constraints:
        if column is None or _unusable(stated, topologies) is not None:
            return np.zeros_like(same)
        topology = _named(stated, topologies)
        keys, constraint = topology.levels, _by_label(stated, topology)
        levels = _levels(keys, nodes)
        for key in (constraint.required, constraint.preferred):
            if key:
                codes = levels[keys.index(key) + 1].codes
                # Outside every domain no two nodes are close to each other.
                same &= (codes == codes[column]) & (key != constraint.required or codes[column] >= 0)
    return same


def sums_by_domain(
    counts: Numbers, constraint: TopologyConstraint, nodes: NodeTable, topologies: Mapping[str, Topology]
) -> Numbers:
    """Sum over the nodes of each domain of the required level: [node] becomes [domain]."""
    topology = _named(constraint, topologies)
    level = _levels(topology.levels, nodes)[topology.levels.index(topology.label_of(constraint.required)) + 1]
    return level.sums(counts[np.newaxis])[0] if level.names else np.zeros(0, dtype=np.int64)


def knows_levels(keys: tuple[str, ...], nodes: NodeTable) -> bool:
    """Return whether the domains of these levels are already calculated for the nodes."""
    return keys in _known_levels(nodes)


def domains_of(constraint: TopologyConstraint, nodes: NodeTable, topologies: Mapping[str, Topology]) -> int:
    """Return in how many domains pods may be tried at most; 1 where the constraint cannot be used."""
    if _unusable(constraint, topologies) is not None:
        return 1
    topology = _named(constraint, topologies)
    keys, by_label = topology.levels, _by_label(constraint, topology)
    required = keys.index(by_label.required) + 1 if by_label.required else 0
    narrowest = max(required, keys.index(by_label.preferred) + 1 if by_label.preferred else 0)
    levels = _known_levels(nodes).get(keys)
    if levels is None:
        return len(nodes.nodes) * (narrowest - required + 1)
    return sum(len(level.names) for level in levels[required : narrowest + 1])


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The domains of one level, numbered in the order of their label values."""

    key: str
    names: tuple[str, ...]
    """The label values of each domain, of all levels down to this one."""
    codes: Numbers
    """Shape [node]: the number of its domain; -1 where the node lacks the label of this level or of a wider one."""
    parents: Numbers
    """Shape [domain]: the number of the enclosing domain, one level wider."""
    members: Numbers
    """The nodes that are in a domain, domain by domain."""
    starts: Numbers
    """Shape [domain]: where its nodes start in `members`."""

    def sums(self, columns: Amounts) -> Amounts:
        """Sum over the nodes of each domain: [column, node] becomes [column, domain]."""
        return np.add.reduceat(columns.take(self.members, axis=1), self.starts, axis=1)

    def around(self, some: Mask) -> Mask:
        """Return all nodes of the domains that contain some of these nodes, shape [node]."""
        held = np.zeros(len(self.names) + 1, dtype=np.bool_)
        held[self.codes[some]] = True
        held[-1] = False  # the last entry is for nodes outside every domain (code -1)
        return held[self.codes]


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """The results for the domains of one level."""

    level: _Level
    takes: Numbers
    """Shape [domain]: how many of the pods the domain takes at most."""
    ranking: Numbers
    """The numbers of the domains that have nodes in the subtree, the tightest first."""

    def choose(self, pods: int) -> Numbers:
        """Return the domains that may take all the pods, in the order of the trials."""
        return self.ranking[self.takes[self.ranking] >= pods]

    def best(self) -> tuple[str, int]:
        """Return the name of the domain that takes most of the pods, and that number; "" and 0 without a domain."""
        if not self.ranking.size:
            return "", 0
        best = int(self.ranking[np.argmax(self.takes[self.ranking])])
        return self.level.names[best], int(self.takes[best])

    def steps(self) -> Numbers:
        """Return 0..STEPS for each node: the most for the last in the ranking, 0 outside every domain."""
        steps = np.zeros(len(self.level.names) + 1, dtype=np.int64)
        steps[self.ranking] = np.arange(1, self.ranking.size + 1) * STEPS // max(self.ranking.size, 1)
        return steps[self.level.codes]


def _judge(subtree: Subtree, within: Mask, levels: Sequence[_Level]) -> list[_Judged]:
    wanted = np.flatnonzero(subtree.asked.any(axis=0))
    asked = subtree.asked[:, wanted]
    present = within.astype(np.int64)
    columns = np.vstack([present, subtree.counts * present, np.maximum(subtree.free[wanted], 0) * present])
    judged, places = [], np.zeros(1, dtype=np.int64)
    for level in levels:
        sums = level.sums(columns)
        here, counts, room = sums[0], sums[1], sums[2:]
        order = np.lexsort((-_tightness(asked.sum(axis=0, dtype=np.float64), room), places[level.parents]))
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        takes = np.minimum(counts, fitting_counts(asked, room))
        judged.append(_Judged(level, takes, order[here[order] > 0]))
    return judged


def _tightness(asked: NDArray[np.float64], room: Amounts) -> NDArray[np.float64]:
    """Return the part of the scarcest resource that the pods would take, shape [domain]. Only its order matters."""
    parts = np.full(room.shape, np.inf)
    np.divide(asked[:, None], room, out=parts, where=room > 0)
    tightness: NDArray[np.float64] = parts.max(axis=0, initial=0.0)
    return tightness


def _levels(keys: tuple[str, ...], nodes: NodeTable) -> tuple[_Level, ...]:
    """Return the levels from the widest, which is all nodes as one domain, to the narrowest."""
    known = _known_levels(nodes)
    remembered = known.get(keys)
    if remembered is None:
        levels = [_everything(nodes)]
        for key in keys:
            levels.append(_divided(levels[-1], key, nodes))
        if len(known) >= MOST_REMEMBERED:
            known.clear()
        known[keys] = remembered = tuple(levels)
    return remembered


def _known_levels(nodes: NodeTable) -> "dict[tuple[str, ...], tuple[_Level, ...]]":
    """Return the remembered levels of Topologies. The index of labels, which every pod needs, is not in it."""
    known: dict[tuple[str, ...], tuple[_Level, ...]] = nodes.label_memo.setdefault("levels", {})
    return known


def _everything(nodes: NodeTable) -> _Level:
    size = len(nodes.nodes)
    one = np.zeros(min(size, 1), dtype=np.int64)
    return _Level(
        key="",
        names=("",) * one.size,
        codes=np.zeros(size, dtype=np.int64),
        parents=one,
        members=np.arange(size),
        starts=one,
    )


def _divided(wider: _Level, key: str, nodes: NodeTable) -> _Level:
    column = labels_of(nodes).column(key)
    values = sorted(column.values)
    ranks = np.full(len(values) + 1, -1, dtype=np.int64)  # the last entry is for nodes without the label
    ranks[[column.values[value] for value in values]] = np.arange(len(values))
    own = ranks[column.codes]
    inside = np.flatnonzero((own >= 0) & (wider.codes >= 0))
    paths, numbers = np.unique(wider.codes[inside] * len(values) + own[inside], return_inverse=True)
    parents, last = np.divmod(paths, max(len(values), 1))
    codes = np.full(own.size, -1, dtype=np.int64)
    codes[inside] = numbers
    order = np.argsort(numbers, kind="stable")
    return _Level(
        key=key,
        names=tuple(
            f"{wider.names[around]}/{values[rank]}".lstrip("/") for around, rank in zip(parents, last, strict=True)
        ),
        codes=codes,
        parents=parents,
        members=inside[order],
        starts=np.searchsorted(numbers[order], np.arange(paths.size)),
    )


def _by_label(constraint: TopologyConstraint, topology: Topology) -> TopologyConstraint:
    """Return the constraint with node labels in place of aliases of levels."""
    required, preferred = topology.label_of(constraint.required), topology.label_of(constraint.preferred)
    return replace(constraint, required=required, preferred=preferred)


def topology_of(constraint: TopologyConstraint, topologies: Mapping[str, Topology]) -> Topology | None:
    """Return the Topology that a constraint names; a constraint on a label alone has one of this level."""
    return (
        topologies.get(constraint.topology) if constraint.topology else Topology(name="", levels=(constraint.required,))
    )


def _named(constraint: TopologyConstraint, topologies: Mapping[str, Topology]) -> Topology:
    """Return the Topology of a usable constraint."""
    found = topology_of(constraint, topologies)
    if found is None:
        raise KeyError(constraint.topology)
    return found


def _unusable(constraint: TopologyConstraint, topologies: Mapping[str, Topology]) -> Refusal | None:
    topology = topology_of(constraint, topologies)
    if topology is None:
        hint = hint_among(topologies, constraint.topology)
        absent = f"Topology {constraint.topology} does not exist"
        return _invalid(f"{absent}; {hint or 'create it, or name another one.'}", constraint)
    if topology.problem:
        return _invalid(f"Topology {topology.name} cannot be used: {topology.problem}", constraint)
    if not constraint.required and not constraint.preferred:
        return _invalid(
            f"The topology constraint names no level of topology {topology.name}; write a required or a preferred one.",
            constraint,
        )
    for level in (constraint.required, constraint.preferred):
        if level and topology.label_of(level) not in topology.levels:
            known = ", ".join((*topology.levels, *topology.aliases)) or "none"
            return _invalid(
                f"Topology {topology.name} has no level {level}; write one of its levels: {known}.", constraint, level
            )
    return None


def _invalid(sentence: str, constraint: TopologyConstraint, level: str = "") -> Refusal:
    details: dict[str, int | str] = {"topology": constraint.topology}
    if level:
        details["level"] = level
    return Refusal(reason=Reason.POD_GROUP_IS_INVALID, sentence=sentence, details=details)


def _no_domain(subtree: Subtree, widest: _Judged) -> Refusal:
    pods, key, domains = len(subtree.asked), widest.level.key, int(widest.ranking.size)
    best, fitting = widest.best()
    where = " in which it already runs" if subtree.occupied.any() else ""
    is_one = pods == 1  # For a single pod the sentence does not tell how many of it fit.
    what = "1 pod" if is_one else f"{pods} pods together"
    if not key:
        most = f"All nodes that it may use have room for at most {fitting} of {what}."
        sentence = f"No node that it may use has room for {what}." if is_one else most
    elif not domains:
        sentence = f"No node that it may use is in a domain of level {key}{where}."
    elif domains == 1:
        most = "" if is_one else f": it has room for at most {fitting}"
        sentence = f"The only domain of level {key}{where}, {best}, has no room for {what}{most}."
    else:
        most = "" if is_one else f": the best, {best}, has room for at most {fitting}"
        sentence = f"Of {domains} domains of level {key}{where}, none has room for {what}{most}."
    counts = {"domains": domains, "fitting": fitting, "needed": pods}
    return Refusal(
        reason=Reason.GANG_DOES_NOT_FIT,
        sentence=sentence,
        details={"topology": subtree.constraint.topology, "level": key, "best": best, **counts},
    )
