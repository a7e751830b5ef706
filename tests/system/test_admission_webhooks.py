"""Admission as users and controllers see it: the real API server calls, and Leeboard answers over TLS."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cluster import decode
from app.cluster.state.cache import ClusterCache
from app.control.webhooks.admission import Admission
from app.model.admission import AdmissionAnswer, AdmissionQuestion, Operation
from app.model.marks import ASK_MARKER, DEVICES_ANNOTATION, GATE
from app.settings import Settings
from tests.control.desk import FakeEntrance
from tests.control.ready import Told
from tests.system.api import (
    DEFAULT_PODS,
    POD_GROUPS,
    PODS,
    QUEUES,
    Api,
    ApiError,
    Object,
    collection_of,
    job,
    pod,
    pod_group,
    queue,
)
from tests.system.bed import Bed
from tests.system.cluster import install
from tests.system.identities import User
from tests.system.reviewing import DRY_RUN, OPT_IN, held, reviewed
from tests.system.waiting import eventually

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
TEAM = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "opted-in", "labels": OPT_IN}}


class Reviewed:
    """A cluster with admission; its cache shows what the test has created."""

    def __init__(self, bed: Bed, api: Api) -> None:
        self.bed, self.api = bed, api
        self.cache, self.entrance, self.unready = ClusterCache(), FakeEntrance(), Told()
        settings = Settings(markers=frozenset({ASK_MARKER}))
        self.admission = Admission(self.cache, self.entrance, settings, freshness=self.unready)
        self.changes: list[str] = []

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Answer as Leeboard does."""
        return self.admission.mutate(question)

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Answer as Leeboard does, and record the users that changed a pod."""
        if (question.kind, question.operation) == ("Pod", Operation.UPDATE):
            self.changes.append(question.name)
        return self.admission.validate(question)

    def create(self, item: Object) -> Object:
        """Create an object, and show a queue to the cache as the watch would."""
        created = self.api.create(item)
        if created["kind"] == "Queue":
            self.cache.apply_queue(decode.queue(created))
        return created

    def bind(self, name: str) -> None:
        target = {"kind": "Node", "name": "n"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.api.call("POST", f"{DEFAULT_PODS}/{name}/binding", body=body)

    def denial(self, item: Object) -> str:
        with pytest.raises(ApiError, match="denied the request") as denied:
            self.api.create(item)
        return str(denied.value)

    def kubectl(self, *arguments: str, stdin: Object | None = None) -> str:
        """Run kubectl; return all its output."""
        kubeconfig = f"--kubeconfig={self.bed.kubeconfig(User.ADMIN)}"
        command: list[str | Path] = [self.bed.programs / "kubectl", kubeconfig, *arguments]
        text = yaml.safe_dump(stdin) if stdin else None
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def prepared(session_bed: Bed, session_api: Api) -> Iterator[Bed]:
    """Install the shipped manifests, and a namespace that has opted in."""
    install(session_api)
    session_api.apply(TEAM)
    account = "/api/v1/namespaces/opted-in/serviceaccounts/default"
    eventually(lambda: session_api.find(account), within_s=20.0, what="the namespace has its service account")
    yield session_bed
    session_api.delete("/api/v1/namespaces/opted-in")


@pytest.fixture
def it(prepared: Bed, api: Api, tmp_path: Path) -> Iterator[Reviewed]:
    one = Reviewed(prepared, api)
    for each in api.items(CLASSES):
        one.cache.apply_class(decode.priority_class(each))
    with reviewed(api, one, tmp_path):
        one.entrance.asked.clear()
        yield one
        for collection in (PODS, POD_GROUPS, QUEUES):
            api.empty(collection)


def gates(stored: Object) -> list[str]:
    return [gate["name"] for gate in stored["spec"].get("schedulingGates", [])]


def without_name(item: Object) -> Object:
    metadata = {key: value for key, value in item["metadata"].items() if key != "name"}
    return item | {"metadata": metadata | {"generateName": "made-"}}


def test_a_managed_pod_gets_our_gate_unless_it_can_run_now(it: Reviewed) -> None:
    stored = it.create(pod("held"))
    it.entrance.open = True
    free = it.create(pod("free"))
    released = it.create(pod("released", spec={"schedulingGates": [{"name": GATE}, {"name": "a.b/c"}]}))
    alone = it.create(pod("alone", spec={"schedulingGates": [{"name": GATE}]}))

    assert [gates(each) for each in (stored, free, alone)] == [[GATE], [], []]
    assert gates(released) == [GATE, "a.b/c"]  # others gate it: it cannot run now
    marked = {ASK_MARKER: "0"}
    resources = stored["spec"]["containers"][0]["resources"]
    assert [resources[kind].items() >= marked.items() for kind in ("requests", "limits")] == [True, True]


def test_kube_scheduler_does_not_schedule_a_gated_pod(it: Reviewed) -> None:
    it.create(pod("held"))

    def condition() -> list[Object]:
        found: list[Object] = it.api.get(f"{DEFAULT_PODS}/held")["status"].get("conditions", [])
        return [each for each in found if each["type"] == "PodScheduled"]

    (scheduled,) = eventually(condition, within_s=10.0, what="the pod has a condition")
    assert scheduled["reason"] == "SchedulingGated"


def test_pods_created_by_a_controller_are_gated_too(it: Reviewed) -> None:
    it.create(job("made", parallelism=2, template=pod("t")))

    made = eventually(
        lambda: it.api.items(DEFAULT_PODS, labelSelector="job-name=made"),
        until=lambda pods: len(pods) == 2,
        within_s=20.0,
        what="the Job has its pods",
    )

    assert [gates(each) for each in made] == [[GATE], [GATE]]


def test_a_pod_that_names_only_a_queue_gets_our_scheduler_where_its_namespace_has_opted_in(it: Reviewed) -> None:
    ours = it.create(pod("ours", queue="q", scheduler="", namespace="opted-in"))
    elsewhere = it.create(pod("elsewhere", queue="q", scheduler=""))
    plain = it.create(pod("plain", scheduler="", namespace="opted-in"))

    names = [each["spec"]["schedulerName"] for each in (ours, elsewhere, plain)]
    assert names == ["kai-scheduler", "default-scheduler", "default-scheduler"]
    assert [gates(each) for each in (ours, elsewhere, plain)] == [[GATE], [], []]


def test_the_api_server_resolves_the_priority_class_named_by_a_label(it: Reviewed) -> None:
    stored = it.create(pod("p", labels={"priorityClassName": "inference"}, priority_class="train"))["spec"]

    assert stored["priorityClassName"] == "inference"
    assert (stored["priority"], stored["preemptionPolicy"]) == (125, "Never")


def test_a_priority_class_that_does_not_exist_gives_a_warning(it: Reviewed) -> None:
    said = it.kubectl("create", "-f", "-", stdin=pod("p", labels={"priorityClassName": "none"}))

    assert "Warning: PriorityClass 'none' of label priorityClassName does not exist, so the pod keeps its own" in said
    assert "pod/p created" in said


def test_a_dry_run_shows_the_gate_and_reserves_nothing(it: Reviewed) -> None:
    it.entrance.open = True

    shown = it.api.call("POST", DEFAULT_PODS, body=pod("p"), query=DRY_RUN)

    assert held(shown)
    assert it.entrance.asked == []


def test_before_the_cluster_is_known_the_failure_policy_decides_and_pods_of_others_are_created(it: Reviewed) -> None:
    it.unready.why = "nodes are not listed yet"

    with pytest.raises(ApiError, match="failed calling webhook"):
        it.create(pod("ours"))

    assert gates(it.create(pod("theirs", scheduler="default-scheduler"))) == []


def test_a_pod_that_shares_gpus_is_created_with_the_variables_that_name_them(it: Reviewed) -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "1"}]
    sharing = pod("p", gpus=0, annotations={"gpu-memory": "5"})
    sharing["spec"]["containers"][0]["env"] = env

    container = it.create(sharing)["spec"]["containers"][0]

    assert [(each["name"], reference(each)) for each in container["env"]] == [
        ("NVIDIA_VISIBLE_DEVICES", "metadata.annotations['leeboard.dev/devices']"),
        ("GPU_PORTION", "metadata.annotations['leeboard.dev/portion']"),
        ("GPU_MEMORY_MIB", "metadata.annotations['leeboard.dev/memory-mib']"),
        ("A", None),
    ]


def reference(entry: Object) -> Any:
    return entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            pod("p", annotations={"gpu-fraction": "0.5"}),
            "cannot have both GPU fraction request and whole GPU resource request/limit; remove nvidia.com/gpu, or",
        ),
        (
            without_name(pod("p", gpus=0, annotations={"gpu-memory": "NaN"})),
            "gpu-memory annotation value must be a positive integer greater than 0; it cannot be read: 'NaN' is not an",
        ),
        (
            pod("p", annotations={"mps": "true"}),
            "MPS is only supported with GPU fraction request; add annotation gpu-fraction or gpu-memory, or remove mps",
        ),
        (
            pod("p", labels={"kai.scheduler/task-priority": "first"}),
            "label kai.scheduler/task-priority cannot be read: 'first' is not an integer; write digits only, from 0 to",
        ),
        (
            pod_group("g", min_member=1, queue="q", subGroups=[{"name": "a", "parent": "b", "minMember": 1}]),
            "sub-group 'a' has parent 'b', which is not listed; add it, or change it",
        ),
    ],
)
def test_contradictory_requests_are_refused_with_a_message(it: Reviewed, item: Object, message: str) -> None:
    assert message in it.denial(item)
    assert it.api.items(collection_of(item)) == []


@pytest.mark.parametrize("marked", [{"annotations": {"gpu-fraction": "0.5"}}, {"labels": {"a": "b"}}], ids=str)
def test_annotations_of_unmanaged_or_bound_pods_are_not_reviewed(it: Reviewed, marked: Object) -> None:
    it.entrance.open = True
    for name, scheduler in (("theirs", "default-scheduler"), ("placed", "kai-scheduler")):
        it.create(pod(name, scheduler=scheduler))
    it.bind("placed")
    for name in ("theirs", "placed"):
        it.api.patch(f"{DEFAULT_PODS}/{name}", {"metadata": marked})
    assert it.changes == []


def test_an_annotation_added_later_is_refused_and_other_changes_are_not(it: Reviewed) -> None:
    it.create(pod("p"))
    path = f"{DEFAULT_PODS}/p"

    with pytest.raises(ApiError, match="cannot have both GPU fraction request and whole GPU resource request/limit"):
        it.api.patch(path, {"metadata": {"annotations": {"gpu-fraction": "0.5"}}})

    assert it.api.patch(path, {"metadata": {"annotations": {"mine": "x" * 200_000}, "labels": {"a": "b"}}})
    assert it.changes == ["p", "p"]


def test_updates_by_leeboard_and_kube_scheduler_are_not_reviewed(it: Reviewed) -> None:
    stored = it.create(pod("p"))
    path = f"{DEFAULT_PODS}/p"
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}

    with it.bed.api(User.LEEBOARD) as leeboard:
        leeboard.patch(path, {"metadata": {"annotations": {DEVICES_ANNOTATION: "0"}}})
        leeboard.patch(path, {"spec": {"schedulingGates": None}})
    it.api.patch(f"{path}/status", {"status": {"conditions": [waiting]}})
    it.bind("p")

    assert (gates(stored), gates(it.api.get(path)), it.api.get(path)["spec"]["nodeName"]) == ([GATE], [], "n")
    assert it.changes == []


def test_a_cycle_of_queues_is_refused_with_their_names(it: Reviewed) -> None:
    for name, parent in (("a", "b"), ("b", "c")):
        it.create(queue(name, parent=parent))

    said = it.kubectl("create", "-f", "-", stdin=queue("c", parent="a"))

    circle = "its parents form a circle (c -> a -> b -> c); change spec.parentQueue of one of them"
    assert f'admission webhook "policy.leeboard.dev" denied the request: {circle}' in said


def test_doubtful_settings_and_the_deletion_of_a_queue_give_warnings(it: Reviewed) -> None:
    said = it.kubectl("create", "-f", "-", stdin=queue("top", parent="lost", deserved=4, limit=2))
    it.cache.apply_queue(decode.queue(it.api.get(f"{QUEUES}/top")))
    it.create(queue("below", parent="top"))
    ended = it.kubectl("delete", "queue", "top")

    assert "Warning: its parent queue 'lost' does not exist: the queue takes no pods until it does" in said
    assert "Warning: spec.resources.gpu.limit is below spec.resources.gpu.quota: the queue never gets more" in said
    assert "Warning: its child queues take no pods until a queue of this name exists again: below" in ended
    assert 'queue.scheduling.run.ai "top" deleted' in ended


def test_a_podgroup_whose_queue_does_not_exist_is_created_with_a_warning(it: Reviewed) -> None:
    said = it.kubectl("create", "-f", "-", stdin=pod_group("g", min_member=2, queue="lost"))

    assert "Warning: queue 'lost' does not exist: the pods wait until it does" in said
    assert "podgroup.scheduling.run.ai/g created" in said
