"""What a pod may not contradict, and what its owner is told before it is stored."""

import pytest

from app.cluster import decode
from app.cluster.admit.pods import GpuSharing
from app.model.admission import Admitted, Denied
from tests.cluster.raw import Raw, container
from tests.control.desk import Desk, changed, new_pod, queue

DISABLED = "with gpu sharing request, while GPU sharing is disabled; ask for whole GPUs with nvidia.com/gpu"


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"])
@pytest.mark.parametrize("value", ["0.5", "1", "NaN", "٣", "x" * 262_144])
def test_sharing_is_refused_in_kais_words_while_it_is_off(annotation: str, value: str) -> None:
    raw = new_pod(meta={"name": "p", "annotations": {annotation: value}})

    assert Desk().denial("Pod", raw) == f"attempting to create a pod team/p {DISABLED}, without its annotations"


def test_a_pod_whose_name_is_still_to_be_made_is_called_by_its_prefix() -> None:
    raw = new_pod(meta={"generateName": "train-", "annotations": {"gpu-memory": "5"}})
    del raw["metadata"]["name"]

    assert Desk().denial("Pod", raw).startswith("attempting to create a pod team/train- with gpu sharing request")


@pytest.mark.parametrize(
    ("annotations", "gpus", "message"),
    [
        ({"gpu-fraction": "0.5"}, "1", "cannot have both GPU fraction request and whole GPU resource request/limit; "),
        ({"gpu-memory": "5"}, "1", "cannot request both GPU and GPU memory; remove nvidia.com/gpu"),
        ({"gpu-memory": "5", "gpu-fraction": "0.5"}, "0", "cannot request both GPU and GPU memory; remove the annot"),
        ({"gpu-memory": "0"}, "0", "gpu-memory annotation value must be a positive integer greater than 0; it cannot"),
        (
            {"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"},
            "0",
            "annotation gpu-fraction-container-name is 'b', and the pod has no such container; write one of 'main'",
        ),
    ],
)
def test_contradictory_requests_are_refused_in_kais_words(annotations: Raw, gpus: str, message: str) -> None:
    raw = new_pod(container(gpu=gpus), meta={"annotations": annotations})

    assert Desk(gpu_sharing=GpuSharing.ON).denial("Pod", raw).startswith(message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (new_pod(container(cpu="many")), "cpu of 'main' cannot be read: 'many' is not a Kubernetes quantity; write a"),
        (new_pod(container(gpu="500m")), "nvidia.com/gpu of 'main' cannot be read: '500m' is not a whole number of"),
        (
            new_pod(container(cpu="1e400")),
            "cpu of 'main' cannot be read: '1e400' is too much to be meant; write at most",
        ),
        (
            new_pod(meta={"labels": {"kai.scheduler/task-priority": "٣"}}),
            r"label kai.scheduler/task-priority cannot be read: '\u0663' is not an integer; write digits only",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_write_instead(raw: Raw, message: str) -> None:
    assert Desk().denial("Pod", raw).startswith(message)


@pytest.mark.parametrize(
    "raw",
    [
        new_pod(container(cpu="many"), schedulerName="volcano"),
        new_pod(container(cpu="many"), nodeName="n1"),
        new_pod(container(cpu="many"), meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        new_pod(container(gpu="1")),
    ],
)
def test_pods_that_are_not_ours_to_judge_or_right_are_admitted(raw: Raw) -> None:
    assert isinstance(Desk().validate("Pod", raw), Admitted)


def test_a_change_is_refused_for_what_it_makes_wrong_alone() -> None:
    desk, right = Desk(), new_pod()
    wrong = new_pod(meta={"annotations": {"gpu-fraction": "0.5"}})
    still_wrong = new_pod(meta={"annotations": {"gpu-fraction": "0.5", "mine": "2"}})

    assert "while GPU sharing is disabled" in desk.denial("Pod", wrong, **changed(right))
    assert desk.validate("Pod", still_wrong, **changed(wrong)) == Admitted()
    assert desk.validate("Pod", right, **changed(wrong)) == Admitted()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": [container()] * 257}, "spec.containers has 257 items; write at most 256"),
        ({"initContainers": [container()] * 24_000}, "spec.initContainers has 24000 items; write at most 256"),
        (
            {"containers": [container() | {"env": [{"name": "GPU_PORTION"}] * 4097}]},
            "a container has 4097 environment variables; write at most 4096",
        ),
    ],
)
def test_a_pod_that_would_hold_everybody_up_is_refused_before_it_is_looked_at(spec: Raw, message: str) -> None:
    desk, raw = Desk(), new_pod(meta={"annotations": {"gpu-memory": "5"}}, **spec)

    assert desk.mutate(raw) == desk.validate("Pod", raw) == Denied(message)
    assert desk.validate("Pod", new_pod(schedulerName="volcano", **spec)) == Admitted()
    assert desk.entrance.asked == []


@pytest.mark.parametrize(
    ("labels", "warning"),
    [
        ({"kai.scheduler/queue": "r"}, "queue 'r' does not exist: the pod waits until it does"),
        (
            {"kai.scheduler/queue": "odd"},
            "queue 'odd' takes no pods: its parent queue lost does not exist; create it, ",
        ),
        (
            {"kai.scheduler/queue": "q", "kai.scheduler/preemptibility": "no"},
            "label kai.scheduler/preemptibility is 'no' and counts as not set; write preemptible or non-preemptible",
        ),
    ],
)
def test_what_keeps_a_pod_waiting_is_told(labels: Raw, warning: str) -> None:
    desk = Desk()
    desk.cache.apply_queue(decode.queue(queue("odd", parentQueue="lost")))

    (told,) = desk.warnings("Pod", new_pod(meta={"labels": labels}))

    assert told.startswith(warning)


def test_nothing_is_said_to_be_missing_before_the_cluster_is_known() -> None:
    desk = Desk()
    desk.unready = "queues are not listed yet"

    assert desk.warnings("Pod", new_pod(meta={"labels": {"kai.scheduler/queue": "r"}})) == []
    assert desk.warnings("Queue", queue("q"), operation="DELETE") == []
