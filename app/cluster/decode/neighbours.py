"""Reads which pods a pod must be near to or apart from: required inter-pod affinity, as far as it is to its own kind.

A term is read when the pod's own labels satisfy it, as those of replicas that keep apart and of a gang that stays
together do. Then the pods that it speaks of come from the same template and state it too, so that labels have to be
kept only of pods that have such a term themselves. All other terms (of other kinds of pods, of other namespaces, by
matchExpressions) are left to kube-scheduler's own filters, which judge the terms that are read here as well.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from app.cluster.decode.reading import Fields
from app.cluster.decode.sparing import shared
from app.model.pod import Near

NAMESPACE = "/metadata.namespace"
"""Stands for a pod's namespace among its labels, since terms speak of one namespace; no label begins with a slash."""

MAX_TERMS = 4
"""More are left to kube-scheduler: each is compared with the labels of all pods that have terms themselves."""

MAX_LABELS = 8
"""Of one term; those with more are left to kube-scheduler as well."""

MAX_OWN_LABELS = 64
"""Of a pod; the terms of one with more, too."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KINDS = {"podAffinity": False, "podAntiAffinity": True}
_BEYOND = ("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys")

Labels = tuple[tuple[str, str], ...]


def neighbours(spec: Fields, labels: Fields, namespace: str) -> tuple[tuple[Near, ...], Mapping[str, str] | None]:
    """Return the terms that are read, and the labels by which they find the pod; none and None for most pods."""
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
    """Return the labels that a term speaks of; None when it is not one of those that are read."""
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
