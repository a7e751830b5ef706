"""`/api/v1/why` over a real socket."""

from dataclasses import replace

import pytest

from app.model.explanation import (
    DecidedPod,
    Decision,
    Explanation,
    GroupState,
    Leaver,
    Member,
    Outcome,
    PodState,
    Position,
    QueueStand,
    Subject,
    Unknown,
    Why,
)
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.reason import Reason
from app.model.resources import Resources
from app.model.sentence import Name, say, tenant
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody
from app.web.why_answers import PODS_SHOWN, ExplanationAnswer
from tests.given import queue
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import HttpReply, get, serving

KEY = GroupKey("vision", "train")
NODE = NodeName("gpu-1")
NOTHING = {"cpuMilli": 0, "memoryBytes": 0, "gpuMilli": 0}
UNLIMITED = {"cpuMilli": None, "memoryBytes": None, "gpuMilli": None}


async def asked(path: str, inspect: FakeInspect) -> HttpReply:
    async with serving(operations.application(inspect, Metrics(), FakePulse(), callers=Anybody())) as served:
        return await served.ask(get(path))


def evicted(*pods: str) -> Decision:
    return Decision(
        outcome=Outcome.EVICTED,
        group=KEY,
        generation=7,
        sentence="Pod vision/train-0 was preempted by workload q/x.",
        pods=tuple(DecidedPod(PodUid(f"uid-{name}"), name, NODE) for name in pods),
        cause="preempt",
        beneficiary=Name("q", "x"),
        at=60.0,
    )


def test_a_reader_of_one_namespace_gets_no_names_of_others() -> None:
    who = Name("rival", "secret", "a workload in another namespace")
    told = Explanation(
        subject=Subject.POD_GROUP,
        namespace="vision",
        name="train",
        state=GroupState.WAITING,
        why=Why(reason="Evicted", sentence=say("Evicted for {who}.", who=who), details={"for": say("{who}", who=who)}),
        position=Position(ahead_in_queue=1, first=(Name("rival", "secret"), Name("vision", "other")), ahead=2),
        waits_for=(Leaver(namespace="rival", name="secret-0", node=NODE),),
        decisions=(replace(evicted("train-0"), sentence=say("For {who}.", who=who), beneficiary=who),),
    )

    shown = ExplanationAnswer.of(told, tenant("vision"))

    hidden = "a workload in another namespace"
    assert (shown.why.sentence, shown.why.details) == (f"Evicted for {hidden}.", {"for": hidden})
    assert shown.position is not None
    assert shown.position.first_ahead == ("a PodGroup in another namespace", "other")
    assert [(each.namespace, each.name) for each in shown.waits_for] == [("", "")]
    assert [(each.sentence, each.on_behalf_of) for each in shown.decisions] == [(f"For {hidden}.", hidden)]
    assert "secret" not in shown.model_dump_json()
    assert ExplanationAnswer.of(told).decisions[0].on_behalf_of == "rival/secret"


async def test_a_podgroup_is_shown_with_all_that_is_known() -> None:
    told = Explanation(
        subject=Subject.POD_GROUP,
        namespace="vision",
        name="train",
        state=GroupState.WAITING,
        why=Why(reason=Reason.OVER_LIMIT, sentence="q may hold 8 GPUs and holds 8.", details={"limitGpuMilli": 8000}),
        uid="uid",
        pod_group="train",
        queue=QueueName("q"),
        stand=QueueStand(queue=queue("q", deserved=4, limit=8), allocated=Resources(gpu_milli=8000), waiting=2),
        priority=50,
        preemptible=True,
        min_member=2,
        position=Position(ahead_in_queue=1, first=(Name("vision", "other"),), ahead=3, is_least=True),
        counts={"Held": 1, "Awaiting": 1},
        members=(Member("train-0", PodState.AWAITING, NODE), Member("train-1", PodState.HELD, None)),
        waits_for=(Leaver(namespace="q", name="victim", node=NODE, since=90.5),),
        decisions=(evicted("train-0"),),
    )
    inspect = FakeInspect(told=told)

    reply = await asked("/api/v1/why/vision/train", inspect)

    assert inspect.questions == [("vision", "train", None)]
    assert reply.json == {
        "apiVersion": "leeboard.dev/v1alpha1",
        "kind": "PodGroupExplanation",
        "namespace": "vision",
        "name": "train",
        "uid": "uid",
        "state": "Waiting",
        "why": {
            "reason": "OverLimit",
            "sentence": "q may hold 8 GPUs and holds 8.",
            "details": {"limitGpuMilli": 8000},
        },
        "podGroup": "train",
        "queue": "q",
        "queueNumbers": {
            "deserved": UNLIMITED | {"gpuMilli": 4000},
            "limit": UNLIMITED | {"gpuMilli": 8000},
            "fairShare": None,
            "allocated": NOTHING | {"gpuMilli": 8000},
            "requested": NOTHING,
            "waitingPodGroups": 2,
            "problem": None,
        },
        "priority": 50,
        "preemptible": True,
        "minMember": 2,
        "node": None,
        "since": None,
        "position": {"aheadInQueue": 1, "firstAhead": ["other"], "ahead": 3, "atLeast": True},
        "podsByState": {"Awaiting": 1, "Held": 1},
        "members": [
            {"name": "train-0", "state": "Awaiting", "node": "gpu-1"},
            {"name": "train-1", "state": "Held", "node": None},
        ],
        "waitsFor": [{"namespace": "q", "name": "victim", "node": "gpu-1", "since": "1970-01-01T00:01:30.500000Z"}],
        "autoscaler": None,
        "workloadPodGroups": None,
        "decisions": [
            {
                "at": "1970-01-01T00:01:00Z",
                "generation": 7,
                "outcome": "Evicted",
                "cause": "preempt",
                "sentence": "Pod vision/train-0 was preempted by workload q/x.",
                "onBehalfOf": "q/x",
                "pods": [{"name": "train-0", "uid": "uid-train-0", "node": "gpu-1"}],
                "podCount": 1,
            }
        ],
        "claims": [],
    }


def gone(*decisions: Decision) -> Explanation:
    why = Why(reason="Evicted", sentence="Pod vision/train-0 was preempted by workload q/x.")
    return Explanation(
        subject=Subject.POD, namespace="vision", name="train-0", state=PodState.EVICTED, why=why, decisions=decisions
    )


async def test_a_deleted_pod_is_shown_with_null_for_unknown_values() -> None:
    reply = await asked("/api/v1/why/vision/train-0", FakeInspect(told=gone()))

    assert isinstance(reply.json, dict)
    assert (reply.status, reply.json["kind"], reply.json["state"]) == (200, "PodExplanation", "Evicted")
    unknown = ("uid", "podGroup", "queue", "queueNumbers", "priority", "preemptible", "minMember", "since", "position")
    assert [reply.json[name] for name in unknown] == [None] * len(unknown)


async def test_a_decision_about_many_pods_names_the_first() -> None:
    names = [f"train-{number}" for number in range(PODS_SHOWN + 5)]

    reply = await asked("/api/v1/why/vision/train-0", FakeInspect(told=gone(evicted(*names))))

    assert isinstance(reply.json, dict)
    (decision,) = reply.json["decisions"]
    assert ([pod["name"] for pod in decision["pods"]], decision["podCount"]) == (names[:PODS_SHOWN], len(names))


@pytest.mark.parametrize(
    ("query", "subject"),
    [("", None), ("?kind=", None), ("?kind=pod", Subject.POD), ("?kind=podgroup", Subject.POD_GROUP)],
)
async def test_the_kind_may_be_named(query: str, subject: Subject | None) -> None:
    inspect = FakeInspect(told=gone())

    await asked(f"/api/v1/why/vision/train-0{query}", inspect)

    assert inspect.questions == [("vision", "train-0", subject)]


async def test_an_unknown_kind_is_a_problem_that_names_the_known_ones() -> None:
    reply = await asked("/api/v1/why/vision/train-0?kind=job", FakeInspect(told=gone()))

    assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json")
    assert isinstance(reply.json, dict)
    assert reply.json["detail"] == "GET /api/v1/why/vision/train-0: kind is pod, podgroup or workload, not 'job'"


async def test_an_unknown_object_is_a_problem_with_its_message() -> None:
    reply = await asked("/api/v1/why/vision/none", FakeInspect(told=Unknown("no pod is known; look elsewhere")))

    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    assert isinstance(reply.json, dict)
    assert reply.json["detail"] == "GET /api/v1/why/vision/none: no pod is known; look elsewhere"
