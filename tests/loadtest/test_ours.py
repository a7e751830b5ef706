from collections.abc import Sequence

import pytest

from app.model.marks import BIND_MARKER, GATE, PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION
from loadtest.contender import Batch, CannotError, Contender
from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, LET_IN, ours
from tests.system.api import Object, pod, pod_group

LONE = Batch(name="p", count=2, queue="bench", gpus=16)
GANGS = Batch(name="g", count=4, queue="bench", gang_size=2, gpus=8)
RUNNING = Batch(name="r", count=3, queue="rich", on=["n0", "n1"])
HALVES = Batch(name="h", count=1, queue="bench", gpus=0, fraction="0.5")
GATED = {"schedulingGates": [{"name": GATE}]}
STAMPED = {PREEMPTIBLE_ANNOTATION: "true", QUEUE_ANNOTATION: "bench"}
RICH = {QUEUE_ANNOTATION: "rich"}
MARKED = {"cpu": "1", "memory": "1Gi", BIND_MARKER: "0"}


def contender(name: str) -> Contender:
    (found,) = [one for one in ours() if one.name == name]
    return found


def pods(objects: Sequence[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == "Pod"]


def marked(pod: Object) -> Object:
    """Add the bind marker to requests and limits of the only container."""
    (container,) = pod["spec"]["containers"]
    container["resources"] = {kind: {**amounts, BIND_MARKER: "0"} for kind, amounts in container["resources"].items()}
    return pod


def asked(pod: Object) -> str | None:
    limit: str | None = pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
    return limit


@pytest.mark.parametrize("name", [ALONE, EXTENDER_ONLY, LET_IN, HELD])
def test_every_scheduler_of_ours_gets_pods_of_the_same_names_and_requests(name: str) -> None:
    batches = (LONE,) if name == LET_IN else (LONE, GANGS)

    made = [(pod["metadata"]["name"], asked(pod)) for batch in batches for pod in contender(name).work(batch)[-4:]]

    wanted = [("p-00000", "16"), ("p-00001", "16"), *((f"g-0000{index}", "8") for index in range(4))]
    assert made == wanted[: len(made)]
    assert len(made) == sum(batch.count for batch in batches)


def test_members_of_a_gang_name_their_podgroup_except_for_kube_scheduler_alone() -> None:
    alone, ours_ = contender(ALONE).work(GANGS), contender(EXTENDER_ONLY).work(GANGS)

    assert [item["kind"] for item in alone] == ["Pod"] * 4
    groups = [item for item in ours_ if item["kind"] == "PodGroup"]
    assert [(one["metadata"]["name"], one["spec"]["minMember"]) for one in groups] == [("g-0000", 2), ("g-0001", 2)]
    named = [one["metadata"]["annotations"]["pod-group-name"] for one in pods(ours_)]
    assert named == ["g-0000", "g-0000", "g-0001", "g-0001"]


@pytest.mark.parametrize(
    ("name", "annotations", "spec"),
    [(EXTENDER_ONLY, {}, {}), (LET_IN, STAMPED, {}), (HELD, STAMPED, GATED)],
)
def test_single_pod_is_stamped_by_admission_and_not_marked(
    name: str, annotations: dict[str, str], spec: Object
) -> None:
    made = contender(name).work(LONE)

    assert made == [
        pod(each, gpus=16, queue="bench", annotations=annotations, spec=spec) for each in ("p-00000", "p-00001")
    ]


def test_members_of_a_gang_are_marked_by_admission_and_not_stamped_as_preemptible() -> None:
    made = contender(HELD).work(GANGS)

    gangs = ["g-0000", "g-0000", "g-0001", "g-0001"]
    groups = [pod_group(gang, min_member=2, queue="bench") for gang in ("g-0000", "g-0001")]
    members = [pod(f"g-{index:05}", gpus=8, queue="bench", gang=gang, spec=GATED) for index, gang in enumerate(gangs)]
    assert made == [*groups, *map(marked, members)]


def test_without_admission_members_of_a_gang_are_not_marked() -> None:
    made = pods(contender(EXTENDER_ONLY).work(GANGS))

    assert [BIND_MARKER in repr(each) for each in made] == [False] * 4


@pytest.mark.parametrize("name", [EXTENDER_ONLY, LET_IN, HELD])
def test_running_pods_are_placed_on_the_nodes_in_turn_and_deleted_without_grace(name: str) -> None:
    made = contender(name).work(RUNNING)

    assert [pod["spec"]["nodeName"] for pod in made] == ["n0", "n1", "n0"]
    assert {pod["spec"]["terminationGracePeriodSeconds"] for pod in made} == {0}
    assert {pod["status"]["phase"] for pod in made} == {"Running"}
    assert not any("schedulingGates" in pod["spec"] for pod in made)


@pytest.mark.parametrize(
    ("name", "annotations"), [(EXTENDER_ONLY, {}), (LET_IN, STAMPED | RICH), (HELD, STAMPED | RICH)]
)
def test_running_pods_are_marked_as_at_their_creation(name: str, annotations: dict[str, str]) -> None:
    made = contender(name).work(RUNNING)

    assert [(one["metadata"]["annotations"], BIND_MARKER in repr(one)) for one in made] == [(annotations, False)] * 3


def test_gated_pod_that_shares_a_gpu_has_the_marks_and_variables_of_admission() -> None:
    (made,) = contender(HELD).work(HALVES)

    (container,) = made["spec"]["containers"]
    assert made["metadata"]["annotations"] == {"gpu-fraction": "0.5"}
    assert made["spec"]["schedulingGates"] == GATED["schedulingGates"]
    assert container["resources"] == {"requests": MARKED, "limits": MARKED}
    shown = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]}
    assert shown == {
        "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['leeboard.dev/devices']",
        "GPU_PORTION": "metadata.annotations['leeboard.dev/portion']",
        "GPU_MEMORY_MIB": "metadata.annotations['leeboard.dev/memory-mib']",
    }


@pytest.mark.parametrize(
    ("name", "batch", "sentence"),
    [
        (ALONE, HALVES, "gives out whole GPUs only"),
        (ALONE, RUNNING, "has no quotas"),
        (EXTENDER_ONLY, HALVES, "needs admission"),
        (LET_IN, HALVES, "holds every pod that shares a GPU"),
        (LET_IN, GANGS, "holds every member of a new gang"),
    ],
)
def test_scheduler_names_the_workloads_that_it_does_not_support(name: str, batch: Batch, sentence: str) -> None:
    with pytest.raises(CannotError, match=sentence):
        contender(name).work(batch)
