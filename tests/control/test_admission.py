"""What a new pod gets before the API server stores it."""

from typing import Any

import pytest

from app.cluster import decode
from app.model.admission import AdmissionQuestion, Admitted, Denied, Operation, Undecided
from app.model.marks import ASK_MARKER, BIND_MARKER, GATE, PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION
from tests.cluster.patched import patched
from tests.cluster.raw import Raw, container, raw_pod
from tests.control.desk import QUEUE, Desk, new_pod


def test_a_managed_pod_is_held() -> None:
    assert Desk().stored(new_pod())["spec"]["schedulingGates"] == [{"name": GATE}]


def test_a_pod_that_can_run_now_is_not_held() -> None:
    desk = Desk()
    desk.entrance.open = True

    assert desk.mutate(new_pod()) == Admitted()
    assert "schedulingGates" not in desk.stored(new_pod(schedulingGates=[{"name": GATE}]))["spec"]


def test_who_is_held_by_others_too_cannot_run_now_whatever_the_entrance_would_say() -> None:
    desk = Desk()
    desk.entrance.open = True

    after = desk.stored(new_pod(schedulingGates=[{"name": "a.b/c"}]))

    assert after["spec"]["schedulingGates"] == [{"name": "a.b/c"}, {"name": GATE}]
    assert desk.entrance.asked == []


def test_a_dry_run_keeps_no_room() -> None:
    desk = Desk()
    desk.entrance.open = True

    assert desk.stored(new_pod(), dry_run=True)["spec"]["schedulingGates"] == [{"name": GATE}]
    assert desk.entrance.asked == []


@pytest.mark.parametrize("named", [None, "", "default-scheduler"])
def test_a_pod_that_names_a_queue_and_no_scheduler_becomes_ours(named: str | None) -> None:
    desk = Desk()

    after = desk.stored(new_pod(schedulerName=named))

    assert after["spec"]["schedulerName"] == "kai-scheduler"
    assert after["spec"]["schedulingGates"] == [{"name": GATE}]
    assert desk.entrance.asked[0]["spec"]["schedulerName"] == "kai-scheduler"


def test_a_pod_that_becomes_ours_gets_a_profile_that_is_ours() -> None:
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
def test_what_is_not_a_new_pod_of_ours_is_left_alone(raw: Raw, more: dict[str, Any]) -> None:
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


def test_the_class_that_a_label_names_becomes_the_priority_of_the_pod() -> None:
    desk = Desk()
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    meta = {"labels": {"priorityClassName": "build"}}

    spec = desk.stored(new_pod(meta=meta, priority=0, preemptionPolicy="PreemptLowerPriority"))["spec"]

    assert spec["priorityClassName"] == "build"
    assert spec.keys().isdisjoint({"priority", "preemptionPolicy"})


def test_the_class_that_its_owner_names_goes_before_the_pods_own() -> None:
    desk = Desk()
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    desk.entrance.class_of_owners = "build"

    spec = desk.stored(new_pod(meta={"labels": {"priorityClassName": "train"}}, priority=0))["spec"]

    assert spec["priorityClassName"] == "build"
    (asked,) = desk.entrance.asked
    assert asked["spec"]["priorityClassName"] == "build", "it is judged as what it is stored as"


def test_a_class_that_does_not_exist_is_told_and_changes_nothing() -> None:
    labels = {**QUEUE["labels"], "priorityClassName": "build"}
    raw = new_pod(meta={"labels": labels}, priority=0)

    answer = Desk().mutate(raw)

    assert isinstance(answer, Admitted)
    assert patched(raw, answer.patch)["spec"]["priority"] == 0
    (told,) = answer.warnings
    assert told.startswith("label priorityClassName: there is no PriorityClass 'build'; the pod keeps its own")


def test_markers_are_added_where_the_settings_name_them() -> None:
    resources = Desk(markers=ASK_MARKER).stored(new_pod())["spec"]["containers"][0]["resources"]

    assert resources == {"requests": {ASK_MARKER: "1"}, "limits": {ASK_MARKER: "1"}}
    assert Desk().stored(new_pod())["spec"]["containers"] == [container()]


def test_who_may_be_bound_elsewhere_has_no_marker_for_it_and_stays_preemptible_and_in_its_queue() -> None:
    desk = Desk(markers=f"{ASK_MARKER},{BIND_MARKER}")
    desk.entrance.alone = True
    given = container() | {"resources": {amounts: {BIND_MARKER: "1"} for amounts in ("requests", "limits")}}

    for raw in (new_pod(), raw_pod(given, meta=QUEUE)):
        stored = desk.stored(raw)

        resources = stored["spec"]["containers"][0]["resources"]
        assert resources == {"requests": {ASK_MARKER: "1"}, "limits": {ASK_MARKER: "1"}}
        assert stored["metadata"]["annotations"] == {PREEMPTIBLE_ANNOTATION: "true", QUEUE_ANNOTATION: "q"}
        assert desk.stored(stored) == stored


def test_who_may_not_be_bound_elsewhere_has_all_markers() -> None:
    stored = Desk(markers=f"{ASK_MARKER},{BIND_MARKER}").stored(new_pod())

    both = {ASK_MARKER: "1", BIND_MARKER: "1"}
    assert stored["spec"]["containers"][0]["resources"] == {"requests": both, "limits": both}
    assert PREEMPTIBLE_ANNOTATION not in stored["metadata"].get("annotations", {})


def test_a_pod_that_was_copied_from_one_left_alone_has_none_of_its_stamps() -> None:
    desk = Desk(markers=BIND_MARKER)
    desk.entrance.alone = True
    copied = desk.stored(new_pod())
    desk.entrance.alone = False

    stored = desk.stored(copied)

    assert not {PREEMPTIBLE_ANNOTATION, QUEUE_ANNOTATION} & stored["metadata"]["annotations"].keys()
    assert desk.stored(stored) == stored


def test_a_pod_that_others_change_after_us_is_refused_where_we_would_not_be_asked_to_bind_it() -> None:
    desk = Desk(markers=BIND_MARKER)
    desk.entrance.alone = True
    left = desk.stored(new_pod())
    unseen = new_pod()
    # Another replica may know less than the one that has let the pod go.
    desk.entrance.alone = False
    assert desk.validate("Pod", left) == Admitted()

    desk.entrance.changed = True

    assert "another webhook changed the pod after Leeboard's webhook" in desk.denial("Pod", left)
    assert desk.validate("Pod", unseen) == Admitted()
    assert desk.validate("Pod", desk.stored(left)) == Admitted()
    desk.unready.why = "not synced"
    assert desk.validate("Pod", left) == Admitted()


def test_where_binds_are_not_marked_nobody_says_who_is_preemptible() -> None:
    desk = Desk(markers=ASK_MARKER)
    desk.entrance.alone = True

    assert "annotations" not in desk.stored(new_pod())["metadata"]


def test_a_pod_that_shares_devices_learns_of_them() -> None:
    spec = Desk().stored(new_pod(meta={"annotations": {"gpu-fraction": "0.5"}}))["spec"]

    names = [entry["name"] for entry in spec["containers"][0]["env"]]
    assert names == ["NVIDIA_VISIBLE_DEVICES", "GPU_PORTION", "GPU_MEMORY_MIB"]
    assert spec["schedulingGates"] == [{"name": GATE}]


def test_pods_with_gpus_run_by_the_class_that_the_settings_name() -> None:
    desk, by_fraction = Desk(gpu_runtime_class="nvidia"), new_pod(meta={"annotations": {"gpu-fraction": "0.5"}})
    whole, theirs = new_pod(container(gpu="1")), new_pod(container(gpu="1"), runtimeClassName="kata")

    given = [desk.stored(raw)["spec"].get("runtimeClassName") for raw in (whole, by_fraction, theirs, new_pod())]

    assert given == ["nvidia", "nvidia", "kata", None]
    assert "runtimeClassName" not in Desk().stored(whole)["spec"]


def test_pods_of_others_and_those_that_have_a_node_keep_their_runtime() -> None:
    desk = Desk(gpu_runtime_class="nvidia")

    assert desk.mutate(new_pod(container(gpu="1"), schedulerName="volcano")) == Admitted()
    assert desk.mutate(new_pod(container(gpu="1"), nodeName="n1")) == Admitted()


def test_nothing_is_said_of_our_pods_before_the_cluster_is_known() -> None:
    desk = Desk()
    desk.unready.why = "nodes are not listed yet"

    assert desk.mutate(new_pod()) == Undecided("nodes are not listed yet")
    assert desk.mutate(new_pod(schedulerName="volcano")) == Admitted()


def test_a_pod_that_was_judged_before_needs_nothing_more() -> None:
    desk = Desk(markers=ASK_MARKER, gpu_runtime_class="nvidia")
    desk.cache.apply_class(decode.priority_class({"metadata": {"name": "build", "uid": "c"}, "value": 100}))
    meta = {"labels": {"kai.scheduler/queue": "q", "priorityClassName": "build"}, "annotations": {"gpu-memory": "5"}}

    once = desk.stored(new_pod(meta=meta, schedulerName="", priority=1))

    assert desk.mutate(once) == Admitted()


def test_what_is_wrong_with_a_pod_is_said_where_nobody_validates_it_as_well() -> None:
    answer = Desk().mutate(new_pod(meta={**QUEUE, "annotations": {"gpu-fraction": "half"}}))

    assert isinstance(answer, Denied)
    assert "gpu-fraction" in answer.message


@pytest.mark.parametrize("name", ["A", 5, ["NVIDIA_VISIBLE_DEVICES"], {}])
def test_a_pod_that_shares_is_judged_as_it_will_be_whatever_its_variables_are_called(name: object) -> None:
    shares = {**QUEUE, "annotations": {"gpu-fraction": "0.5"}}
    named = {**container(), "env": [{"name": name, "value": "all"}]}

    assert isinstance(Desk().mutate(new_pod(named, meta=shares)), Admitted)


def test_odd_pods_are_told_of_where_nobody_validates_them_as_well() -> None:
    answer = Desk().mutate(new_pod(meta={"labels": {"kai.scheduler/queue": "none"}}))

    assert isinstance(answer, Admitted)
    assert answer.warnings == ("queue 'none' does not exist: the pod waits until it does",)
