from collections.abc import Sequence

import pytest

from app.model.marks import GATE
from loadtest.contender import Batch, CannotError, Contender
from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, ours
from tests.system.api import Object

LONE = Batch(name="p", count=2, queue="bench", gpus=16)
GANGS = Batch(name="g", count=4, queue="bench", gang_size=2, gpus=8)
RUNNING = Batch(name="r", count=3, queue="rich", on=["n0", "n1"])
HALVES = Batch(name="h", count=1, queue="bench", gpus=0, fraction="0.5")
GATED = [{"name": GATE}]


def contender(name: str) -> Contender:
    (found,) = [one for one in ours() if one.name == name]
    return found


def pods(objects: Sequence[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == "Pod"]


def asked(pod: Object) -> str | None:
    limit: str | None = pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
    return limit


@pytest.mark.parametrize("name", [ALONE, EXTENDER_ONLY, HELD])
def test_every_scheduler_of_ours_is_given_pods_of_the_same_names_that_ask_for_the_same(name: str) -> None:
    made = [
        (pod["metadata"]["name"], asked(pod)) for batch in (LONE, GANGS) for pod in contender(name).work(batch)[-4:]
    ]

    wanted = [("p-00000", "16"), ("p-00001", "16"), *((f"g-0000{index}", "8") for index in range(4))]
    assert made == wanted


def test_members_of_a_gang_name_their_group_and_kube_scheduler_alone_knows_none() -> None:
    alone, ours_ = contender(ALONE).work(GANGS), contender(EXTENDER_ONLY).work(GANGS)

    assert [item["kind"] for item in alone] == ["Pod"] * 4
    groups = [item for item in ours_ if item["kind"] == "PodGroup"]
    assert [(one["metadata"]["name"], one["spec"]["minMember"]) for one in groups] == [("g-0000", 2), ("g-0001", 2)]
    named = [one["metadata"]["annotations"]["pod-group-name"] for one in pods(ours_)]
    assert named == ["g-0000", "g-0000", "g-0001", "g-0001"]


@pytest.mark.parametrize(("name", "gates"), [(EXTENDER_ONLY, None), (HELD, GATED)])
def test_only_the_form_that_holds_pods_gives_them_a_gate(name: str, gates: object) -> None:
    made = contender(name).work(LONE)

    assert [pod["spec"].get("schedulingGates") for pod in made] == [gates, gates]


@pytest.mark.parametrize("name", [EXTENDER_ONLY, HELD])
def test_pods_that_run_stand_on_the_nodes_in_turn_and_leave_without_grace(name: str) -> None:
    made = contender(name).work(RUNNING)

    assert [pod["spec"]["nodeName"] for pod in made] == ["n0", "n1", "n0"]
    assert {pod["spec"]["terminationGracePeriodSeconds"] for pod in made} == {0}
    assert {pod["status"]["phase"] for pod in made} == {"Running"}
    assert not any("schedulingGates" in pod["spec"] for pod in made)


def test_held_pod_that_shares_a_gpu_is_told_its_devices_as_admission_would() -> None:
    (made,) = contender(HELD).work(HALVES)

    assert (made["metadata"]["annotations"]["gpu-fraction"], asked(made)) == ("0.5", None)
    assert "NVIDIA_VISIBLE_DEVICES" in {entry["name"] for entry in made["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("name", "batch", "sentence"),
    [
        (ALONE, HALVES, "gives out whole GPUs only"),
        (ALONE, RUNNING, "knows no quotas"),
        (EXTENDER_ONLY, HALVES, "needs admission"),
    ],
)
def test_scheduler_says_what_it_has_nothing_for(name: str, batch: Batch, sentence: str) -> None:
    with pytest.raises(CannotError, match=sentence):
        contender(name).work(batch)
