"""The changes to a new pod before the API server stores it."""

from typing import Any

import pytest

from app.cluster import decode
from app.model.admission import AdmissionQuestion, Admitted, Denied, Operation, Undecided
from app.model.marks import ASK_MARKER, BIND_MARKER, GATE, PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION
from tests.cluster.patched import patched
from tests.cluster.raw import Raw, container, raw_pod
from tests.control.desk import QUEUE, Desk, new_pod


def test_a_managed_pod_gets_a_scheduling_gate() -> None:
    assert Desk().stored(new_pod())["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_pod_that_can_run_now_gets_no_scheduling_gate() -> None:
    desk = Desk()
    desk.entrance.open = True

    assert desk.mutate(new_pod()) == Admitted()
    assert "schedulingGates" not in desk.stored(new_pod(schedulingGates=[{"name": GATE}]))["spec"]


def test_a_pod_with_gates_of_others_cannot_run_now_whatever_the_fast_path_says() -> None:
    desk = Desk()
    desk.entrance.open = True

    after = desk.stored(new_pod(schedulingGates=[{"name": "a.b/c"}]))

    assert after["spec"]["schedulingGates"] == [{"name": "a.b/c"}, {"name": GATE}]
    assert desk.entrance.asked == []


def test_a_dry_run_reserves_nothing() -> None:
    desk = Desk()
    desk.entrance.open = True

    assert desk.stored(new_pod(), dry_run=True)["spec"]["schedulingGates"] == [{"name": GATE}]
    assert desk.entrance.asked == []


@pytest.mark.parametrize("named", [None, "", "default-scheduler"])
def test_a_pod_that_names_a_queue_and_no_scheduler_gets_our_scheduler(named: str | None) -> None:
    desk = Desk()

    after = desk.stored(new_pod(schedulerName=named))

    assert after["spec"]["schedulerName"] == "kai-scheduler"
    assert after["spec"]["schedulingGates"] == [{"name": GATE}]
    assert desk.entrance.asked[0]["spec"]["schedulerName"] == "kai-scheduler"


def test_a_pod_that_gets_our_scheduler_gets_one_of_our_profiles() -> None:
    assert Desk(profiles="b,a").stored(new_pod(schedulerName=""))["spec"]["schedulerName"] == "a"


@pytest.mark.parametrize(
    ("raw", "more"),
    [
        (new_pod(schedulerName="default-scheduler", meta={"labels": {"app": "web"}}), {}),
        (new_pod(schedulerName="volcano"), {}),
        (new_pod(nodeName="n1"), {}),
        (new_pod(schedulerName="", nodeName="n1"), {}),
        (new_pod(), {"operation": "UPDATE"}),
        (new_pod(), {"group": "apps"}),
        (new_pod(), {"kind": "Binding"}),
        ({}, {}),
        ({"spec": [], "metadata": 5}, {}),
    ],
)
def test_other_pods_and_existing_pods_are_not_changed(raw: Raw, more: dict[str, Any]) -> None:
    desk = Desk(markers=ASK_MARKER)
    asked = AdmissionQuestion(
        **(
            {"group": "", "kind": "Pod", "namespace": "team", "name": "", "object": raw}
            | {"operation": Operation.CREATE}
            | more
        )
    )

    assert desk.admission.mutate(asked) == Admitted()
    assert desk.entrance.asked == []


def test_the_priority_class_in_a_label_becomes_the_priority_of_the_pod() -> None:
    desk = Desk()
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    meta = {"labels": {"priorityClassName": "build"}}

    spec = desk.stored(new_pod(meta=meta, priority=0, preemptionPolicy="PreemptLowerPriority"))["spec"]

    assert spec["priorityClassName"] == "build"
    assert spec.keys().isdisjoint({"priority", "preemptionPolicy"})


@pytest.mark.parametrize(("is_on", "name"), [(True, "usual"), (False, "build")])
def test_members_keep_the_priority_of_their_native_group_where_kube_scheduler_compares_it(
    *, is_on: bool, name: str
) -> None:
    desk = Desk(kube_scheduler_groups=is_on)
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    meta = {"labels": {"priorityClassName": "build"}}

    spec = desk.stored(new_pod(meta=meta, priorityClassName="usual", schedulingGroup={"podGroupName": "g"}))["spec"]

    assert spec["priorityClassName"] == name


def test_the_priority_class_in_a_label_of_the_owner_overrides_that_of_the_pod() -> None:
    desk = Desk()
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    desk.entrance.class_of_owners = "build"

    spec = desk.stored(new_pod(meta={"labels": {"priorityClassName": "train"}}, priority=0))["spec"]

    assert spec["priorityClassName"] == "build"
    (asked,) = desk.entrance.asked
    assert asked["spec"]["priorityClassName"] == "build", "it is judged as what it is stored as"


def test_a_priority_class_that_does_not_exist_gives_a_warning_and_changes_nothing() -> None:
    labels = {**QUEUE["labels"], "priorityClassName": "build"}
    raw = new_pod(meta={"labels": labels}, priority=0)

    answer = Desk().mutate(raw)

    assert isinstance(answer, Admitted)
    assert patched(raw, answer.patch)["spec"]["priority"] == 0
    (told,) = answer.warnings
    assert told.startswith("PriorityClass 'build' of label priorityClassName does not exist, so the pod keeps its own")


def test_markers_are_added_if_the_settings_name_them() -> None:
    resources = Desk(markers=ASK_MARKER).stored(new_pod())["spec"]["containers"][0]["resources"]

    assert resources == {"requests": {ASK_MARKER: "0"}, "limits": {ASK_MARKER: "0"}}
    assert Desk().stored(new_pod())["spec"]["containers"] == [container()]


def test_a_pod_that_kube_scheduler_may_bind_has_no_bind_marker_and_keeps_preemptibility_and_queue() -> None:
    desk = Desk(markers=f"{ASK_MARKER},{BIND_MARKER}")
    desk.entrance.alone = True
    given = container() | {"resources": {amounts: {BIND_MARKER: "0"} for amounts in ("requests", "limits")}}

    for raw in (new_pod(), raw_pod(given, meta=QUEUE)):
        stored = desk.stored(raw)

        resources = stored["spec"]["containers"][0]["resources"]
        assert resources == {"requests": {ASK_MARKER: "0"}, "limits": {ASK_MARKER: "0"}}
        assert stored["metadata"]["annotations"] == {PREEMPTIBLE_ANNOTATION: "true", QUEUE_ANNOTATION: "q"}
        assert desk.stored(stored) == stored


def test_a_pod_that_kube_scheduler_may_not_bind_has_all_markers() -> None:
    stored = Desk(markers=f"{ASK_MARKER},{BIND_MARKER}").stored(new_pod())

    both = {ASK_MARKER: "0", BIND_MARKER: "0"}
    assert stored["spec"]["containers"][0]["resources"] == {"requests": both, "limits": both}
    assert PREEMPTIBLE_ANNOTATION not in stored["metadata"].get("annotations", {})


def test_a_pod_copied_from_an_unmanaged_pod_has_none_of_its_stamps() -> None:
    desk = Desk(markers=BIND_MARKER)
    desk.entrance.alone = True
    copied = desk.stored(new_pod())
    desk.entrance.alone = False

    stored = desk.stored(copied)

    assert not {PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION} & stored["metadata"]["annotations"].keys()
    assert desk.stored(stored) == stored


def test_a_pod_that_another_webhook_changed_is_refused_if_bind_would_not_be_called() -> None:
    desk = Desk(markers=BIND_MARKER)
    desk.entrance.alone = True
    left = desk.stored(new_pod())
    unseen = new_pod()
    # Another replica may know less than the one that passed the pod.
    desk.entrance.alone = False
    assert desk.validate("Pod", left) == Admitted()

    desk.entrance.changed = True

    assert "another webhook changed the pod after Leeboard's webhook" in desk.denial("Pod", left)
    assert desk.validate("Pod", unseen) == Admitted()
    assert desk.validate("Pod", desk.stored(left)) == Admitted()
    desk.unready.why = "not synced"
    assert desk.validate("Pod", left) == Admitted()


def test_without_bind_markers_no_pod_is_stamped_as_preemptible() -> None:
    desk = Desk(markers=ASK_MARKER)
    desk.entrance.alone = True

    assert "annotations" not in desk.stored(new_pod())["metadata"]


def test_a_pod_that_shares_gpus_gets_the_variables_that_name_them() -> None:
    spec = Desk().stored(new_pod(meta={"annotations": {"gpu-fraction": "0.5"}}))["spec"]

    names = [entry["name"] for entry in spec["containers"][0]["env"]]
    assert names == ["NVIDIA_VISIBLE_DEVICES", "GPU_PORTION", "GPU_MEMORY_MIB"]
    assert spec["schedulingGates"] == [{"name": GATE}]


def test_pods_with_gpus_get_the_runtime_class_of_the_settings() -> None:
    desk, by_fraction = Desk(gpu_runtime_class="nvidia"), new_pod(meta={"annotations": {"gpu-fraction": "0.5"}})
    whole, theirs = new_pod(container(gpu="1")), new_pod(container(gpu="1"), runtimeClassName="kata")

    given = [desk.stored(raw)["spec"].get("runtimeClassName") for raw in (whole, by_fraction, theirs, new_pod())]

    assert given == ["nvidia", "nvidia", "kata", None]
    assert "runtimeClassName" not in Desk().stored(whole)["spec"]


def test_pods_of_other_schedulers_and_bound_pods_keep_their_runtime_class() -> None:
    desk = Desk(gpu_runtime_class="nvidia")

    assert desk.mutate(new_pod(container(gpu="1"), schedulerName="volcano")) == Admitted()
    assert desk.mutate(new_pod(container(gpu="1"), nodeName="n1")) == Admitted()


def test_pods_get_no_warnings_before_the_cluster_is_known() -> None:
    desk = Desk()
    desk.unready.why = "nodes are not listed yet"

    assert desk.mutate(new_pod()) == Undecided("nodes are not listed yet")
    assert desk.mutate(new_pod(schedulerName="volcano")) == Admitted()


def test_a_pod_that_was_reviewed_before_is_not_changed_again() -> None:
    desk = Desk(markers=ASK_MARKER, gpu_runtime_class="nvidia")
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    meta = {"labels": {"kai.scheduler/queue": "q", "priorityClassName": "build"}, "annotations": {"gpu-memory": "5"}}

    once = desk.stored(new_pod(meta=meta, schedulerName="", priority=1))

    assert desk.mutate(once) == Admitted()


def test_errors_of_a_pod_are_warned_of_where_no_webhook_validates_it() -> None:
    answer = Desk().mutate(new_pod(meta={**QUEUE, "annotations": {"gpu-fraction": "half"}}))

    assert isinstance(answer, Denied)
    assert "gpu-fraction" in answer.message


@pytest.mark.parametrize("name", ["A", 5, ["NVIDIA_VISIBLE_DEVICES"], {}])
def test_a_pod_that_shares_gpus_is_reviewed_as_it_will_be_whatever_its_variables_are_called(name: object) -> None:
    shares = {**QUEUE, "annotations": {"gpu-fraction": "0.5"}}
    named = {**container(), "env": [{"name": name, "value": "all"}]}

    assert isinstance(Desk().mutate(new_pod(named, meta=shares)), Admitted)


def test_suspicious_pods_get_warnings_where_no_webhook_validates_them() -> None:
    answer = Desk().mutate(new_pod(meta={"labels": {"kai.scheduler/queue": "none"}}))

    assert isinstance(answer, Admitted)
    assert answer.warnings == ("queue 'none' does not exist: the pod waits until it does",)
