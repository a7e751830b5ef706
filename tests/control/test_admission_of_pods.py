"""Contradictions for which a pod is refused, and the warnings before it is stored."""

import pytest

from app.cluster import decode
from app.model.admission import Admitted, Denied
from tests.cluster.raw import Raw, container, raw_pod
from tests.control.desk import QUEUE, Desk, changed, new_pod, queue

DISABLED = "with gpu sharing request, while GPU sharing is disabled; ask for whole GPUs with nvidia.com/gpu"


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"])
@pytest.mark.parametrize("value", ["0.5", "1", "NaN", "٣", "x" * 262_144])
def test_gpu_sharing_is_refused_with_the_message_of_kai_while_it_is_off(annotation: str, value: str) -> None:
    raw = new_pod(meta={"name": "p", "annotations": {annotation: value}})

    assert (
        Desk(gpu_sharing=False).denial("Pod", raw)
        == f"attempting to create a pod team/p {DISABLED}, without its annotations"
    )


def test_a_pod_with_a_generated_name_is_called_by_its_prefix() -> None:
    raw = new_pod(meta={"generateName": "train-", "annotations": {"gpu-memory": "5"}})
    del raw["metadata"]["name"]

    told = Desk(gpu_sharing=False).denial("Pod", raw)

    assert told.startswith("attempting to create a pod team/train- with gpu sharing request")


NO_FRACTION = "gpu-fraction annotation value must be a positive number smaller than 1.0; it cannot be read"
NO_MEMORY = "gpu-memory annotation value must be a positive integer greater than 0; it cannot be read"
NO_COUNT = "fraction count annotation value must be a positive integer greater than 0; it cannot be read"
BOTH = "cannot have both GPU fraction request and whole GPU resource request/limit; remove nvidia.com/gpu"
ALONE = "cannot request multiple fractional devices without specifying fraction portion or gpu-memory; add"
NO_CONTAINER = "annotation gpu-fraction-container-name is 'b', and the pod has no such container; write one of 'main'"


@pytest.mark.parametrize(
    ("annotations", "gpus", "message"),
    [
        ({"gpu-fraction": "0.5"}, "1", BOTH),
        ({"gpu-memory": "5"}, "1", "cannot request both GPU and GPU memory; remove nvidia.com/gpu"),
        ({"gpu-memory": "5", "gpu-fraction": "0.5"}, "0", "cannot request both GPU and GPU memory; remove the annot"),
        *(
            ({"gpu-fraction": text}, "0", NO_FRACTION)
            for text in ("1", "1.0", "0", "-0.5", "NaN", "Infinity", "half", "")
        ),
        *(({"gpu-memory": text}, "0", NO_MEMORY) for text in ("0", "-5", "0.5", "NaN", "4Gi", "")),
        *(
            ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": text}, "0", NO_COUNT)
            for text in ("0", "-1", "1.5", "NaN", "")
        ),
        ({"gpu-fraction-num-devices": "2"}, "0", ALONE),
        ({"gpu-fraction-num-devices": "2"}, "1", ALONE),
        ({"mps": "true"}, "1", "MPS is only supported with GPU fraction request; add annotation gpu-fraction or"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"}, "0", NO_CONTAINER),
    ],
)
def test_contradictory_requests_are_refused_with_the_message_of_kai(annotations: Raw, gpus: str, message: str) -> None:
    raw = new_pod(container(gpu=gpus), meta={"annotations": annotations})

    assert Desk().denial("Pod", raw).startswith(message)


@pytest.mark.parametrize("resource", ["requests", "limits"])
@pytest.mark.parametrize("of", ["second", "init", "sidecar"])
def test_a_pod_may_not_request_shared_and_whole_gpus_in_any_container(of: str, resource: str) -> None:
    asking = {"name": of, "resources": {resource: {"nvidia.com/gpu": "1"}}}
    asking |= {"restartPolicy": "Always"} if of == "sidecar" else {}
    containers, spec = ([asking], {}) if of == "second" else ([], {"initContainers": [asking]})
    raw = new_pod(container(), *containers, meta={"annotations": {"gpu-fraction": "0.5"}}, **spec)

    assert Desk().denial("Pod", raw).startswith(BOTH)


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_pod_may_not_request_a_shared_gpu_and_a_mig_profile(annotation: str, where: str) -> None:
    asking = container("asking", limits={"nvidia.com/mig-1g.10gb": "1"})
    raw = new_pod(container(), meta={"annotations": {annotation: "5" if annotation == "gpu-memory" else "0.5"}})
    raw["spec"].setdefault(where, []).append(asking)

    assert Desk().denial("Pod", raw) == (
        "cannot have both a part of a GPU and a MIG profile: a container sees only one of them; "
        f"remove nvidia.com/mig-1g.10gb, or the annotation {annotation}"
    )


@pytest.mark.parametrize(
    ("annotations", "spec"),
    [
        ({"gpu-fraction": "0.5"}, {}),
        ({"gpu-memory": "4096", "mps": "true", "gpu-fraction-num-devices": "2"}, {}),
        ({"gpu-fraction": ".25", "gpu-fraction-container-name": "i"}, {"initContainers": [container("i")]}),
        ({"mps": "false"}, {}),
    ],
)
def test_a_request_for_a_whole_number_of_shared_gpus_is_admitted(annotations: Raw, spec: Raw) -> None:
    desk = Desk()

    prepared = desk.stored(new_pod(container(gpu="0"), meta={"annotations": annotations}, **spec))

    assert isinstance(desk.validate("Pod", prepared), Admitted)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (new_pod(container(cpu="many")), "cpu of 'main' cannot be read: 'many' is not a Kubernetes quantity; write a"),
        (new_pod(container(gpu="500m")), "nvidia.com/gpu of 'main' cannot be read: '500m' is not a whole number of"),
        (
            new_pod(container(cpu="1e400")),
            "cpu of 'main' cannot be read: '1e400' is too large; write at most",
        ),
        (
            new_pod(meta={"labels": {"kai.scheduler/task-priority": "٣"}}),
            r"label kai.scheduler/task-priority cannot be read: '\u0663' is not an integer; write digits only",
        ),
    ],
)
def test_an_unreadable_request_is_refused_with_what_to_write_instead(raw: Raw, message: str) -> None:
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
def test_valid_pods_and_pods_of_other_schedulers_are_admitted(raw: Raw) -> None:
    assert isinstance(Desk().validate("Pod", raw), Admitted)


def test_an_update_is_refused_only_for_errors_that_it_adds() -> None:
    desk, right = Desk(gpu_sharing=False), new_pod()
    wrong = new_pod(meta={"annotations": {"gpu-fraction": "0.5"}})
    still_wrong = new_pod(meta={"annotations": {"gpu-fraction": "0.5", "mine": "2"}})

    assert "while GPU sharing is disabled" in desk.denial("Pod", wrong, **changed(right))
    assert desk.validate("Pod", still_wrong, **changed(wrong)) == Admitted()
    assert desk.validate("Pod", right, **changed(wrong)) == Admitted()


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": [container()] * 257}, "spec.containers has 257 items; write at most 256"),
        ({"initContainers": [container()] * 24_000}, "spec.initContainers has 24000 items; write at most 256"),
        (
            {"containers": [container() | {"env": [{"name": "GPU_PORTION"}] * 4097}]},
            "a container has 4097 environment variables; write at most 4096",
        ),
        (
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}] * 22_000}}}},
            "spec.affinity.nodeAffinity.nodeSelectorTerms has 22000 items; write at most 256",
        ),
    ],
)
def test_a_pod_too_large_to_review_is_refused_before_it_is_read(spec: Raw, message: str) -> None:
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
def test_the_warning_says_what_keeps_a_pod_pending(labels: Raw, warning: str) -> None:
    desk = Desk()
    desk.cache.apply_queue(decode.queue(queue("odd", parentQueue="lost")))

    (told,) = desk.warnings("Pod", new_pod(meta={"labels": labels}))

    assert told.startswith(warning)


NOTHING = "changes nothing: the pod asks for no part of a GPU; add annotation gpu-fraction or gpu-memory, or remove it"


@pytest.mark.parametrize(
    ("annotations", "warnings"),
    [
        ({"gpu-fraction": "0.5", "mps": "True"}, ["annotation mps is 'True' and counts as not set; write \"true\""]),
        ({"mps": ""}, ["annotation mps is '' and counts as not set; write \"true\""]),
        ({"gpu-fraction-container-name": "main"}, [f"annotation gpu-fraction-container-name {NOTHING}"]),
        ({"mps": "false"}, [f"annotation mps {NOTHING}"]),
        ({"gpu-memory": "5", "mps": "false", "gpu-fraction-container-name": "main"}, []),
        ({"gpu-fraction": "0.5", "mps": "true", "gpu-fraction-num-devices": "64"}, []),
        ({}, []),
    ],
)
def test_sharing_annotations_without_effect_give_a_warning(annotations: Raw, warnings: list[str]) -> None:
    desk = Desk()

    prepared = desk.stored(new_pod(container(), meta=QUEUE | {"annotations": annotations}))

    assert desk.warnings("Pod", prepared) == warnings


@pytest.mark.parametrize(
    ("annotations", "names", "told"),
    [
        ({}, "NVIDIA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES of container 'main' will be replaced by Leeboard"),
        ({}, "GPU_MEMORY_MIB GPU_PORTION MINE", "GPU_PORTION and GPU_MEMORY_MIB of container 'main' will be"),
        ({"mps": "true"}, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of container 'main'"),
        ({}, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""),
        ({}, "MINE", ""),
    ],
)
def test_replaced_environment_variables_give_one_warning(annotations: Raw, names: str, told: str) -> None:
    desk, env = Desk(), [{"name": name, "value": "all"} for name in names.split()]
    other = container("other") | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}
    raw = new_pod(
        container() | {"env": env}, other, meta=QUEUE | {"annotations": {"gpu-fraction": "0.5"} | annotations}
    )

    answer, again = desk.mutate(raw), desk.mutate(desk.stored(raw))

    assert isinstance(answer, Admitted)
    assert isinstance(again, Admitted)
    assert [warning.startswith(told) for warning in answer.warnings] == ([True] if told else [])
    assert again.warnings == ()


def test_a_pod_that_shares_no_gpu_gets_no_warning_about_its_variables() -> None:
    answer = Desk().mutate(new_pod(container() | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}))

    assert isinstance(answer, Admitted)
    assert answer.warnings == ()


def test_nothing_is_reported_as_missing_before_the_cluster_is_known() -> None:
    desk = Desk()
    desk.unready.why = "queues are not listed yet"

    assert desk.warnings("Pod", new_pod(meta={"labels": {"kai.scheduler/queue": "r"}})) == []
    assert desk.warnings("Queue", queue("q"), operation="DELETE") == []


@pytest.mark.parametrize(
    ("labels", "warned"), [({"kai.scheduler/queue": "r"}, True), ({"kai.scheduler/queue": "q"}, False), ({}, True)]
)
def test_a_new_queue_label_on_a_pod_whose_queue_is_fixed_gives_a_warning_that_it_changes_nothing(
    labels: dict[str, str], *, warned: bool
) -> None:
    desk = Desk()
    old = raw_pod(container(), meta=QUEUE | {"annotations": {"leeboard.dev/queue": "q"}})
    new = old | {"metadata": old["metadata"] | {"labels": labels}}

    found = desk.warnings("Pod", new, **changed(old))

    said = "the pod stays in queue 'q', whatever its labels say; to use another queue, create the pod again"
    assert found == ([said] if warned else [])


def test_a_new_queue_label_on_a_pod_that_waits_for_bind_moves_the_pod() -> None:
    old, new = (raw_pod(container(), meta={"labels": {"kai.scheduler/queue": name}}) for name in ("q", "r"))

    assert Desk().warnings("Pod", new, **changed(old)) == []
