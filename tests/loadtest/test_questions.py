"""Questions under load are readable by our wire format, and no wrong answer is taken for a right one."""

from typing import Any

import orjson
import pytest

from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, PodQuestion
from app.model.reason import Reason, phrase
from app.model.seam import PodRef, RawObject
from app.web import wire
from app.web.wire import PreemptQuestion
from loadtest import questions
from loadtest.questions import Shape

OFFERED = ("n1", "n2")
NAMES = tuple(map(NodeName, OFFERED))
DECIDING = phrase(Reason.DECIDING)


def stored(shape: Shape = Shape.LONE) -> RawObject:
    pod = questions.pod("p", shape)
    return pod | {"metadata": pod["metadata"] | {"uid": "u"}}


def reply(*names: str, **changed: Any) -> Any:
    whole: dict[str, Any] = {
        "NodeNames": list(names),
        "Nodes": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    return whole | changed


def refusal(*names: str, text: str = "no room") -> Any:
    return reply(FailedAndUnresolvableNodes=dict.fromkeys(names, text))


def score(node: str, points: object = 0) -> dict[str, object]:
    return {"Host": node, "Score": points}


# -- questions


def test_pod_is_sent_as_the_informer_of_kube_scheduler_keeps_it() -> None:
    sent = questions.as_sent(stored())

    assert sent.keys() == {"metadata", "spec", "status"}
    assert "managedFields" not in sent["metadata"]


@pytest.mark.parametrize("shape", Shape)
def test_body_of_filter_is_what_the_wire_reads(shape: Shape) -> None:
    pod = questions.as_sent(stored(shape))

    read = wire.read_pod_question(questions.pod_body(pod, orjson.dumps(OFFERED)))

    assert read == PodQuestion(pod=pod, uid=PodUid("u"), offered=NAMES)


def test_what_if_question_has_no_uid() -> None:
    pod = questions.as_what_if(stored())

    read = wire.read_pod_question(questions.pod_body(pod, orjson.dumps(OFFERED)))

    assert read == PodQuestion(pod=pod, uid=None, offered=NAMES)


def test_body_of_bind_is_what_the_wire_reads() -> None:
    read = wire.read_bind_question(questions.bind_body(stored(), "n1"))

    pod = PodRef(namespace=questions.NAMESPACE, name="p", uid=PodUid("u"))
    assert read == BindQuestion(pod=pod, node=NodeName("n1"))


def test_body_of_preempt_is_what_the_wire_reads() -> None:
    pod, victims = questions.as_sent(stored()), questions.candidates(OFFERED)

    read = wire.read_preempt_question(questions.preempt_body(pod, victims))

    assert read == PreemptQuestion(pod=pod, candidates=victims)  # type: ignore[arg-type] # names are strings here


def test_each_list_of_names_continues_where_the_last_one_ended() -> None:
    assert questions.windows(["a", "b", "c"], 2, 3) == [("a", "b"), ("c", "a"), ("b", "c")]


def test_more_names_than_nodes_are_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match="3 names cannot be offered of 2 nodes"):
        questions.windows(["a", "b"], 3, 1)


# -- right answers


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        (Shape.LONE, reply("n2")),
        (Shape.HUGE, refusal(*OFFERED)),
        (Shape.FOREIGN, reply(*OFFERED)),
        (Shape.FOREIGN, reply(*OFFERED, FailedNodes=None)),
    ],
)
def test_right_answer_of_filter_has_no_fault(shape: Shape, answer: Any) -> None:
    assert questions.fault_of_filter(shape, answer, OFFERED) == ""


@pytest.mark.parametrize(
    ("shape", "answer", "fault"),
    [
        (Shape.LONE, reply("n1", "n2"), "2 nodes for a promised pod instead of 1: no reason given"),
        (Shape.LONE, refusal(*OFFERED), "0 nodes for a promised pod instead of 1: no room"),
        (Shape.LONE, reply("n3"), "NodeNames holds a node twice, or one that was not offered"),
        (Shape.LONE, reply("n1", "n1"), "NodeNames holds a node twice, or one that was not offered"),
        (Shape.LONE, reply("n1", Error="broken"), "error: broken"),
        (Shape.LONE, reply(NodeNames="n1"), "NodeNames is no list, or FailedAndUnresolvableNodes no object"),
        (Shape.LONE, None, "the answer is no object"),
        (Shape.HUGE, reply("n1"), "1 nodes for a pod that fits on none, 0 refused"),
        (Shape.HUGE, refusal("n1"), "0 nodes for a pod that fits on none, 1 refused"),
        (Shape.FOREIGN, reply("n1"), "1 of 2 nodes for a pod that is not managed"),
    ],
)
def test_wrong_answer_of_filter_is_found(shape: Shape, answer: Any, fault: str) -> None:
    assert questions.fault_of_filter(shape, answer, OFFERED) == fault


def test_failed_nodes_are_never_right() -> None:
    fault = questions.fault_of_filter(Shape.HUGE, reply(FailedNodes={"n1": "full"}), OFFERED)

    assert fault.startswith("FailedNodes is not empty")


@pytest.mark.parametrize(
    ("answer", "undecided"),
    [
        (refusal(*OFFERED, text=DECIDING), True),
        (refusal("n1", text=DECIDING), False),
        (refusal(*OFFERED), False),
        (reply("n1"), False),
        (None, False),
    ],
)
def test_only_a_refusal_of_every_node_without_a_plan_is_undecided(answer: Any, undecided: bool) -> None:  # noqa: FBT001 # a column
    assert questions.is_undecided(answer, OFFERED) is undecided


def test_what_if_question_must_find_a_node() -> None:
    assert [questions.fault_of_what_if(answer, OFFERED) for answer in (reply("n1"), reply(), reply("n3"))] == [
        "",
        "no node for a pod of one GPU, though there is room",
        "NodeNames holds a node twice, or one that was not offered",
    ]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([score("n1", 10), score("n2", 0)], ""),
        ([score("n1"), score("n2", 11)], "{'Host': 'n2', 'Score': 11} is no score from 0 to 10"),
        ([score("n1"), score("n2", 7.5)], "{'Host': 'n2', 'Score': 7.5} is no score from 0 to 10"),
        ([score("n1")], "the scores are not those of the offered nodes"),
        ([score("n1"), "n2"], "the answer is no list of scores"),
        ({}, "the answer is no list of scores"),
    ],
)
def test_every_offered_node_has_one_score(answer: Any, fault: str) -> None:
    assert questions.fault_of_scores(answer, OFFERED) == fault


def test_managed_pod_has_no_victims_and_other_pods_those_of_kube_scheduler() -> None:
    victims = questions.candidates(OFFERED)
    nobody: RawObject = {"NodeNameToMetaVictims": {}}
    everybody = {"NodeNameToMetaVictims": victims}
    asked = ((Shape.LONE, nobody), (Shape.LONE, everybody), (Shape.FOREIGN, everybody), (Shape.FOREIGN, nobody))

    assert [questions.fault_of_preempt(shape, answer, victims) for shape, answer in asked] == [
        "",
        "other victims than the 0 expected for a lone pod",
        "",
        "other victims than the 2 expected for a foreign pod",
    ]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"Error": ""}, ""),
        ({"Error": "taken"}, "taken"),
        ({}, "the answer of bind is no object with an Error"),
        ([], "the answer of bind is no object with an Error"),
    ],
)
def test_pod_is_bound_where_the_error_is_empty(answer: Any, fault: str) -> None:
    assert questions.fault_of_bind(answer) == fault
