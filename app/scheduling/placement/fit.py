"""Tells which nodes a pod may use at all, and which nodes have room for it. `score` tells which of them is best."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.model.node import Node, Taint
from app.model.pod import NODE_NAME_FIELD, Constraint, Operator, Requirement, Term, Toleration
from app.model.quantity import int64
from app.model.resources import Amounts
from app.model.snapshot import Mask, NodeTable
from app.scheduling.placement.labels import labels_of

MOST_REMEMBERED = 2048
"""The most answers remembered in one table. Tenants choose the requests, and a table is kept until a node changes."""

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable")
"""A cordon, as kube-scheduler's NodeUnschedulable plugin treats it: a taint that some pods tolerate."""


def eligible(constraint: Constraint, nodes: NodeTable) -> Mask:
    """Return the nodes that take new pods and satisfy selector, required affinity and taints, shape [node].

    The table remembers the mask, because pods of one template share their `Constraint`.
    """
    mask: Mask | None = nodes.memo.get(constraint)
    if mask is None:
        mask = nodes.takes_work & _selected(constraint, nodes) & _tolerated(constraint.tolerations, nodes)
        if not constraint.is_long:
            nodes.memo.remember(constraint, mask, most=MOST_REMEMBERED)
    return mask


def takes(node: Node, constraint: Constraint) -> bool:
    """Return the same as `eligible` for one node, without reading the other nodes."""
    if not node.takes_work or any(_text(node, key) != value for key, value in constraint.node_selector):
        return False
    terms, tolerated = constraint.terms, _Tolerated(constraint.tolerations)
    if terms is not None and not any(term and all(_holds(node, one) for one in term) for term in terms):
        return False
    return all(map(tolerated.covers, _taints(node)))


def _holds(node: Node, requirement: Requirement) -> bool:
    text = _text(node, requirement.key)
    match requirement.operator:
        case Operator.IN:
            return text in requirement.values
        case Operator.NOT_IN:
            return text not in requirement.values
        case Operator.EXISTS:
            return text is not None
        case Operator.DOES_NOT_EXIST:
            return text is None
        case Operator.GT | Operator.LT:
            return requirement.key != NODE_NAME_FIELD and _is_beyond(text, requirement)


def _text(node: Node, key: str) -> str | None:
    return node.name if key == NODE_NAME_FIELD else node.labels.get(key)


def _is_beyond(text: str | None, requirement: Requirement) -> bool:
    value = None if text is None else int64(text)
    bound = int64(requirement.values[0]) if len(requirement.values) == 1 else None
    if value is None or bound is None:
        return False
    return value > bound if requirement.operator is Operator.GT else value < bound


def room(amounts: Sequence[int], free: Amounts) -> Mask:
    """Return the nodes with enough free of every requested resource, shape [node].

    Resources that are not requested are not judged: an overcommitted node still takes a pod that needs none of that
    resource.
    """
    mask: Mask | None = None
    for axis, amount in enumerate(amounts):
        if amount > 0:
            enough = free[axis] >= amount
            mask = enough if mask is None else np.logical_and(mask, enough, out=mask)
    return np.ones(free.shape[1], dtype=np.bool_) if mask is None else mask


def suffices(amounts: Sequence[int], free: Sequence[int]) -> bool:
    """Return the same as `room` for one node."""
    # Written as a loop for speed: the victim search and every change of a node call it.
    for asked, there in zip(amounts, free, strict=True):  # noqa: SIM110 # a generator takes three times as long
        if 0 < asked > there:
            return False
    return True


def _selected(constraint: Constraint, nodes: NodeTable) -> Mask:
    mask = np.ones(len(nodes.nodes), dtype=np.bool_)
    for key, value in constraint.node_selector:
        mask &= labels_of(nodes).column(key).among((value,))
    if constraint.terms is not None:
        mask &= _any_term(constraint.terms, nodes)
    return mask


def _any_term(terms: tuple[Term, ...], nodes: NodeTable) -> Mask:
    mask = np.zeros(len(nodes.nodes), dtype=np.bool_)
    for term in terms:
        if term:  # an empty term matches no node (Kubernetes' NodeSelectorTerm)
            mask |= _all_of(term, nodes)
    return mask


def _all_of(term: Term, nodes: NodeTable) -> Mask:
    mask = _matches(term[0], nodes)
    for requirement in term[1:]:
        mask &= _matches(requirement, nodes)
    return mask


def _matches(requirement: Requirement, nodes: NodeTable) -> Mask:
    column = labels_of(nodes).column(requirement.key)
    match requirement.operator:
        case Operator.IN:
            return column.among(requirement.values)
        case Operator.NOT_IN:
            return ~column.among(requirement.values)
        case Operator.EXISTS:
            return column.codes >= 0
        case Operator.DOES_NOT_EXIST:
            return column.codes < 0
        case Operator.GT | Operator.LT:
            return column.where(_beyond(requirement, nodes))


def _beyond(requirement: Requirement, nodes: NodeTable) -> NDArray[np.int64]:
    """Return the numbers of the values that are greater, or less, than the bound."""
    values, numbers = labels_of(nodes).integers(requirement.key)
    bound = int64(requirement.values[0]) if len(requirement.values) == 1 else None
    if bound is None:
        return numbers[:0]
    return numbers[values > bound if requirement.operator is Operator.GT else values < bound]


def label_codes(key: str, nodes: NodeTable) -> NDArray[np.int32]:
    """Return the number of each node's value of a label, shape [node]; -1 where the label is absent."""
    return labels_of(nodes).column(key).codes


def _tolerated(tolerations: tuple[Toleration, ...], nodes: NodeTable) -> Mask:
    sets, codes = _taint_sets(nodes)
    tolerated = _Tolerated(tolerations)
    verdicts = [all(map(tolerated.covers, taints)) for taints in sets]
    return np.array(verdicts, dtype=np.bool_)[codes]


def untolerated(tolerations: tuple[Toleration, ...], nodes: NodeTable) -> dict[Taint, Mask]:
    """Return the taints that exclude nodes, each with the nodes where it is the first such taint, shape [node]."""
    sets, codes = _taint_sets(nodes)
    tolerated = _Tolerated(tolerations)
    first: dict[Taint, list[int]] = {}
    for number, taints in enumerate(sets):
        taint = next((taint for taint in taints if not tolerated.covers(taint)), None)
        if taint is not None:
            first.setdefault(taint, []).append(number)
    return {taint: np.isin(codes, numbers) for taint, numbers in first.items()}


def _taint_sets(nodes: NodeTable) -> tuple[list[tuple[Taint, ...]], NDArray[np.int32]]:
    """Return the distinct sets of taints, which are few, and the number of each node's set."""
    remembered: tuple[list[tuple[Taint, ...]], NDArray[np.int32]] | None = nodes.memo.get("taints")
    if remembered is None:
        numbers: dict[tuple[Taint, ...], int] = {}
        codes = [numbers.setdefault(_taints(node), len(numbers)) for node in nodes.nodes]
        remembered = list(numbers), np.array(codes, dtype=np.int32)
        nodes.memo.remember("taints", remembered)
    return remembered


def _taints(node: Node) -> tuple[Taint, ...]:
    return (*node.taints, UNSCHEDULABLE) if node.unschedulable else node.taints


class _Tolerated:
    """The taints that any number of tolerations cover (`ToleratesTaint` of the Kubernetes API)."""

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        # Kubernetes may add operators (Lt and Gt are alpha). An unknown operator tolerates nothing.
        self._exists = {(one.key, one.effect) for one in tolerations if one.operator == "Exists"}
        self._equal = {(one.key, one.value, one.effect) for one in tolerations if one.operator == "Equal" and one.key}

    def covers(self, taint: Taint) -> bool:
        """Return whether a toleration covers this taint. An empty key or effect of a toleration matches any."""
        keys, effects = ("", taint.key), ("", taint.effect)
        return any((key, effect) in self._exists for key in keys for effect in effects) or any(
            (taint.key, taint.value, effect) in self._equal for effect in effects
        )
