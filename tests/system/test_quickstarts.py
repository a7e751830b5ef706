"""A KAI user's first steps with kubectl: the same manifests work, and every object shows its state.

The manifests are our own, in the kinds, labels and fields of KAI's quickstart, batch and priority examples.
"""

import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path
from random import Random
from threading import Event

import pytest

from tests.system import audit
from tests.system.api import DEFAULT_PODS, Api, gang, gpu_node, pod, queue
from tests.system.bed import ApiServerOptions, Audit, Bed
from tests.system.cluster import install, start_leeboard, start_own_scheduler
from tests.system.identities import User
from tests.system.waiting import eventually

MANIFESTS = Path(__file__).parent / "manifests"
REASON = "{.status.schedulingConditions[*].reasons[*].reason}"
VALID = '{.status.conditions[?(@.type=="Valid")]'

_node_numbers = count()


class Kubectl:
    """kubectl of an administrator; a refusal fails the test with its message."""

    def __init__(self, bed: Bed) -> None:
        self._command = [str(bed.programs / "kubectl"), f"--kubeconfig={bed.kubeconfig(User.ADMIN)}"]

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Run one command; return its output."""
        command = [*self._command, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, *names: str, to_queue: str = "") -> None:
        """Apply manifests of ours, with another queue label if one is named."""
        for name in names:
            manifest = (MANIFESTS / f"{name}.yaml").read_text()
            if to_queue:
                label = ("label", "--local", "--overwrite", "-f", "-", f"kai.scheduler/queue={to_queue}", "-o", "yaml")
                manifest = self(*label, stdin=manifest)
            self("apply", "-f", "-", stdin=manifest)

    def wait_until_running(self, name: str) -> None:
        """Wait as users do."""
        self("wait", "--for=jsonpath={.status.phase}=Running", f"pod/{name}", "--timeout=20s")

    def wait_for(self, text: str, *arguments: str) -> str:
        """Repeat a command until it prints the text; return all its output."""
        return eventually(
            lambda: self(*arguments),
            until=lambda printed: text in printed,
            within_s=20,
            what=f"kubectl {' '.join(arguments)} prints {text!r}",
            every_s=0.2,
        )

    def show(self, what: str, path: str) -> str:
        """Return one field of an object, as JSONPath."""
        return self("get", what, "-o", f"jsonpath={path}")

    def wait_to_show(self, what: str, path: str, text: str) -> None:
        """Wait until one field of an object is exactly this text."""
        eventually(
            lambda: self.show(what, path),
            until=lambda shown: shown == text,
            within_s=20,
            what=f"{what} shows {text!r} in {path}",
            every_s=0.2,
        )


@pytest.fixture
def kubectl(bed: Bed, api: Api) -> Iterator[Kubectl]:
    """A cluster with the shipped Leeboard and kube-scheduler, and the kubectl of its owner."""
    install(api)
    start_own_scheduler(bed, start_leeboard(bed))
    yield Kubectl(bed)
    bed.stop("own-scheduler")
    bed.stop("leeboard")


def add_node(api: Api, *, gpus: int = 8) -> None:
    """Create a node with a name that no other test uses."""
    api.create(gpu_node(f"q{next(_node_numbers):03}", gpus=gpus))


# -- KAI's examples


def test_two_levels_of_queues_exist_and_refer_to_each_other(kubectl: Kubectl) -> None:
    kubectl.apply("default-queues")

    below = "-o", "jsonpath={.status.childQueues}"
    assert kubectl.wait_for("default", "get", "queue", "default-parent-queue", *below) == '["default-queue"]'
    rows = {row.split()[0]: row.split()[1:] for row in kubectl("get", "queues").splitlines()}
    assert rows["NAME"][:2] == ["PRIORITY", "PARENT"]
    assert rows["default-queue"][0] == "default-parent-queue"


def test_pod_without_gpus_runs(kubectl: Kubectl, api: Api) -> None:
    add_node(api, gpus=0)

    kubectl.apply("cpu-only-pod")

    kubectl.wait_until_running("cpu-only-pod")


def test_pod_with_a_whole_gpu_runs(kubectl: Kubectl, api: Api) -> None:
    add_node(api, gpus=1)

    kubectl.apply("gpu-pod")

    kubectl.wait_until_running("gpu-pod")


@pytest.mark.parametrize("gpus", [1, 2])
def test_job_of_two_pods_completes_at_once_or_one_after_the_other(kubectl: Kubectl, api: Api, gpus: int) -> None:
    add_node(api, gpus=gpus)

    kubectl.apply("batch-job")

    kubectl("wait", "--for=condition=complete", "job/batch-job", "--timeout=40s")
    assert kubectl.show("job/batch-job", "{.status.succeeded}") == "2"


def test_build_pod_waits_where_its_queue_has_no_quota(kubectl: Kubectl, api: Api) -> None:
    add_node(api)

    kubectl.apply("limited-queue", "train-priority-pod", "build-priority-pod")

    kubectl.wait_until_running("train-pod")
    said = kubectl.wait_for("Warning  NonPreemptibleOverQuota", "describe", "pod", "build-pod")
    assert "requested 1 GPU, but default-queue quota is 0 GPUs, while 0 GPUs are already allocated" in said
    assert kubectl.show("pod/build-pod", "{.status.phase}") == "Pending"
    assert kubectl.show("pod/train-pod", "{.status.phase}") == "Running"


def test_build_pod_preempts_the_train_pod_on_the_one_gpu_of_its_queue(kubectl: Kubectl, api: Api) -> None:
    add_node(api)
    kubectl.apply("limited-queue")
    kubectl.apply("train-priority-pod", to_queue="test")
    kubectl.wait_until_running("train-pod")
    # It terminates slowly: nothing ends it until it is deleted at once, below.
    kubectl("annotate", "pod/train-pod", "simulation.example.com/dead=true")

    kubectl.apply("build-priority-pod", to_queue="test")

    # The node has seven more GPUs, but the queue may hold one.
    kubectl.wait_for("has to leave for it has not ended yet (default/train-pod)", "describe", "pod", "build-pod")
    assert kubectl.show("pod/build-pod", "{.status.phase}") == "Pending"
    kubectl("delete", "pod/train-pod", "--grace-period=0", "--force")
    kubectl.wait_until_running("build-pod")
    assert kubectl("get", "pods", "-o", "name", "--field-selector=status.phase=Running").split() == ["pod/build-pod"]
    kubectl.wait_for(
        "Pod default/train-pod was evicted for workload default/build-pod, which has a higher priority",
        *("get", "events", "--field-selector=involvedObject.name=train-pod"),
    )


def test_second_train_pod_waits_for_the_one_gpu_of_its_queue_and_gets_it(kubectl: Kubectl, api: Api) -> None:
    add_node(api)
    kubectl.apply("limited-queue")
    kubectl.apply("train-priority-pod", to_queue="test")
    kubectl.wait_until_running("train-pod")

    api.create(pod("second", queue="test"))

    own_events = ("get", "events", "--field-selector=involvedObject.name=second")
    kubectl.wait_for(
        "Queue test has reached its limit of 1 GPU: it holds 1 GPU, and 1 GPU is requested.",
        *own_events,
    )
    assert "Warning  OverLimit" in kubectl("describe", "pod", "second")
    assert kubectl.show("pod/second", "{.status.phase}") == "Pending"
    kubectl("delete", "pod", "train-pod")
    kubectl.wait_until_running("second")


# -- statuses


def test_queues_show_what_they_hold_and_request(kubectl: Kubectl, api: Api) -> None:
    add_node(api)
    kubectl.apply("limited-queue")
    kubectl.apply("train-priority-pod", to_queue="test")
    kubectl.wait_until_running("train-pod")
    api.create(pod("second", queue="test"))

    gpus = [rf"{{.status.{field}.nvidia\.com/gpu}}" for field in ("allocated", "requested", "deserved", "fairShare")]
    for name in ("test", "default"):
        kubectl.wait_to_show(f"queue/{name}", "/".join(gpus[:2]), "1/2")
    assert kubectl.show("queue/test", "/".join(gpus[2:])) == "1/1"
    assert kubectl.show("queue/default", "{.status.childQueues}") == '["test"]'
    assert kubectl.show("queue/test", f"{VALID}.status}}") == "True"


def test_podgroup_shows_why_it_is_pending_and_no_longer_when_it_runs(kubectl: Kubectl, api: Api) -> None:
    add_node(api, gpus=2)
    api.create_all(gang("three", size=3, queue="default-queue"))

    kubectl.wait_for("GangDoesNotFit", "get", "podgroups")
    kubectl.wait_to_show("podgroup/three", f"{{.status.pending}} {REASON}", "3 GangDoesNotFit")
    message = kubectl.show("podgroup/three", "{.status.schedulingConditions[0].message}")
    assert message.startswith("Even empty, all nodes together hold at most 2 of 3 pods that start together")

    add_node(api, gpus=1)
    kubectl.wait_to_show("podgroup/three", f"{{.status.running}} {{.status.pending}} {REASON}", "3 0 ")
    assert "GangDoesNotFit" not in kubectl("get", "podgroups")


def test_unusable_queue_shows_the_reason(kubectl: Kubectl, api: Api) -> None:
    add_node(api)
    api.create(queue("orphan", parent="nowhere"))
    api.create(pod("p", queue="orphan"))

    kubectl.wait_to_show("queue/orphan", f"{VALID}.status}}", "False")
    assert "nowhere does not exist" in kubectl.show("queue/orphan", f"{VALID}.message}}")
    kubectl.wait_for("Warning  QueueIsInvalid", "describe", "pod", "p")

    api.create(queue("nowhere"))
    kubectl.wait_to_show("queue/orphan", f"{VALID}.status}}", "True")
    kubectl.wait_until_running("p")


# -- costs

COMING_AND_GOING = 30


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Bed]:
    """A control plane that logs every write, with Leeboard on it."""
    with Bed(tmp_path / "audited", options=ApiServerOptions(audit=Audit.WRITES)) as bed:
        bed.start_control_plane()
        bed.start_controller_manager()
        bed.start_kwok()
        with bed.api() as api:
            install(api)
        start_own_scheduler(bed, start_leeboard(bed))
        yield bed


def test_no_object_is_written_more_than_once_a_second_while_30_pods_start_and_end(audited: Bed) -> None:
    with audited.api() as api:
        add_node(api)
        add_node(api)
        api.create_all(gang("big", size=17, queue="default-queue"))
        come_and_go(api, Random(7), steps=150)

    written = writes_of_leeboard(audited)
    statuses = {target: times for target, times in written.items() if target[0] in {"queues", "podgroups"}}
    closest_s = min(later - earlier for times in statuses.values() for earlier, later in pairwise(times))
    of_pods = Counter({target: len(times) for target, times in written.items() if target[0] == "pods"})

    print({target: len(times) for target, times in statuses.items()}, f"closest {closest_s:.3f} s")
    print(Counter(of_pods.values()), "writes of a pod and subresource, by how often")
    assert len(statuses["queues", "status", "default-queue"]) >= 5
    assert closest_s >= 0.99
    # One binding, and one patch to wake it if it had to wait.
    assert set(of_pods.values()) == {1}
    assert {subresource for _, subresource, _ in of_pods} <= {"binding", "status"}


def come_and_go(api: Api, chance: Random, *, steps: int) -> None:
    """Create and delete pods, up to 30 at a time, ten steps a second."""
    there: list[str] = []
    for step in range(steps):
        if len(there) == COMING_AND_GOING or (there and chance.random() < 0.4):
            api.delete_now(f"{DEFAULT_PODS}/{there.pop(chance.randrange(len(there)))}")
        else:
            there.append(f"p-{step}")
            api.create(pod(there[-1], queue="default-queue"))
        # Rates need time; no condition is waited for.
        Event().wait(0.1)


def writes_of_leeboard(bed: Bed) -> dict[tuple[str, str, str], list[float]]:
    """Return when each object was written by Leeboard, by resource, subresource and name, in order."""
    written: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for event in audit.events(bed.audit_log):
        target = event["objectRef"]
        # Events and reviews of our own rights have no names, and each is another object.
        if event["user"]["username"] == User.LEEBOARD.value[0] and "name" in target and target["resource"] != "events":
            at_s = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
            written[target["resource"], target.get("subresource", ""), target["name"]].append(at_s)
    return {target: sorted(times) for target, times in written.items()}
