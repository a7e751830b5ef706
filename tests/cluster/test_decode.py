"""The decoder of pods: requests, ownership, constraints and state."""

from copy import deepcopy
from math import inf
from typing import Any

import pytest

from app.cluster import decode
from app.cluster.decode.pods import USUAL_RULES, Rules
from app.model.marks import ASK_MARKER, BIND_MARKER, GATE
from app.model.names import GroupKey, NodeName
from app.model.pod import Constraint, Operator, Pod, Requirement, Sharing, Toleration
from app.model.reason import PHRASE_MARK, UNREADY, Reason, phrase
from app.model.resources import MAX_AMOUNT, Resources
from tests.cluster.raw import GIB, PROFILES, Raw, container, labelled, pod, raw_pod
from tests.cluster.steps import steps

# -- requests


def test_requests_of_containers_add_up_and_count_one_pod() -> None:
    both = pod(container(cpu="1500m", memory="1Gi", gpu="2"), container("log", cpu="0.1"))

    assert both.request == Resources(cpu_milli=1600, memory_bytes=GIB, gpu_milli=2000, pods=1)
    assert not both.problem


def test_the_largest_init_container_counts_if_it_requests_more_than_the_containers() -> None:
    asked = pod(container(cpu="1", memory="3Gi"), initContainers=[container("load", cpu="4", memory="1Gi")])

    assert asked.request == Resources(cpu_milli=4000, memory_bytes=3 * GIB, pods=1)


def test_sidecars_count_beside_later_init_containers_only() -> None:
    sidecar = container("proxy", cpu="1") | {"restartPolicy": "Always"}
    before, after = container("before", cpu="5"), container("after", cpu="5")

    assert pod(container(cpu="2"), initContainers=[sidecar]).request.cpu_milli == 3000
    assert pod(container(cpu="2"), initContainers=[before, sidecar]).request.cpu_milli == 5000
    assert pod(container(cpu="2"), initContainers=[sidecar, after]).request.cpu_milli == 6000


def test_pod_level_requests_override_and_overhead_is_added() -> None:
    asked = pod(
        container(cpu="1", memory="1Gi", gpu="1"),
        resources={"requests": {"cpu": "4"}},
        overhead={"cpu": "250m", "memory": "1Gi"},
    )

    assert asked.request == Resources(cpu_milli=4250, memory_bytes=2 * GIB, gpu_milli=1000, pods=1)


def test_limits_replace_missing_requests() -> None:
    assert pod(container(cpu="1", limits={"cpu": "9", "nvidia.com/gpu": "3"})).request == Resources(
        cpu_milli=1000, gpu_milli=3000, pods=1
    )


def test_a_shrinking_resize_releases_nothing_before_it_is_done() -> None:
    held = {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "8"}}]}

    assert pod(container(cpu="2"), status=held).request.cpu_milli == 8000


def resized(asked: str, held: str | None, done: str, *, reason: str = "") -> Raw:
    """Return the status of a container, and of a pod, with this judgement of the kubelet on its resize."""
    allocated = {"allocatedResources": {"cpu": held}} if held else {}
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return allocated | {"resources": {"requests": {"cpu": done}}, "conditions": conditions, "asked": asked}


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        (resized("2", "8", "8"), 8),
        (resized("2", "2", "8"), 8),
        (resized("2", None, "8"), 8),
        (resized("2", "2", "2"), 2),
        (resized("60", "2", "2"), 60),
        (resized("60", "2", "2", reason="Deferred"), 60),
        (resized("60", "2", "2", reason="Infeasible"), 2),
        (resized("60", "2", "8", reason="Infeasible"), 8),
    ],
)
def test_allocated_and_requested_amounts_of_a_resize_are_charged_as_kube_scheduler_does(status: Raw, cpu: int) -> None:
    asked, conditions = status.pop("asked"), status.pop("conditions")
    of_container = {"containerStatuses": [{"name": "main"} | status], "conditions": conditions}
    of_sidecar = {"initContainerStatuses": [{"name": "side"} | status], "conditions": conditions}
    sidecar = container("side", cpu=asked) | {"restartPolicy": "Always"}

    by_container = pod(container(cpu=asked, gpu="1"), status=of_container)
    by_sidecar = pod(container(gpu="1"), initContainers=[sidecar], status=of_sidecar)
    by_pod = pod(container(gpu="1"), resources={"requests": {"cpu": asked}}, status=status | {"conditions": conditions})

    wanted = Resources(cpu_milli=cpu * 1000, gpu_milli=1000, pods=1)
    assert (by_container.request, by_sidecar.request, by_pod.request) == (wanted, wanted, wanted)


@pytest.mark.parametrize(
    ("labels", "status", "names_gpus"),
    [
        ({}, {"capacity": {"cpu": "1", "hugepages-2Mi": "0", "rdma/hca": "1"}}, False),
        ({"nvidia.com/gpu.present": "true"}, {"capacity": {"cpu": "1"}}, True),
        ({}, {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "0"}}, True),
        ({}, {"capacity": {"nvidia.com/mig-1g.10gb": "7"}, "allocatable": {"nvidia.com/mig-1g.10gb": "0"}}, True),
        ({}, {"allocatable": {"amd.com/gpu": "0"}}, True),
        ({}, {"capacity": 7}, False),
    ],
)
def test_a_node_names_its_gpus_when_none_is_allocatable(labels: Raw, status: Raw, *, names_gpus: bool) -> None:
    raw = {"metadata": {"name": "n", "uid": "u", "labels": labels}, "status": status}

    assert decode.node(raw).names_gpus is names_gpus


def test_an_unreadable_amount_is_a_problem_and_the_rest_is_charged() -> None:
    bound = pod(container(cpu="1x", gpu="2"), nodeName="n1")

    assert bound.request == Resources(gpu_milli=2000, pods=1)
    assert bound.problem == (
        "cpu of 'main' cannot be read: '1x' is not a Kubernetes quantity; write a number such as 2, 500m or 16Gi"
    )


def test_a_gpu_share_is_not_counted_as_a_resource_request() -> None:
    assert "not a whole number of GPUs" in pod(container(gpu="500m")).problem


def test_excessive_requests_of_all_containers_are_capped_and_refused() -> None:
    huge = pod(*(container(memory=str(MAX_AMOUNT)) for _ in range(3)))

    assert huge.request.memory_bytes == MAX_AMOUNT
    assert "together ask for more" in huge.problem


def test_extended_resources_add_up_like_all_others() -> None:
    mig, rdma = "nvidia.com/mig-1g.5gb", "rdma/hca"
    held = {"containerStatuses": [{"name": "main", "allocatedResources": {rdma: "4"}}]}
    asked = pod(
        container(cpu="1", limits={mig: "1", rdma: "1", "ephemeral-storage": "1Gi"}),
        container("log", limits={rdma: "1", "x.kubernetes.io/y": "1"}),
        initContainers=[container("load", limits={mig: "3"})],
        status=held,
    )

    assert (asked.scalars, asked.request) == (((mig, 3), (rdma, 5)), Resources(cpu_milli=1000, pods=1))
    assert (asked.problem, pod(container(cpu="1")).scalars, pod(container(limits={rdma: "0"})).scalars) == ("", (), ())


def test_pods_of_one_template_share_their_decoded_requests() -> None:
    one, other = (pod(container(limits={"rdma/hca": "1"})) for _ in range(2))

    assert one.scalars is other.scalars


def test_our_markers_do_not_count_as_requests() -> None:
    marked = pod(container(limits={ASK_MARKER: "1", BIND_MARKER: "1", "nvidia.com/gpu": "1"}))

    assert (marked.scalars, marked.request.gpu_milli, marked.problem) == ((), 1000, "")


def test_an_unreadable_extended_resource_is_a_problem_and_so_are_too_many() -> None:
    assert pod(container(limits={"a.b/c": "-1"})).problem.startswith("a.b/c of 'main' cannot be read: '-1' is negative")

    many = pod(container(limits={f"a.b/{number}": "1" for number in range(33)}))
    assert (len(many.scalars), many.problem) == (
        32,
        "its containers ask for more than 32 extended resources; ask for fewer",
    )


def sharer(annotations: Raw, **spec: Any) -> Raw:
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['leeboard.dev/devices']"}}
    prepared = container() | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": reference}]}
    return raw_pod(prepared, meta={"annotations": annotations}, **spec)


def read(raw: Raw, *, rules: Rules = USUAL_RULES) -> Pod:
    return decode.pod(raw, profiles=PROFILES, rules=rules)


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600.0), ("1h30m", 5400.0), ("0s", 0.0), ("soon", inf), (5, inf)])
def test_the_time_between_checkpoints_is_read_from_an_annotation(text: object, seconds: float) -> None:
    annotation = "workload.leeboard.dev/checkpoint-interval"

    found = pod(container(), meta={"annotations": {annotation: text}})

    assert found.checkpoint_s == seconds
    assert not found.problem
    assert pod(container()).checkpoint_s == inf


def test_a_gpu_share_is_read_from_annotations() -> None:
    found = [read(sharer({name: value})) for name, value in (("gpu-fraction", "0.5"), ("gpu-memory", "2000"))]

    assert [(one.sharing, one.problem) for one in found] == [
        (Sharing(portion_ppm=500_000), ""),
        (Sharing(memory_mib=2000), ""),
    ]


def test_a_pod_that_would_not_see_its_gpu_share_is_refused_with_a_message() -> None:
    assert pod(container(), meta={"annotations": {"gpu-fraction": "0.5"}}).problem == (
        "it requests a part of a GPU, but its container lacks the variables that Leeboard's admission webhook adds;"
        " create it again while the webhook runs"
    )


def test_gpu_shares_are_refused_where_sharing_is_off() -> None:
    found = read(sharer({"gpu-fraction": "0.5"}), rules=Rules(is_offered=False))

    assert found.problem == "GPU sharing is disabled (annotation gpu-fraction); ask for whole GPUs with nvidia.com/gpu"


def test_the_assigned_gpus_of_a_pod_are_believed_once_it_is_bound() -> None:
    told = {"gpu-fraction": "0.5", "leeboard.dev/devices": "GPU-1", "leeboard.dev/device-groups": "g"}
    waiting, bound = read(sharer(told)), read(sharer(told, nodeName="n"))

    assert [(one.devices, one.device_uuids) for one in (waiting, bound)] == [((), ()), (("g",), ("GPU-1",))]


FORGED = [
    {"devices": "GPU-1", "device-groups": "g,g"},
    {"devices": "GPU-1,GPU-2", "device-groups": "g,g"},
    {"devices": "GPU-1", "device-groups": "g,h"},
    {"devices": "GPU-1"},
    {"device-groups": "g"},
    {"devices": "", "device-groups": "g"},
    {"devices": "GPU-1,", "device-groups": "g,h"},
    {"devices": "GPU-1", "device-groups": "g" * 64},
    {"devices": "G" * 262_144, "device-groups": "g"},
    {"devices": "GPU-1", "device-groups": "a b"},
    {"devices": "," * 100_000, "device-groups": "," * 100_000},
    {"devices": ["GPU-1"], "device-groups": ["g"]},
]


@pytest.mark.parametrize("forged", FORGED)
def test_assigned_gpus_that_bind_cannot_have_written_are_not_believed(forged: dict[str, object]) -> None:
    told = {f"leeboard.dev/{name}": value for name, value in forged.items()}
    found = read(sharer({"gpu-fraction": "0.5", **told}, nodeName="n"))

    assert (found.devices, found.device_uuids, found.sharing) == ((), (), Sharing(portion_ppm=500_000))


def test_a_running_pod_keeps_its_gpu_share_although_other_fields_are_unreadable() -> None:
    told = {"gpu-fraction": "0.5", "leeboard.dev/devices": "GPU-1", "leeboard.dev/device-groups": "g"}

    found = read(sharer(told | {"pod-group-name": "g" * 300}, nodeName="n"))

    assert (found.devices, found.sharing) == (("g",), Sharing(portion_ppm=500_000))
    assert "300 characters" in found.problem


def test_a_reservation_pod_belongs_to_no_queue_and_takes_no_gpu_beside_the_shared_one() -> None:
    place, kais = {"namespace": "kai-resource-reservation"}, {"runai-gpu-group": "g"}
    labels = {"app.kubernetes.io/managed-by": "leeboard", **kais}
    metas: list[Raw] = [{**place, "labels": labels}, {**place, "labels": kais}, {"labels": labels}]

    ours, theirs, elsewhere = (pod(container(gpu="1"), meta=meta) for meta in metas)

    assert [(one.reserves, one.managed, one.request.gpu_milli) for one in (ours, theirs, elsewhere)] == [
        ("g", False, 0),
        ("", True, 1000),
        ("", True, 1000),
    ]


# -- queue, PodGroup and priority


def test_the_queue_is_found_as_in_kai() -> None:
    assert labelled(queue="a", legacy="b", project="c").queue == "a"
    assert labelled(legacy="b", project="c").queue == "b"
    assert labelled(project="c").queue == "c"
    assert labelled(project="c", pool="big").queue == "c-big"
    assert labelled(pool="big").queue == "default-queue"


def test_a_pod_of_another_scheduler_is_charged_only_to_a_queue_it_names() -> None:
    foreign = raw_pod(schedulerName="default-scheduler", meta={"labels": {"project": "c"}})
    naming = raw_pod(schedulerName="default-scheduler", meta={"labels": {"kai.scheduler/queue": "a"}})

    assert [decode.pod(raw, profiles=PROFILES).queue for raw in (foreign, naming)] == ["", "a"]
    assert not decode.pod(foreign, profiles=PROFILES).managed


def test_a_managed_pod_stays_managed_when_it_is_bound() -> None:
    bound = pod(nodeName="n1")

    assert (bound.managed, bound.node) == (True, NodeName("n1"))


@pytest.mark.parametrize(("value", "started"), [("true", True), ("false", False), ("True", False), (True, False)])
def test_a_bound_pod_records_whether_it_was_started_as_preemptible(value: object, started: bool) -> None:  # noqa: FBT001 # a parameter of the test
    meta = {"annotations": {"leeboard.dev/preemptible": value}}

    assert pod(meta=meta, nodeName="n1").started_preemptible is started
    assert not pod(meta=meta).started_preemptible


@pytest.mark.parametrize("name", [None, "", 7, "kai-scheduler", "default-scheduler", "other"])
@pytest.mark.parametrize("profile", ["kai-scheduler", "default-scheduler"])
def test_a_pod_names_a_profile_if_it_is_managed_there(name: object, profile: str) -> None:
    raw, profiles = raw_pod(container(), schedulerName=name), frozenset({profile})

    assert decode.names_profile(raw, profiles) == decode.pod(raw, profiles=profiles).managed


MARKED = Rules(marks_binds=True)


def test_where_binds_are_marked_kube_scheduler_binds_a_pod_without_the_marker() -> None:
    marked, bare = (raw_pod(container(limits=limits)) for limits in ({BIND_MARKER: "1"}, {}))
    inside = raw_pod(container(), initContainers=[container("i", limits={BIND_MARKER: "1"})])
    others = raw_pod(container(), schedulerName="default-scheduler")

    found = [read(raw, rules=MARKED).binds_elsewhere for raw in (marked, inside, bare, others)]

    assert found == [False, False, True, False]
    assert not read(bare).binds_elsewhere


def test_a_pod_that_kube_scheduler_binds_is_preemptible_from_its_creation() -> None:
    meta = {"annotations": {"leeboard.dev/preemptible": "true"}}
    bare, marked = raw_pod(container(), meta=meta), raw_pod(container(limits={BIND_MARKER: "1"}), meta=meta)

    assert [read(raw, rules=MARKED).started_preemptible for raw in (bare, marked)] == [True, False]


def test_a_pod_with_a_gpu_share_and_without_the_marker_is_refused() -> None:
    raw = sharer({"gpu-fraction": "0.5"})
    running = sharer({"gpu-fraction": "0.5"}, nodeName="n1")

    assert read(raw, rules=MARKED).problem.startswith(
        "it requests a part of a GPU, but its container lacks the variables"
    )
    assert (read(raw).problem, read(running, rules=MARKED).problem) == ("", "")


def test_a_pod_is_its_own_podgroup_unless_it_names_one_of_its_namespace() -> None:
    member, alone = pod(meta={"annotations": {"pod-group-name": "gang"}}), pod()

    assert (member.group, member.names_group) == (GroupKey("team", "gang"), True)
    assert (alone.group, alone.names_group) == (GroupKey("team", "u1"), False)


def test_a_podgroup_name_longer_than_any_object_name_is_not_kept() -> None:
    absurd = pod(meta={"annotations": {"pod-group-name": "x" * 100_000}})

    assert not absurd.names_group
    assert "a name has at most 253" in absurd.problem


def test_the_priority_class_in_the_label_overrides_the_one_in_the_spec() -> None:
    both = pod(meta={"labels": {"priorityClassName": "build"}}, priorityClassName="train", priority=50)

    assert (both.priority_classes, both.spec_priority) == (("build", "train"), 50)
    assert pod(priorityClassName="train").priority_classes == ("train",)


def test_preemptibility_is_explicit_only_with_one_of_the_values_of_kai() -> None:
    words = ("preemptible", "non-preemptible", "Preemptible", "")
    pods = [pod(meta={"labels": {"kai.scheduler/preemptibility": word}}) for word in words]

    assert [each.explicit_preemptible for each in pods] == [True, False, None, None]
    assert not any(each.problem for each in pods)


def test_task_priority_and_subgroup_are_read_from_labels() -> None:
    member = labelled(**{"kai.scheduler/task-priority": "7", "kai.scheduler/subgroup-name": "workers"})

    assert (member.task_priority, member.subgroup) == (7, "workers")
    assert "is not an integer" in labelled(**{"kai.scheduler/task-priority": "1_0"}).problem


# -- constraints


def test_selector_affinity_and_tolerations_become_one_shared_constraint() -> None:
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}]},
            {},
        ]
    }
    wishes = {
        "nodeSelector": {"pool": "a"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, {"key": "x", "value": "y"}],
    }

    one, other = pod(**deepcopy(wishes)), pod(**deepcopy(wishes))

    assert one.constraint is other.constraint
    assert one.constraint == Constraint(
        (("pool", "a"),),
        (
            (Requirement("gpu", Operator.IN, ("h100",)),),
            (Requirement("metadata.name", Operator.NOT_IN, ("n9",)),),
            (),
        ),
        (Toleration("gpu", "Exists", "", "NoSchedule"), Toleration("x", "Equal", "y", "")),
    )


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ({"key": "a", "operator": "Near"}, "operator 'Near'; write one of In, NotIn"),
        *(
            (
                {"key": "a", "operator": "Gt", "values": [bound]},
                "compare it to one 64-bit integer, written in digits only",
            )
            for bound in ("1_0", "-1", "+5", "", "9223372036854775808", "0" * 63 + "1")
        ),
        ({"key": "a", "operator": "In"}, "write at least one"),
        ({"key": "metadata.name", "operator": "Exists"}, "use matchFields"),
    ],
)
def test_an_unreadable_affinity_is_a_problem(requirement: Raw, problem: str) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    assert problem in pod(affinity=affinity).problem


@pytest.mark.parametrize("bound", ["0", "007", "9223372036854775807", "0" * 62 + "1"])
def test_a_label_is_compared_to_any_value_that_is_an_integer_and_a_label_value(bound: str) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Lt", "values": [bound]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    assert not pod(affinity=affinity).problem


# -- state


def test_a_refusal_of_leeboard_is_recognized_by_its_phrase() -> None:
    def parked(message: str, reason: str = "Unschedulable") -> tuple[bool, bool]:
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        seen = pod(status={"conditions": [{"type": "Ready"}, condition]})
        return seen.said.by_us, seen.said.by_scheduler

    assert parked(f"0/3 nodes: {phrase(Reason.OVER_LIMIT)}") == (True, False)
    assert parked("0/3 nodes are available: 3 Insufficient cpu") == (False, True)
    assert parked("x", reason="SchedulingGated") == (False, False)
    assert parked("no nodes available to schedule pods") == (False, False)


@pytest.mark.parametrize(
    ("status", "reason", "message", "failed"),
    [
        ("False", "SchedulerError", 'running Bind plugin "B": pods "p" is forbidden: no.', 'pods "p" is forbidden: no'),
        ("False", "SchedulerError", 'running Bind plugin "B": read: connection reset by peer', ""),
        ("False", "SchedulerError", 'running PreBind plugin "P": timed out', 'running PreBind plugin "P": timed out'),
        ("False", "SchedulerError", 'Post "http://127.0.0.1:8888/filter": context deadline exceeded', ""),
        ("False", "SchedulerError", f"extender: {UNREADY}", ""),
        ("False", "Unschedulable", 'running Bind plugin "B": p is forbidden', ""),
        ("True", "", 'running Bind plugin "B": p is forbidden', ""),
    ],
)
def test_conditions_that_surely_ended_an_attempt_of_kube_scheduler_are_recognized(
    status: str, reason: str, message: str, failed: str
) -> None:
    condition = {"type": "PodScheduled", "status": status, "reason": reason, "message": message}

    seen = pod(status={"conditions": [condition]})

    assert (seen.said.attempt_failed, seen.said.by_us) == (failed, False)


@pytest.mark.parametrize(
    ("message", "because"),
    [
        (
            "0/3 nodes are available: 3 node(s) had volume node affinity conflict. preemption: 0/3: not helpful.",
            "0/3 nodes are available: 3 node(s) had volume node affinity conflict",
        ),
        (
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1: not helpful.",
            "0/1 nodes are available: 1 Insufficient cpu",
        ),
        (
            f"0/4 nodes are available: 1 {phrase(Reason.NO_NODE_FITS)}, 3 node(s) had volume node affinity conflict.",
            "node(s) had volume node affinity conflict",
        ),
        (f"0/4 nodes are available: 4 {phrase(Reason.NO_NODE_FITS)}. preemption: none.", ""),
        ("no nodes available to schedule pods", ""),
        ("x" * 1000, "x" * 300),
        ("two\n lines.", "two lines"),
    ],
    ids=["theirs", "claims", "both", "ours", "none judged", "long", "lines"],
)
def test_the_message_of_kube_scheduler_about_its_own_filters_is_kept(message: str, because: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

    assert pod(status={"conditions": [condition]}).said.because == because
    assert pod(status={"conditions": [condition | {"reason": "SchedulingGated"}]}).said.because == ""


def test_only_the_beginning_of_a_very_long_condition_is_read() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}

    short, long = (condition | {"message": PHRASE_MARK + ", " * count} for count in (8_192, 240_000))

    assert pod(status={"conditions": [long]}).said == pod(status={"conditions": [short]}).said
    assert steps(lambda: pod(status={"conditions": [long]})) <= 1.1 * steps(lambda: pod(status={"conditions": [short]}))


def test_gates_deletion_nomination_and_age_are_read() -> None:
    seen = pod(
        schedulingGates=[{"name": "x"}],
        meta={"deletionTimestamp": "1970-01-01T00:02:00Z"},
        status={"nominatedNodeName": "n2"},
    )

    assert (seen.gated, seen.deleting, seen.nominated, seen.created_at) == (True, True, "n2", 100.0)


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        (None, (False, False)),
        ([], (False, False)),
        ([{"name": GATE}], (True, False)),
        ([{"name": GATE}, {"name": "x"}], (True, True)),
        ([{"name": "leeboard.dev/other"}], (False, True)),
        ([7], (False, True)),
        ("x", (False, True)),
    ],
)
def test_our_gate_is_distinguished_from_those_of_others(gates: object, expected: tuple[bool, bool]) -> None:
    seen = pod(schedulingGates=gates)

    assert (seen.held, seen.gated) == expected


def test_finished_pods_are_terminal() -> None:
    phases = ("Succeeded", "Failed", "Running", "", 7)

    assert [decode.is_terminal({"status": {"phase": phase}}) for phase in phases] == [True, True, False, False, False]


@pytest.mark.parametrize(("value", "known"), [("q", "q"), ("", ""), (7, ""), (None, ""), ("x" * 254, "")])
def test_a_bound_pod_records_the_queue_with_which_it_was_bound(value: object, known: str) -> None:
    meta = {"annotations": {"leeboard.dev/queue": value}, "labels": {"kai.scheduler/queue": "ghost"}}

    assert pod(meta=meta, nodeName="n1").bound_queue == known
    assert (pod(meta=meta, nodeName="n1").problem, pod(meta=meta).bound_queue) == ("", "")


def test_a_single_pod_that_kube_scheduler_binds_keeps_the_queue_of_its_creation() -> None:
    meta = {"annotations": {"leeboard.dev/queue": "q"}}
    bare, marked = raw_pod(container(), meta=meta), raw_pod(container(limits={BIND_MARKER: "1"}), meta=meta)

    assert [read(raw, rules=MARKED).bound_queue for raw in (bare, marked)] == ["q", ""]


@pytest.mark.parametrize(
    ("reference", "stays"),
    [
        ({"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}, True),
        ({"apiVersion": "v1", "kind": "Node", "controller": True}, True),
        ({"apiVersion": "apps/v1", "kind": "DaemonSet"}, False),
        ({"apiVersion": "example.com/v1", "kind": "DaemonSet", "controller": True}, False),
        ({"apiVersion": "batch/v1", "kind": "Job", "controller": True}, False),
    ],
)
def test_only_pods_of_daemon_sets_and_mirror_pods_belong_to_their_nodes(reference: Raw, *, stays: bool) -> None:
    meta = {"ownerReferences": [reference | {"name": "it", "uid": "u"}]}

    others, ours = (pod(container(), meta=meta, schedulerName=name) for name in ("default-scheduler", "kai-scheduler"))

    assert (others.stays, ours.stays) == (stays, False)
