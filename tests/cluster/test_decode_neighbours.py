"""The decoder of inter-pod affinity: only terms about replicas of the pod itself are read."""

from typing import Any

import pytest

from app.cluster import decode
from app.cluster.decode.neighbours import MAX_LABELS, MAX_OWN_LABELS, MAX_TERMS, NAMESPACE
from app.model.pod import Near, Pod
from tests.cluster.raw import PROFILES, Raw, pod, raw_pod

LABELS = {"app": "web", "tier": "front"}
KEPT = LABELS | {NAMESPACE: "team"}
WEB = (("app", "web"),)


def term(*, key: object = "zone", labels: object = None, **more: object) -> Raw:
    return {"labelSelector": {"matchLabels": {"app": "web"} if labels is None else labels}, "topologyKey": key} | more


def stating(*terms: Any, kind: str = "podAffinity") -> Pod:
    affinity = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}
    return pod(meta={"labels": LABELS}, affinity=affinity)


def test_affinity_terms_about_its_own_replicas_are_read_with_the_labels_they_select() -> None:
    near, apart = stating(term()), stating(term(namespaces=["team"], matchLabelKeys=None), kind="podAntiAffinity")

    in_team = ((NAMESPACE, "team"), *WEB)
    assert (near.near, near.labels) == ((Near(in_team, "zone"),), KEPT)
    assert (apart.near, apart.labels) == ((Near(in_team, "zone", apart=True),), KEPT)


def test_an_affinity_term_about_every_pod_of_the_namespace_includes_its_own_replicas() -> None:
    assert stating(term(labels={})).near == (Near(((NAMESPACE, "team"),), "zone"),)


@pytest.mark.parametrize(
    "beyond",
    [
        term(labels={"app": "cache"}),
        term(labels={"app": "web", "zone": "a"}),
        term(labels={"app": ["web"]}),
        term(labels=["app"]),
        term(namespaces=["other"]),
        term(namespaces=["team", "other"]),
        term(namespaceSelector={}),
        term(matchLabelKeys=["app"]),
        term(key=""),
        term(key=1),
        {"topologyKey": "zone"},
        {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
        "zone",
    ],
)
def test_all_other_affinity_terms_are_left_to_kube_scheduler(beyond: Any) -> None:
    left = stating(beyond)

    assert (left.near, left.labels, left.problem) == ((), None, "")
    assert len(stating(beyond, term()).near) == 1


def test_labels_of_other_pods_are_not_kept() -> None:
    preferred = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term()}]}}

    assert pod(meta={"labels": LABELS}).labels is None
    assert pod(meta={"labels": LABELS}, affinity=preferred).labels is None


def test_pods_of_one_template_share_affinity_terms_and_labels() -> None:
    one, other = stating(term()), stating(term())

    assert (one.near is other.near, one.labels is other.labels) == (True, True)


def test_excessive_numbers_of_affinity_terms_are_left_to_kube_scheduler() -> None:
    assert len(stating(*(term(key=f"zone-{number}") for number in range(99))).near) == MAX_TERMS


@pytest.mark.parametrize(("own", "named"), [(MAX_LABELS + 1, MAX_LABELS + 1), (MAX_OWN_LABELS + 1, 1)])
def test_excessive_numbers_of_labels_are_left_to_kube_scheduler(own: int, named: int) -> None:
    labels = {f"label-{number}": "x" for number in range(own)}
    affinity = {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term(labels=dict(list(labels.items())[:named]))]
        }
    }
    left = pod(meta={"labels": labels}, affinity=affinity)

    assert (left.near, left.labels, left.problem) == ((), None, "")


def test_affinity_terms_may_select_pods_of_other_schedulers_too() -> None:
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term()]}}
    raw = raw_pod(schedulerName="other", meta={"labels": LABELS}, affinity=affinity)

    assert decode.pod(raw, profiles=PROFILES).labels == KEPT
