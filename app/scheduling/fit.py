"""Answers on which nodes a pod may run at all, and where it has room; which of them is best is `score`'s to say."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.model.node import Node, Taint
from app.model.pod import NODE_NAME_FIELD, Constraint, Operator, Requirement, Term, Toleration
from app.model.resources import Amounts
from app.model.snapshot import Mask, NodeTable

INT64_DIGITS = 18
"""More decimal digits may not fit an int64."""

MOST_REMEMBERED = 2048
"""Answers remembered in one table: tenants choose what they ask for, and a table lives until a node changes."""

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable")
"""A cordon, as kube-scheduler's NodeUnschedulable plugin sees it: a taint that some pods tolerate."""


def eligible(constraint: Constraint, nodes: NodeTable) -> Mask:
    """Return the nodes that take work and satisfy selector, required affinity and taints, shape [node].

    The mask is remembered in the table: pods of one template share their `Constraint`.
    """
    mask: Mask | None = nodes.memo.get(constraint)
    if mask is None:
        mask = nodes.takes_work & _selected(constraint, nodes) & _tolerated(constraint.tolerations, nodes)
        _remember(constraint, mask, nodes)
    return mask


def room(amounts: Sequence[int], free: Amounts) -> Mask:
    """Return the nodes with enough free of everything that is asked for, shape [node].

    What is not asked for is not judged: an overcommitted node still takes a pod that needs none of that resource.
    """
    mask: Mask | None = None
    for axis, amount in enumerate(amounts):
        if amount > 0:
            enough = free[axis] >= amount
            mask = enough if mask is None else np.logical_and(mask, enough, out=mask)
    return np.ones(free.shape[1], dtype=np.bool_) if mask is None else mask


def suffices(amounts: Sequence[int], free: Sequence[int]) -> bool:
    """Say what `room` says of one node."""
    # Written out: the victim search and every change of a node come here.
    for asked, there in zip(amounts, free, strict=True):  # noqa: SIM110 # a generator takes three times as long
        if 0 < asked > there:
            return False
    return True


def _remember(question: Hashable, answer: object, nodes: NodeTable) -> None:
    if len(nodes.memo) >= MOST_REMEMBERED:
        nodes.memo.clear()
    nodes.memo[question] = answer


def _selected(constraint: Constraint, nodes: NodeTable) -> Mask:
    mask = np.ones(len(nodes.nodes), dtype=np.bool_)
    for key, value in constraint.node_selector:
        mask &= _matches(Requirement(key, Operator.IN, (value,)), nodes)
    if constraint.terms is not None:
        mask &= _any_term(constraint.terms, nodes)
    return mask


def _any_term(terms: tuple[Term, ...], nodes: NodeTable) -> Mask:
    mask = np.zeros(len(nodes.nodes), dtype=np.bool_)
    for term in terms:
        if term:  # an empty term matches no node (Kubernetes' NodeSelectorTerm)
            mask |= np.logical_and.reduce([_matches(requirement, nodes) for requirement in term])
    return mask


def _matches(requirement: Requirement, nodes: NodeTable) -> Mask:
    column = _label_column(requirement.key, nodes)
    match requirement.operator:
        case Operator.IN:
            return column.among(requirement.values)
        case Operator.NOT_IN:
            return ~column.among(requirement.values)
        case Operator.EXISTS:
            return column.codes >= 0
        case Operator.DOES_NOT_EXIST:
            return column.codes < 0
        case Operator.GT:
            return column.among([text for text in column.values if _exceeds(text, requirement.values)])
        case Operator.LT:
            return column.among([text for text in column.values if _is_below(text, requirement.values)])


@dataclass(frozen=True, slots=True)
class _LabelColumn:
    """One label over all nodes: `codes[node]` is the number of its value, -1 where the label is absent."""

    values: dict[str, int]
    codes: NDArray[np.int32]

    def among(self, texts: tuple[str, ...] | list[str]) -> Mask:
        wanted = [self.values[text] for text in texts if text in self.values]
        return np.isin(self.codes, wanted)


def _label_column(key: str, nodes: NodeTable) -> _LabelColumn:
    column: _LabelColumn | None = nodes.memo.get(("label", key))
    if column is None:
        values: dict[str, int] = {}
        codes = [_code(_label(node, key), values) for node in nodes.nodes]
        column = _LabelColumn(values, np.array(codes, dtype=np.int32))
        _remember(("label", key), column, nodes)
    return column


def label_codes(key: str, nodes: NodeTable) -> NDArray[np.int32]:
    """Return the number of each node's value of a label, shape [node]; -1 where the label is absent."""
    return _label_column(key, nodes).codes


def _label(node: Node, key: str) -> str | None:
    return node.name if key == NODE_NAME_FIELD else node.labels.get(key)


def _code(text: str | None, values: dict[str, int]) -> int:
    return -1 if text is None else values.setdefault(text, len(values))


def _exceeds(text: str, bounds: tuple[str, ...]) -> bool:
    label, bound = _integer(text), _integer(bounds[0] if len(bounds) == 1 else "")
    return label is not None and bound is not None and label > bound


def _is_below(text: str, bounds: tuple[str, ...]) -> bool:
    label, bound = _integer(text), _integer(bounds[0] if len(bounds) == 1 else "")
    return label is not None and bound is not None and label < bound


def _integer(text: str) -> int | None:
    # int() alone would take blanks, underscores and the digits of every script; Kubernetes compares as int64.
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= INT64_DIGITS else None


def _tolerated(tolerations: tuple[Toleration, ...], nodes: NodeTable) -> Mask:
    sets, codes = _taint_sets(nodes)
    verdicts = [all(any(_tolerates(one, taint) for one in tolerations) for taint in taints) for taints in sets]
    return np.array(verdicts, dtype=np.bool_)[codes]


def untolerated(tolerations: tuple[Toleration, ...], nodes: NodeTable) -> dict[Taint, Mask]:
    """Return the taints that keep a pod away, each with the nodes where it is the first that does, shape [node]."""
    sets, codes = _taint_sets(nodes)
    first: dict[Taint, list[int]] = {}
    for number, taints in enumerate(sets):
        taint = next((taint for taint in taints if not any(_tolerates(one, taint) for one in tolerations)), None)
        if taint is not None:
            first.setdefault(taint, []).append(number)
    return {taint: np.isin(codes, numbers) for taint, numbers in first.items()}


def _taint_sets(nodes: NodeTable) -> tuple[list[tuple[Taint, ...]], NDArray[np.int32]]:
    """Return the distinct sets of taints, of which there are few, and the number of each node's set."""
    remembered: tuple[list[tuple[Taint, ...]], NDArray[np.int32]] | None = nodes.memo.get("taints")
    if remembered is None:
        numbers: dict[tuple[Taint, ...], int] = {}
        codes = [numbers.setdefault(_taints(node), len(numbers)) for node in nodes.nodes]
        remembered = list(numbers), np.array(codes, dtype=np.int32)
        nodes.memo["taints"] = remembered
    return remembered


def _taints(node: Node) -> tuple[Taint, ...]:
    return (*node.taints, UNSCHEDULABLE) if node.unschedulable else node.taints


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Follow `ToleratesTaint` of the Kubernetes API."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # Kubernetes may learn other operators (Lt and Gt are alpha): what we do not know tolerates nothing.
    return toleration.operator == "Equal" and bool(toleration.key) and toleration.value == taint.value
