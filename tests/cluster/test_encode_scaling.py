"""Objects for an autoscaler, as users read them."""

import pytest

from app.cluster.encode.scaling import unschedulable
from app.model.pod import Pod
from app.model.scaling import CapacityRequest, PodShape
from tests import given


@pytest.mark.parametrize(
    ("pod", "named"),
    [(given.pod("alone"), "pod default/alone"), (given.pod("p", gang="g"), "pods of PodGroup default/g")],
    ids=["alone", "gang"],
)
def test_a_scaling_pod_names_the_pods_it_replaces_in_readable_form(pod: Pod, named: str) -> None:
    ask = CapacityRequest(key=pod.group, name="r", owner={}, shapes=(PodShape(sample=pod, count=1),))

    (condition,) = unschedulable(ask, "2026-01-01T00:00:00Z")["conditions"]

    assert condition["message"] == f"It stands for {named}, for which no node has room."
