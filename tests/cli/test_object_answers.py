"""What commands say from Kubernetes objects alone, and together with the service. The API server is a fake."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result
from inline_snapshot import snapshot

from app.cli import main
from tests.cli.installation import FakeCluster
from tests.kube.apiserver import kubeconfig, listening, says

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
GROUPS = "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups"
QUEUES = "/apis/scheduling.run.ai/v2/queues"
PROXY = "/api/v1/namespaces/leeboard/services/leeboard:operations/proxy"
TOO_FULL = {"reason": "NoNodeFits", "message": "Pod train-0 needs 8 GPUs; the most on one node are 4."}


def pod(name: str = "train-0", *, node: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": f"uid-{name}",
        "labels": {"kai.scheduler/queue": "vision"},
        "annotations": {"pod-group-name": "train"},
    }
    spec = {"priority": 50, "schedulingGates": [{"name": "leeboard.dev/held"}], **({"nodeName": node} if node else {})}
    status = {"phase": "Running" if node else "Pending", "startTime": "2026-01-31T09:30:00Z"}
    return {"metadata": {**metadata, **more}, "spec": spec, "status": status}


def group(**status: Any) -> dict[str, Any]:
    metadata = {"namespace": "default", "name": "train", "uid": "uid"}
    return {"metadata": metadata, "spec": {"queue": "vision", "minMember": 2}, "status": {"phase": "Pending", **status}}


def event(reason: str, message: str, *, of: str = "kubelet", at: str = "2026-01-31T09:30:00Z") -> dict[str, Any]:
    return {"reason": reason, "message": message, "reportingComponent": of, "lastTimestamp": at, "type": "Warning"}


def queue(name: str, parent: str = "", **status: Any) -> dict[str, Any]:
    resources = {"gpu": {"quota": 4, "limit": 8.5, "overQuotaWeight": 2}, "memory": {"quota": -1}}
    spec = {"parentQueue": parent, "resources": resources} if parent else {"resources": resources}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def holding(**objects: Any) -> FakeCluster:
    """Build a cluster without the service. Its lists are given by name."""
    cluster = FakeCluster()
    for path, items in (("pods", PODS), ("events", EVENTS), ("groups", GROUPS), ("queues", QUEUES)):
        cluster.set_items(items, *objects.get(path, ()))
        for item in objects.get(path, ()):
            if "metadata" in item:
                cluster.objects[f"{items}/{item['metadata']['name']}"] = item
    return cluster


async def run(cluster: FakeCluster, folder: Path, *arguments: str, columns: int = 100) -> Result:
    async with listening(cluster.answer) as url:
        environment = {"COLUMNS": f"{columns}", "KUBECONFIG": str(kubeconfig(url, folder))}
        # Nothing listens on this port.
        runner = CliRunner(env=environment | {"LEEBOARD_OPERATIONS_PORT": "1"})
        return await asyncio.to_thread(runner.invoke, main, arguments)


async def shown(cluster: FakeCluster, folder: Path, *arguments: str) -> str:
    result = await run(cluster, folder, *arguments)
    assert result.exit_code == 0, result.output
    return "\n" + result.stdout


def why(cluster: FakeCluster, **of_service: Any) -> FakeCluster:
    """Let the service answer, through the proxy of the API server."""
    nothing = ("queueNumbers", "preemptible", "minMember", "node", "since", "position", "autoscaler")
    answer: Mapping[str, Any] = {
        "kind": "PodExplanation",
        "namespace": "default",
        "name": "train-0",
        "state": "Held",
        "why": {"reason": "OverLimit", "sentence": "Queue vision is at its limit.", "details": {}},
        "podGroup": "train",
        "queue": None,
        "priority": 50,
        "workloadPodGroups": None,
        **dict.fromkeys(nothing),
        "podsByState": {},
        "members": [],
        "waitsFor": [],
        "decisions": [],
        **of_service,
    }
    cluster.objects[f"{PROXY}/api/v1/why/default/train-0"] = answer
    return cluster


# -- why


async def test_a_held_pod_says_what_its_podgroup_waits_for(tmp_path: Path) -> None:
    cluster = holding(pods=[pod()], groups=[group(schedulingConditions=[TOO_FULL])])

    result = await run(cluster, tmp_path, "why", "train-0")

    assert "\n" + result.stdout == snapshot("""\

Pod train-0 needs 8 GPUs; the most on one node are 4.

pod       default/train-0
state     Held, NoNodeFits
podgroup  train
terms     priority 50
queue     vision
""")
    assert result.stderr.startswith(
        "Only what Kubernetes objects say: there is no Service leeboard/leeboard:operations"
    )


async def test_a_running_pod_shows_its_node_and_what_others_say_about_it(tmp_path: Path) -> None:
    cluster = holding(
        pods=[pod(node="gpu-1")],
        events=[
            event("BackOff", "Back-off pulling image x."),
            event("NoNodeFits", "Old.", of="leeboard"),
            event("Pulling", "Pulling image x.", at="2026-01-31T09:31:00Z"),
        ],
    )

    text = await shown(cluster, tmp_path, "why", "train-0")

    assert text.startswith("\nIt is on node gpu-1.\n")
    assert [line.split(maxsplit=1)[1] for line in text.splitlines()[-3:]] == [
        "EVENT    WHAT WAS SAID",
        "Pulling  Pulling image x.",
        "BackOff  Back-off pulling image x.",
    ]


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ({"pods": [pod()], "events": [event("NoNodeFits", "Of the event.", of="leeboard")]}, "Of the event."),
        ({"pods": [pod()]}, "Nothing says yet why it waits: "),
        ({"pods": [pod(deletionTimestamp="2026-01-31T09:30:00Z")]}, "It is ending."),
        (
            {
                "pods": [
                    pod()
                    | {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "Full."}]}}
                ]
            },
            "Full.",
        ),
        ({"groups": [group(pending=2, schedulingConditions=[TOO_FULL])]}, "Pod train-0 needs 8 GPUs;"),
        ({"groups": [group(running=2, phase="Running")]}, "Its phase is Running."),
    ],
    ids=["event", "nothing", "ending", "kube-scheduler", "group", "running group"],
)
async def test_the_sentence_is_of_the_best_source_that_there_is(
    tmp_path: Path, objects: dict[str, Any], sentence: str
) -> None:
    target = "train-0" if "pods" in objects else "train"

    assert (await shown(holding(**objects), tmp_path, "why", target)).startswith(f"\n{sentence}")


async def test_a_workload_is_explained_by_its_events(tmp_path: Path) -> None:
    cluster = holding(events=[event("NoNodeFits", "PodGroup train: No room.", of="leeboard")])

    assert (await shown(cluster, tmp_path, "why", "job.batch/train")).startswith("\nPodGroup train: No room.\n")


async def test_the_service_adds_to_what_the_objects_say(tmp_path: Path) -> None:
    cluster = why(
        holding(pods=[pod()], events=[event("Evicted", "By a drain.")]), queue="vision", autoscaler="It may add 2."
    )

    result = await run(cluster, tmp_path, "why", "train-0")

    assert result.stdout.startswith("Queue vision is at its limit.\n")
    assert "autoscaler  It may add 2.\n" in result.stdout
    assert result.stdout.endswith("Evicted  By a drain.\n")
    assert result.stderr == ""


async def test_a_pod_that_is_gone_is_explained_by_the_service_alone(tmp_path: Path) -> None:
    cluster = why(holding(), state="Evicted")

    assert "state     Evicted, OverLimit\n" in await shown(cluster, tmp_path, "why", "train-0")


async def test_a_user_who_may_not_read_pods_gets_the_answer_of_the_service(tmp_path: Path) -> None:
    cluster = why(holding(pods=[pod()]))
    cluster.forbidden.add(f"{PODS}/train-0")

    assert "Queue vision is at its limit." in await shown(cluster, tmp_path, "why", "train-0")


async def test_a_user_who_may_do_nothing_is_told_both_reasons(tmp_path: Path) -> None:
    cluster = holding(pods=[pod()])
    cluster.forbidden |= {f"{PODS}/train-0", f"{PROXY}/api/v1/why/default/train-0"}

    result = await run(cluster, tmp_path, "why", "train-0")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "pods/train-0 is forbidden; and you have no right to ask Leeboard" in result.stderr
    assert "get services/proxy of leeboard:operations in namespace leeboard" in result.stderr


async def test_a_mistyped_name_is_said_to_be_one_also_to_those_who_may_not_ask_the_service(tmp_path: Path) -> None:
    cluster = holding(pods=[pod()])
    cluster.forbidden.add(f"{PROXY}/api/v1/why/default/trian-0")

    result = await run(cluster, tmp_path, "why", "pod/trian-0")

    assert result.stderr == "Error: there is no pod default/trian-0; did you mean train-0?\n"


BUSY = "Leeboard is asked too many questions at once; try again in some seconds"


async def why_while_busy(cluster: FakeCluster, folder: Path, target: str, code: int) -> Result:
    """Ask while the service refuses every question."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.startswith(PROXY):
            return await says({"type": "about:blank", "status": code, "detail": BUSY}, code=code)(request)
        return await cluster.answer(request)

    async with listening(answer) as url:
        runner = CliRunner(env={"KUBECONFIG": str(kubeconfig(url, folder)), "LEEBOARD_OPERATIONS_PORT": "1"})
        return await asyncio.to_thread(runner.invoke, main, ["why", target])


@pytest.mark.parametrize("target", ["train-0", "podgroup/train", "job/train", "vision/train"])
async def test_a_busy_service_is_not_taken_for_an_unknown_name(tmp_path: Path, target: str) -> None:
    result = await why_while_busy(holding(), tmp_path, target, 503)

    said = f"Error: Service leeboard/leeboard:operations gave no answer (503 Service Unavailable): {BUSY}\n"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", said)


async def test_a_busy_service_does_not_hide_the_workload_that_the_objects_know(tmp_path: Path) -> None:
    cluster = holding(events=[event("OverLimit", "Queue vision is at its limit.", of="leeboard")])

    result = await why_while_busy(cluster, tmp_path, "job/train", 429)

    assert (result.exit_code, "Queue vision is at its limit." in result.stdout) == (0, True)


async def test_an_unknown_name_is_answered_with_those_that_look_like_it(tmp_path: Path) -> None:
    result = await run(holding(pods=[pod()], groups=[group()]), tmp_path, "why", "trian")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: there is no pod or PodGroup default/trian")
    assert result.stderr.endswith("; did you mean train?\n")


async def test_other_formats_have_the_same_fields_as_the_service(tmp_path: Path) -> None:
    cluster = holding(pods=[pod()], groups=[group(schedulingConditions=[TOO_FULL])])

    as_json = orjson.loads((await run(cluster, tmp_path, "why", "train-0", "-o", "json")).stdout)
    as_yaml = yaml.safe_load((await run(cluster, tmp_path, "why", "train-0", "-o", "yaml")).stdout)
    as_name = (await run(cluster, tmp_path, "why", "train-0", "-o", "name")).stdout

    assert as_json == as_yaml
    assert (as_json["kind"], as_json["why"]["reason"], as_json["position"]) == ("PodExplanation", "NoNodeFits", None)
    assert as_json["incomplete"].startswith("Only what Kubernetes objects say: ")
    assert as_name == "pod/train-0\n"


# -- queues


async def test_queues_are_shown_from_their_status(tmp_path: Path) -> None:
    amounts = {"cpu": "1500m", "memory": "1073741824", "nvidia.com/gpu": "2500m"}
    broken = {"type": "Valid", "status": "False", "message": "its parents form a circle"}
    cluster = holding(
        queues=[
            queue("research", allocated=amounts, requested=amounts, fairShare=amounts, allocatedNonPreemptible={}),
            queue("vision", "research", conditions=[broken]),
        ]
    )

    assert await shown(cluster, tmp_path, "queues", "-o", "wide") == snapshot("""\

QUEUE       DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT  NONPREEMPT  WEIGHT  PRIORITY
research           4    8.5   2.5    2.5      2.5     -           -       2       100
  vision !         4    8.5     -      -        -     -           -       2       100

In GPUs. - means unlimited; under FAIR it means that the queue gets no share.
! vision: its parents form a circle
""")
    assert await shown(cluster, tmp_path, "queues", "--no-headers", "-r", "cpu") == snapshot("""\

research    -  -  1.5  1.5  1.5  -
  vision !  -  -    -    -    -  -
""")
    assert await shown(cluster, tmp_path, "queues", "-o", "name") == snapshot("""\

queue.scheduling.run.ai/research
queue.scheduling.run.ai/vision
""")


async def test_an_unknown_queue_is_answered_with_those_that_look_like_it(tmp_path: Path) -> None:
    result = await run(holding(queues=[queue("vision")]), tmp_path, "queues", "vison")

    assert result.stderr == "Error: no queue 'vison' is known; there are vision; did you mean vision?\n"


async def test_a_user_who_may_not_list_queues_is_told_what_to_ask_for(tmp_path: Path) -> None:
    cluster = holding()
    cluster.forbidden |= {QUEUES, f"{PROXY}/api/v1/queues"}

    result = await run(cluster, tmp_path, "queues")

    assert result.exit_code == 1
    assert "queues is forbidden; ask for the ClusterRole leeboard-view" in result.stderr


# -- watching


class Interrupt:
    """Stands in for the pause between two looks: changes the cluster, and ends the watch after some looks."""

    def __init__(self, *changes: Any) -> None:
        self.changes = [*changes]

    def __call__(self, _pause_s: float) -> None:
        if not self.changes:
            raise KeyboardInterrupt
        self.changes.pop(0)()


async def test_watching_prints_an_answer_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = holding(pods=[pod()])
    path = f"{PODS}/train-0"

    def bound() -> None:
        cluster.objects[path] = pod(node="gpu-1")

    def gone() -> None:
        del cluster.objects[path]

    monkeypatch.setattr("app.cli.output.wait", Interrupt(lambda: None, bound, gone))

    result = await run(cluster, tmp_path, "why", "train-0", "-w", "-o", "json")

    assert result.exit_code == 0
    assert [orjson.loads(line)["state"] for line in result.stdout.splitlines()] == ["Held", "Bound"]
    assert "No answer at " not in result.stdout
