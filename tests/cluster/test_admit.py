"""The changes that a new managed pod needs, as a patch that the API server can apply."""

from collections.abc import Iterable
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.admit import environment, shape
from app.cluster.admit.patch import pointer
from app.cluster.decode.environment import sharing_container, shows_devices
from app.cluster.decode.sharing import asks_for_part
from app.model.admission import PatchOperation
from app.model.marks import ASK_MARKER, BIND_MARKER, GATE, PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION
from app.model.names import QueueName
from tests.cluster.patched import patched
from tests.cluster.raw import Raw, container, raw_pod

MARKERS = frozenset({ASK_MARKER, BIND_MARKER})
BOTH = {ASK_MARKER: "0", BIND_MARKER: "0"}
OURS, THEIRS, OTHERS = {"name": GATE}, {"name": "a.b/c"}, {"name": "d"}
DEVICES: Raw = environment.from_annotation("NVIDIA_VISIBLE_DEVICES", "leeboard.dev/devices")
PORTION: Raw = environment.from_annotation("GPU_PORTION", "leeboard.dev/portion")
MEMORY: Raw = environment.from_annotation("GPU_MEMORY_MIB", "leeboard.dev/memory-mib")
MPS_LIMIT: Raw = environment.from_annotation("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "leeboard.dev/mps-memory")
OURS_IN_FRONT = [DEVICES, PORTION, MEMORY]
PLAIN = {"name": "A", "value": "$(GPU_PORTION)"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def spec_after(raw: Raw, changes: Iterable[PatchOperation]) -> Raw:
    spec: Raw = patched(raw, changes)["spec"]
    return spec


def sharing(*containers: Raw, **annotations: str) -> Raw:
    return raw_pod(*containers, meta={"annotations": {"gpu-fraction": "0.5"} | annotations})


def test_keys_are_escaped_as_in_json_pointers() -> None:
    assert pointer("a/b", 0, "~1", "") == "/a~1b/0/~01/"


@pytest.mark.parametrize("spec", [{}, {"schedulingGates": None}, {"schedulingGates": []}])
def test_a_pod_without_scheduling_gates_gets_ours(spec: Raw) -> None:
    raw = raw_pod(**spec)

    assert spec_after(raw, shape.held(raw))["schedulingGates"] == [OURS]


@pytest.mark.parametrize(
    ("gates", "held", "released"),
    [
        ([OURS], [OURS], None),
        ([THEIRS], [THEIRS, OURS], [THEIRS]),
        ([OURS, THEIRS], [OURS, THEIRS], [THEIRS]),
        ([THEIRS, OURS, OTHERS], [THEIRS, OURS, OTHERS], [THEIRS, OTHERS]),
        ([OURS, THEIRS, OURS], [OURS, THEIRS, OURS], [THEIRS]),
    ],
)
def test_gates_of_others_stay_and_ours_is_never_added_twice(gates: list[Raw], held: object, released: object) -> None:
    raw = raw_pod(schedulingGates=gates)

    assert spec_after(raw, shape.held(raw)).get("schedulingGates") == held
    assert spec_after(raw, shape.released(raw)).get("schedulingGates") == released


def test_a_priority_class_is_set_and_the_resolved_priority_is_removed() -> None:
    raw = raw_pod(priorityClassName="other", priority=5, preemptionPolicy="Never")

    after = spec_after(raw, shape.priority(raw, "train"))

    assert after == raw_pod(priorityClassName="train")["spec"]


def test_an_unchanged_priority_class_stays_as_the_api_server_resolved_it() -> None:
    assert list(shape.priority(raw_pod(priorityClassName="train", priority=50), "train")) == []


@pytest.mark.parametrize(
    ("resources", "after"),
    [
        (None, {"requests": BOTH, "limits": BOTH}),
        ({}, {"requests": BOTH, "limits": BOTH}),
        ({"requests": None, "limits": {}}, {"requests": BOTH, "limits": BOTH}),
        ({"limits": {"cpu": "1"}}, {"requests": BOTH, "limits": {"cpu": "1"} | BOTH}),
        ({"requests": {"cpu": "1"}, "claims": []}, {"requests": {"cpu": "1"} | BOTH, "limits": BOTH, "claims": []}),
    ],
)
def test_the_first_container_requests_the_markers(resources: object, after: Raw) -> None:
    raw = raw_pod({"name": "main", "resources": resources}, container("second"), resources={"limits": {"cpu": "2"}})

    spec = spec_after(raw, shape.markers(raw, MARKERS))

    assert spec == raw["spec"] | {"containers": [{"name": "main", "resources": after}, container("second")]}


def test_markers_that_a_container_already_requests_are_not_added() -> None:
    raw = raw_pod(container(), container("asking", limits=dict(BOTH)))

    assert list(shape.markers(raw, MARKERS)) == []


def test_markers_that_only_an_init_container_requests_are_added() -> None:
    raw = raw_pod(container("main"), initContainers=[container("asking", limits=dict(BOTH))])

    (main,) = spec_after(raw, shape.markers(raw, MARKERS))["containers"]

    assert main["resources"]["requests"].items() >= BOTH.items()


def test_a_marker_is_removed_from_every_container_and_nothing_else_is() -> None:
    def asking() -> Raw:
        return {"name": "asking", "resources": {"requests": dict(BOTH), "limits": BOTH | {"cpu": "1"}}}

    raw = raw_pod(container(), asking(), initContainers=[asking()])

    after = spec_after(raw, shape.unmarked(raw, BIND_MARKER))

    rest = {"requests": {ASK_MARKER: "0"}, "limits": {ASK_MARKER: "0", "cpu": "1"}}
    assert after == raw["spec"] | {
        "containers": [container(), asking() | {"resources": rest}],
        "initContainers": [asking() | {"resources": rest}],
    }
    assert list(shape.unmarked(raw | {"spec": after}, BIND_MARKER)) == []


STAMPS = {PREEMPTIBLE_ANNOTATION: "true", QUEUE_ANNOTATION: "q"}


@pytest.mark.parametrize(
    "annotations", [None, {}, {"mine": "1"}, {PREEMPTIBLE_ANNOTATION: "false", QUEUE_ANNOTATION: "theirs"}, "garbage"]
)
def test_a_pod_that_kube_scheduler_binds_is_stamped_and_forged_stamps_are_replaced(annotations: object) -> None:
    raw = {"metadata": {"name": "p"} | ({} if annotations is None else {"annotations": annotations}), "spec": {}}

    after = patched(raw, shape.stamped(raw, QueueName("q")))

    kept = annotations if isinstance(annotations, dict) else {}
    assert after["metadata"] == {"name": "p", "annotations": kept | STAMPS}
    assert list(shape.stamped(after, QueueName("q"))) == []


HALF = {"annotations": {"gpu-fraction": "0.5"}}


@pytest.mark.parametrize(
    "raw",
    [
        raw_pod(container(gpu="1")),
        raw_pod({"name": "main"}, container("second", limits={"nvidia.com/gpu": "8"})),
        raw_pod(container(), initContainers=[container("i", limits={"nvidia.com/mig-1g.10gb": "1"})]),
        raw_pod(container(), meta=HALF),
        raw_pod(container(), meta={"annotations": {"gpu-memory": "4096"}}),
        raw_pod(container(gpu="1"), runtimeClassName=""),
    ],
)
def test_a_pod_with_gpus_and_no_runtime_class_gets_one(raw: Raw) -> None:
    assert spec_after(raw, shape.runtime(raw, "nvidia")) == raw["spec"] | {"runtimeClassName": "nvidia"}
    assert list(shape.runtime(raw, "")) == []


@pytest.mark.parametrize(
    "raw",
    [
        raw_pod(container(gpu="1"), meta=HALF, runtimeClassName="kata"),
        raw_pod(container(cpu="1")),
        raw_pod(container(gpu="0", limits={"nvidia.com/gpu": "0"})),
        raw_pod(container(limits={"amd.com/gpu": "1", "nvidia.com/gpus": "1"})),
        raw_pod(container(), meta={"annotations": {"gpu-fraction-num-devices": "2"}}),
        raw_pod({"name": "main", "resources": {"limits": None, "requests": ["nvidia.com/gpu"]}}),
    ],
)
def test_a_pod_with_a_runtime_class_or_without_gpus_is_not_changed(raw: Raw) -> None:
    assert list(shape.runtime(raw, "nvidia")) == []


@pytest.mark.parametrize(
    ("env", "after"),
    [
        (None, OURS_IN_FRONT),
        ([], OURS_IN_FRONT),
        ([PLAIN], [*OURS_IN_FRONT, PLAIN]),
        ([ALL, PLAIN, ALL], [*OURS_IN_FRONT, PLAIN]),
        ([ALL, {"name": "GPU_MEMORY_MIB", "value": "81920"}], OURS_IN_FRONT),
        ([PLAIN, PORTION, DEVICES, MEMORY], [PLAIN, PORTION, DEVICES, MEMORY]),
        ([PORTION, PLAIN, PORTION, ALL], [DEVICES, MEMORY, PORTION, PLAIN]),
        ([ALL | DEVICES], OURS_IN_FRONT),
        ([MPS_LIMIT | {"value": "0=1G"}], [*OURS_IN_FRONT, MPS_LIMIT | {"value": "0=1G"}]),
    ],
)
def test_the_sharing_container_gets_its_devices_only_from_leeboard(env: object, after: list[Raw]) -> None:
    raw = sharing({"name": "main", "env": env}, {"name": "second", "env": [ALL]})

    first, second = spec_after(raw, environment.devices(raw))["containers"]

    assert (first["env"], second["env"]) == (after, [ALL])


@pytest.mark.parametrize(("said", "limits"), [("true", [MPS_LIMIT]), ("false", []), ("True", []), ("", [])])
def test_only_a_container_that_uses_mps_gets_its_memory_limit(said: str, limits: list[Raw]) -> None:
    raw = sharing({"name": "main", "env": [PLAIN]}, mps=said)

    (main,) = spec_after(raw, environment.devices(raw))["containers"]

    assert main["env"] == [*OURS_IN_FRONT, *limits, PLAIN]


def test_leeboard_alone_sets_the_mps_limit() -> None:
    raw = sharing({"name": "main", "env": [{"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=80G"}]}, mps="true")

    (main,) = spec_after(raw, environment.devices(raw))["containers"]

    assert main["env"] == [*OURS_IN_FRONT, MPS_LIMIT]


def test_a_number_of_devices_without_a_share_changes_nothing() -> None:
    raw = raw_pod({"name": "main", "env": [ALL]}, meta={"annotations": {"gpu-fraction-num-devices": "2"}})

    assert list(environment.devices(raw)) == []


def test_a_reference_without_its_version_is_ours_too() -> None:
    paths = {
        "NVIDIA_VISIBLE_DEVICES": "leeboard.dev/devices",
        "GPU_PORTION": "leeboard.dev/portion",
        "GPU_MEMORY_MIB": "leeboard.dev/memory-mib",
    }
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{path}']"}}}
        for name, path in paths.items()
    ]

    assert list(environment.devices(sharing({"name": "main", "env": env}))) == []


@pytest.mark.parametrize(("wanted", "kind", "position"), [("b", "containers", 1), ("i", "initContainers", 0)])
def test_the_sharing_container_may_be_named(wanted: str, kind: str, position: int) -> None:
    annotations = {"gpu-memory": "5", "gpu-fraction-container-name": wanted}
    raw = raw_pod({"name": "a"}, {"name": "b"}, meta={"annotations": annotations}, initContainers=[{"name": "i"}])

    after = spec_after(raw, environment.devices(raw))

    assert after[kind][position]["env"] == OURS_IN_FRONT
    assert sum("env" in one for one in [*after["containers"], *after["initContainers"]]) == 1


def test_a_pod_that_requests_no_gpu_share_keeps_its_environment() -> None:
    assert list(environment.devices(raw_pod({"name": "main", "env": [ALL]}))) == []


@pytest.mark.parametrize("value", [None, [], "text", 3, {"containers": [1], "schedulingGates": 5}])
def test_a_spec_that_no_api_server_sends_needs_no_patch(value: object) -> None:
    raw = sharing(container()) | {"spec": value}

    assert list(chain(shape.released(raw), shape.markers(raw, MARKERS), environment.devices(raw))) == []
    assert list(shape.unmarked(raw, BIND_MARKER)) == []
    assert list(shape.runtime(raw_pod() | {"spec": value}, "nvidia")) == []


# Admission and the decoder of pods understand the same environment.


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ([DEVICES], True),
        ([PLAIN, DEVICES], True),
        ([ALL, DEVICES], True),
        ([DEVICES, ALL], False),
        ([ALL], False),
        ([PORTION], False),
        ([environment.from_annotation("NVIDIA_VISIBLE_DEVICES", "mine")], False),
        ([], False),
        (None, False),
        ([DEVICES, 5], False),
    ],
)
def test_the_last_variable_of_the_sharing_container_decides_what_it_sees(env: object, shown: object) -> None:
    raw = raw_pod({"name": "main", "env": env}, {"name": "second", "env": [ALL]})
    other = raw_pod({"name": "other", "env": [ALL]}, {"name": "main", "env": env})

    assert shows_devices(raw["spec"], {"gpu-fraction": "0.5"}) is shown
    assert shows_devices(other["spec"], {"gpu-memory": "5", "gpu-fraction-container-name": "main"}) is shown
    assert not shows_devices(raw["spec"], {"gpu-memory": "5", "gpu-fraction-container-name": "nobody"})


ENTRIES = st.sampled_from([DEVICES, PORTION, PLAIN, ALL, {"name": "GPU_PORTION"}, {"name": "B", "value": "~/"}])
AMOUNTS = st.none() | st.dictionaries(st.sampled_from([ASK_MARKER, BIND_MARKER, "cpu", "nvidia.com/gpu"]), st.just("1"))
RESOURCES = st.none() | st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from("abc")}, optional={"env": st.none() | st.lists(ENTRIES), "resources": RESOURCES}
)
SPEC = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINER, min_size=1, max_size=3)},
    optional={
        "initContainers": st.none() | st.lists(CONTAINER, max_size=2),
        "schedulingGates": st.none() | st.lists(st.sampled_from([OURS, THEIRS, OTHERS]), max_size=4),
        "runtimeClassName": st.none() | st.sampled_from(["", "kata"]),
        "schedulerName": st.sampled_from(["", "default-scheduler", "kai-scheduler"]),
        "priority": st.none() | st.integers(),
        "priorityClassName": st.sampled_from(["train", "other"]),
        "preemptionPolicy": st.just("Never"),
    },
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name", "mps"]),
    st.sampled_from(["0.5", "a", "b", "c", "none", "true"]),
)


def changes(raw: Raw, gate: str) -> list[PatchOperation]:
    gates = shape.held(raw) if gate == "held" else shape.released(raw)
    owned = shape.scheduler(raw, "kai-scheduler"), shape.priority(raw, "train"), shape.runtime(raw, "nvidia")
    return list(chain(*owned, shape.markers(raw, MARKERS), environment.devices(raw), gates))


@settings(deadline=None)
@given(spec=SPEC, annotations=ANNOTATIONS, gate=st.sampled_from(["held", "released"]))
def test_the_patch_applies_to_any_pod_and_its_result_needs_no_other(spec: Raw, annotations: Raw, gate: str) -> None:
    raw = {"metadata": {"name": "p", "annotations": annotations}, "spec": spec}

    after = patched(raw, changes(raw, gate))

    assert changes(after, gate) == []
    assert (OURS in (after["spec"].get("schedulingGates") or [])) is (gate == "held")
    if asks_for_part(annotations) and sharing_container(spec, annotations):
        assert shows_devices(after["spec"], annotations)
