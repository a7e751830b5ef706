"""Reads a pod's required inter-pod affinity and anti-affinity, as far as it concerns pods of its own kind.

A term is read when the pod's own labels satisfy it. This is the case for replicas on separate nodes and for gangs in
one place. Then the selected pods are of the same template and have the same term, so that labels must be kept only for
pods that have such a term themselves. All other terms (for other kinds of pods, for other namespaces, with
matchExpressions) are left to kube-scheduler's own filters, which also judge the terms that are read here.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from app.cluster.decode.reading import Fields
from app.cluster.decode.sparing import shared
from app.model.pod import Near

NAMESPACE = "/metadata.namespace"
"""The key of a pod's namespace among its labels, since a term applies to one namespace; no label starts with a slash.
"""

MAX_TERMS = 4
"""More terms are left to kube-scheduler: each is compared with the labels of all pods that have terms themselves."""

MAX_LABELS = 8
"""Of one term; terms with more labels are left to kube-scheduler as well."""

MAX_OWN_LABELS = 64
"""Of a pod; the terms of pods with more labels are left to kube-scheduler as well."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KINDS = {"podAffinity": False, "podAntiAffinity": True}
_BEYOND = ("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys")

Labels = tuple[tuple[str, str], ...]


def neighbours(spec: Fields, labels: Fields, namespace: str) -> tuple[tuple[Near, ...], Mapping[str, str] | None]:
    """Return the terms that are read, and the labels that they select; none and None for most pods."""
    affinity = spec.get("affinity")
    if not isinstance(affinity, dict) or affinity.keys().isdisjoint(_KINDS):
        return (), None
    if len(labels) > MAX_OWN_LABELS:
        return (), None
    own = {key: value for key, value in labels.items() if isinstance(value, str)} | {NAMESPACE: namespace}
    found = tuple(islice(_terms(affinity, own), MAX_TERMS))
    return (_shared(found), _shared_labels(tuple(sorted(own.items())))) if found else ((), None)


def _terms(affinity: Fields, own: Mapping[str, str]) -> Iterator[Near]:
    for kind, apart in _KINDS.items():
        stated = affinity.get(kind)
        terms = stated.get(_REQUIRED) if isinstance(stated, dict) else None
        for term in terms if isinstance(terms, list) else ():
            selected = _selected(term, own) if isinstance(term, dict) else None
            if selected is not None:
                yield Near(selected, term["topologyKey"], apart)


def _selected(term: Fields, own: Mapping[str, str]) -> Labels | None:
    """Return the labels that a term selects; None when the term is left to kube-scheduler."""
    selector, key = term.get("labelSelector"), term.get("topologyKey")
    if not isinstance(selector, dict) or selector.get("matchExpressions") or not (isinstance(key, str) and key):
        return None
    if any(term.get(field) is not None for field in _BEYOND):
        return None
    if term.get("namespaces") not in (None, [], [own[NAMESPACE]]):
        return None
    wanted = selector.get("matchLabels") or {}
    if not isinstance(wanted, dict) or len(wanted) > MAX_LABELS:
        return None
    if any(own.get(label) != value for label, value in wanted.items()):
        return None
    return tuple(sorted([*wanted.items(), (NAMESPACE, own[NAMESPACE])]))


# Pods of one template share one value.
@shared(4096)
def _shared(terms: tuple[Near, ...]) -> tuple[Near, ...]:
    return terms


@shared(4096)
def _shared_labels(labels: Labels) -> Mapping[str, str]:
    return dict(labels)
