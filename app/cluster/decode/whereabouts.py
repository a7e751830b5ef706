"""Reads where a pod may run: node selector, required node affinity and tolerations."""

import re
from collections.abc import Sequence

from app.cluster.decode.reading import Fields, ObjectReading
from app.cluster.decode.sparing import shared
from app.model.pod import ANYWHERE, NODE_NAME_FIELD, NOWHERE, Constraint, Operator, Requirement, Term, Toleration
from app.model.quantity import int64, shown

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

MOST_REQUIREMENTS = 256
"""Entries of the node selector and requirements of all terms together: each is compared with all nodes."""

MOST_KEYS = 16
"""Different labels among them: a column of all nodes is built for each."""

MOST_VALUES = 4096
"""Values of all requirements together."""

_OPERATORS = {operator.value: operator for operator in Operator}
_COMPARED = re.compile(r"[0-9]{1,63}", re.ASCII)
"""A value that a label is compared to must be a label value itself (Kubernetes), so it has no sign."""


def constraint(reading: ObjectReading, spec: Fields) -> Constraint:
    """Return the pod's constraint, one shared value for all pods that state the same.

    `excess` checks how many items each list may have.
    """
    selector = _node_selector(reading, spec)
    terms = None if spec.get("affinity") is None else _terms(reading, reading.mapping(spec, "affinity"))
    tolerations = tuple([_toleration(reading, item) for item in reading.mappings(spec, "tolerations")])
    if terms is None and not selector and not tolerations:
        return ANYWHERE
    keys = {key for key, _ in selector} | {one.key for term in terms or () for one in term}
    if len(keys) > MOST_KEYS:
        reading.doubt(f"its node selector and node affinity name {len(keys)} labels; name at most {MOST_KEYS}")
        return NOWHERE
    return _shared(selector, terms, tolerations)


def _node_selector(reading: ObjectReading, spec: Fields) -> tuple[tuple[str, str], ...]:
    if not spec.get("nodeSelector"):
        return ()
    return tuple(sorted(reading.texts(spec, "nodeSelector").items()))


def _toleration(reading: ObjectReading, raw: Fields) -> Toleration:
    return _shared_toleration(
        reading.text(raw, "key"),
        reading.text(raw, "operator") or "Equal",
        reading.text(raw, "value"),
        reading.text(raw, "effect"),
    )


def _terms(reading: ObjectReading, affinity: Fields) -> tuple[Term, ...] | None:
    required = reading.mapping(affinity, "nodeAffinity").get(REQUIRED)
    if required is None:
        return None
    if not isinstance(required, dict):
        reading.doubt("required node affinity is not readable; write a mapping with nodeSelectorTerms")
        return ()
    return tuple(_term(reading, raw) for raw in reading.mappings(required, "nodeSelectorTerms"))


def _term(reading: ObjectReading, raw: Fields) -> Term:
    labels = [_label_requirement(reading, each) for each in reading.mappings(raw, "matchExpressions")]
    names = [_name_requirement(reading, each) for each in reading.mappings(raw, "matchFields")]
    return tuple(labels + names)


def _label_requirement(reading: ObjectReading, raw: Fields) -> Requirement:
    key, operator, values = reading.text(raw, "key"), _operator(reading, raw), _values(reading, raw)
    if key == NODE_NAME_FIELD:
        # Only this key distinguishes the field from a label in a Requirement.
        reading.doubt(f"node affinity uses a label named {NODE_NAME_FIELD}; use matchFields, or rename the label")
    if operator in (Operator.GT, Operator.LT) and not (len(values) == 1 and _is_bound(values[0])):
        what = f"node affinity compares label {shown(key)} by {operator.value}"
        reading.doubt(f"{what}; compare it to one 64-bit integer, written in digits only")
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        reading.doubt(f"node affinity on label {shown(key)} lists no values; write at least one")
    return Requirement(key, operator, values)


def _is_bound(text: str) -> bool:
    return _COMPARED.fullmatch(text) is not None and int64(text) is not None


def _name_requirement(reading: ObjectReading, raw: Fields) -> Requirement:
    key, operator, values = reading.text(raw, "key"), _operator(reading, raw), _values(reading, raw)
    if key != NODE_NAME_FIELD or operator not in (Operator.IN, Operator.NOT_IN) or len(values) != 1:
        reading.doubt(f"matchFields is not readable; write {NODE_NAME_FIELD}, In or NotIn, and one node name")
    return Requirement(NODE_NAME_FIELD, operator, values)


def _operator(reading: ObjectReading, raw: Fields) -> Operator:
    text = reading.text(raw, "operator")
    if text not in _OPERATORS:
        reading.doubt(f"node affinity has operator {shown(text)}; write one of {', '.join(_OPERATORS)}")
    # Without values it matches no node: an unreadable operator allows nothing.
    return _OPERATORS.get(text, Operator.IN)


def _values(reading: ObjectReading, raw: Fields) -> tuple[str, ...]:
    values = raw.get("values")
    if values is None:
        return ()
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return tuple(values)
    reading.doubt("values of a node affinity requirement are not readable; write a list of texts")
    return ()


# Bounded, since tenants choose what they state; a removed value is only no longer shared.
@shared(4096)
def _shared(
    selector: tuple[tuple[str, str], ...], terms: tuple[Term, ...] | None, tolerations: Sequence[Toleration]
) -> Constraint:
    return Constraint(selector, terms, tuple(tolerations))


@shared(4096)
def _shared_toleration(key: str, operator: str, value: str, effect: str) -> Toleration:
    return Toleration(key, operator, value, effect)
