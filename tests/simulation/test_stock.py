import pytest

from app.model.seam import RawObject
from app.simulation import manifests
from app.simulation.manifests import Job
from app.simulation.stock import barred, lacking, milli, requests

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def node(**spec: object) -> RawObject:
    return manifests.node("n1", gpus=8, cpu=64, labels={"rack": "a"}) | {"spec": spec}


def pod(*, gpus: int = 1, selector: dict[str, str] | None = None, **spec: object) -> RawObject:
    made = manifests.pod(Job(name="p", queue="q", gpus=gpus, node_selector=selector or {}))
    return made | {"spec": made["spec"] | spec}


@pytest.mark.parametrize(
    ("quantity", "expected"), [("250m", 250), ("2", 2000), ("1Gi", 1000 << 30), ("4Mi", 4000 << 20)]
)
def test_quantities_are_read_in_thousandths(quantity: str, expected: int) -> None:
    assert milli(quantity) == expected


def test_a_pod_fits_into_what_is_left() -> None:
    assert lacking(requests(pod(gpus=2)), node(), requests(pod(gpus=6))) == []
    assert lacking(requests(pod(gpus=3)), node(), requests(pod(gpus=6))) == ["Insufficient nvidia.com/gpu"]


def test_a_cordoned_node_takes_no_pods() -> None:
    assert barred(pod(), node(unschedulable=True)) == ["node(s) were unschedulable"]


def test_a_selector_must_match_the_labels() -> None:
    assert barred(pod(selector={"rack": "a"}), node()) == []
    assert barred(pod(selector={"rack": "b"}), node()) == ["node(s) didn't match Pod's node affinity/selector"]


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
    ],
)
def test_a_taint_is_tolerated_by_key_value_and_effect(toleration: dict[str, str]) -> None:
    assert barred(pod(tolerations=[toleration]), node(taints=[TAINT])) == []


@pytest.mark.parametrize("toleration", [{"key": "cpu", "operator": "Exists"}, {"key": "gpu", "value": "no"}])
def test_another_toleration_does_not_help(toleration: dict[str, str]) -> None:
    assert barred(pod(tolerations=[toleration]), node(taints=[TAINT])) == ["node(s) had untolerated taint(s)"]


@pytest.mark.parametrize(
    ("names", "reasons"), [(["n1"], []), (["n2"], ["node(s) didn't match Pod's node affinity/selector"])]
)
def test_a_pod_that_names_its_node_is_placed_on_no_other(names: list[str], reasons: list[str]) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}

    assert barred(pod(affinity={"nodeAffinity": required}), node()) == reasons
