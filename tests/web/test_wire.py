"""The meaning of each body, and the messages for invalid ones."""

import orjson
import pytest

from app.model.names import NodeName, PodUid
from app.model.question import BindQuestion, Failed, Fits, PodQuestion, Refused
from app.model.reason import Reason, phrase
from app.model.seam import PodRef
from app.telemetry import Verb
from app.web import wire
from app.web.wire import PreemptQuestion

POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}}
BIND = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"}
OFFERED = (NodeName("n1"), NodeName("n2"))


def failure(question: object) -> str:
    assert isinstance(question, Failed)
    return question.error


def pod_failure(arguments: object) -> str:
    return failure(wire.read_pod_question(orjson.dumps(arguments)))


def preempt_failure(arguments: object) -> str:
    return failure(wire.read_preempt_question(orjson.dumps(arguments)))


def bind_failure(**changed: object) -> str:
    return failure(wire.read_bind_question(orjson.dumps(BIND | changed)))


# -- filter and prioritize


def test_question_of_kube_scheduler_is_read() -> None:
    body = orjson.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]})
    assert wire.read_pod_question(body) == PodQuestion(pod=POD, uid=PodUid("u"), offered=OFFERED)


def test_question_with_more_values_than_any_pod_has_is_refused() -> None:
    said = "the arguments have about 1000006 values, more than the 100000 that are read"
    arguments = {"Pod": POD, "x": [[]] * 500_000}

    assert pod_failure(arguments) == said
    assert preempt_failure(arguments) == said
    assert failure(wire.read_bind_question(orjson.dumps(arguments))) == said


def test_question_with_the_nodes_of_the_largest_clusters_is_read() -> None:
    names = [f"node-{number:05}.{'x' * 40}" for number in range(15_000)]

    question = wire.read_pod_question(orjson.dumps({"Pod": POD, "NodeNames": names}))

    assert isinstance(question, PodQuestion)
    assert len(question.offered) == len(names)


def test_question_with_lower_case_names_is_read() -> None:
    body = orjson.dumps({"pod": POD, "nodenames": ["n1", "n2"]})
    assert wire.read_pod_question(body) == PodQuestion(pod=POD, uid=PodUid("u"), offered=OFFERED)


def test_exact_name_overrides_a_lower_case_one() -> None:
    body = orjson.dumps({"nodenames": ["other"], "NodeNames": ["n1", "n2"], "Pod": POD})
    assert wire.read_pod_question(body) == PodQuestion(pod=POD, uid=PodUid("u"), offered=OFFERED)


@pytest.mark.parametrize("pod", [{}, {"metadata": None}, {"metadata": {}}, {"metadata": {"uid": ""}}])
def test_pod_without_uid_is_a_what_if(pod: dict[str, object]) -> None:
    body = orjson.dumps({"Pod": pod, "NodeNames": []})
    assert wire.read_pod_question(body) == PodQuestion(pod=pod, uid=None, offered=())


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"Pod": NaN}', b"[" * 5000, b"{}{}"])
def test_body_that_is_not_json_gets_a_message(body: bytes) -> None:
    assert failure(wire.read_pod_question(body)).startswith("the body is not JSON")


@pytest.mark.parametrize("arguments", [None, 1, "text", [], [{"Pod": {}}], True])
def test_body_that_is_not_an_object_gets_a_message(arguments: object) -> None:
    assert pod_failure(arguments) == "the body must be one JSON object: the arguments of an extender call"


@pytest.mark.parametrize("pod", [None, 1, "p", [POD]])
def test_pod_that_is_not_an_object_gets_a_message(pod: object) -> None:
    assert pod_failure({"Pod": pod, "NodeNames": []}) == "Pod must be an object: the pod to be scheduled"


def test_missing_pod_gets_a_message() -> None:
    assert pod_failure({"NodeNames": []}) == "Pod must be an object: the pod to be scheduled"


def test_metadata_that_is_not_an_object_gets_a_message() -> None:
    assert pod_failure({"Pod": {"metadata": []}, "NodeNames": []}) == "Pod.metadata must be an object"


@pytest.mark.parametrize("uid", [7, ["u"], {}, True])
def test_uid_that_is_not_a_string_gets_a_message(uid: object) -> None:
    said = pod_failure({"Pod": {"metadata": {"uid": uid}}, "NodeNames": []})
    assert said == "Pod.metadata.uid must be a string, or absent for a what-if"


@pytest.mark.parametrize("key", ["name", "namespace", "uid"])
@pytest.mark.parametrize("odd", [5, [], {}, True])
def test_name_of_a_pod_must_be_a_string(key: str, odd: object) -> None:
    body = orjson.dumps({"Pod": {"metadata": {key: odd}}, "NodeNames": ["a"]})

    assert wire.read_pod_question(body) == Failed(f"Pod.metadata.{key} must be a string, or absent for a what-if")


def test_full_nodes_are_answered_with_the_setting_to_change() -> None:
    said = pod_failure({"Pod": POD, "Nodes": {"items": []}, "NodeNames": None})
    assert said.startswith("set nodeCacheCapable: true")


@pytest.mark.parametrize("names", [None, "n1", {"n1": 1}, 3, ["n1", 2], [["n1"]], ["n1", None]])
def test_names_that_are_not_a_list_of_strings_get_a_message(names: object) -> None:
    said = pod_failure({"Pod": POD, "Nodes": None, "NodeNames": names})
    assert said == "NodeNames must be a list of strings: the names of the nodes to choose from"


def test_missing_names_get_a_message() -> None:
    assert pod_failure({"Pod": POD}).startswith("NodeNames must be a list of strings")


def test_dropped_nodes_are_absent() -> None:
    assert orjson.loads(wire.write_filter(Fits(OFFERED[1:]), OFFERED)) == {
        "NodeNames": ["n2"],
        "Nodes": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


@pytest.mark.parametrize("reason", Reason)
def test_refusal_names_every_offered_node_as_unresolvable_with_the_fixed_phrase(reason: Reason) -> None:
    assert orjson.loads(wire.write_filter(Refused(reason), OFFERED)) == {
        "NodeNames": [],
        "Nodes": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n1": phrase(reason), "n2": phrase(reason)},
        "Error": "",
    }


def test_failure_is_an_error_and_no_node() -> None:
    assert orjson.loads(wire.write_filter(Failed("not synced"), OFFERED)) == {
        "NodeNames": [],
        "Nodes": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "not synced",
    }


def test_every_offered_node_is_scored_once_in_order() -> None:
    scores = {NodeName("n2"): 7, NodeName("not-offered"): 10}
    assert wire.write_scores(scores, OFFERED) == b'[{"Host":"n1","Score":0},{"Host":"n2","Score":7}]'


# -- preempt


def test_victims_by_uid_are_read_as_they_are() -> None:
    victims = {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 2}}
    body = orjson.dumps({"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims})
    assert wire.read_preempt_question(body) == PreemptQuestion(pod=POD, candidates=victims)  # type: ignore[arg-type] # raw names


def test_full_victims_are_reduced_to_their_uids() -> None:
    full = {"n1": {"Pods": [{"metadata": {"uid": "v", "name": "x"}, "spec": {}}], "NumPDBViolations": 1}}
    question = wire.read_preempt_question(orjson.dumps({"Pod": POD, "NodeNameToVictims": full}))
    assert isinstance(question, PreemptQuestion)
    assert question.candidates == {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}


def test_node_without_victims_is_read_as_such() -> None:
    question = wire.read_preempt_question(orjson.dumps({"pod": POD, "nodenametometavictims": {"n1": {"Pods": None}}}))
    assert isinstance(question, PreemptQuestion)
    assert question.candidates == {"n1": {"Pods": [], "NumPDBViolations": 0}}


@pytest.mark.parametrize("by_node", [None, [], "n1", 4])
def test_victims_that_are_not_by_node_get_a_message(by_node: object) -> None:
    said = preempt_failure({"Pod": POD, "NodeNameToMetaVictims": by_node})
    assert said == "NodeNameToMetaVictims must be an object: victims by node name"


@pytest.mark.parametrize(
    ("victims", "said"),
    [
        (None, "each node's victims must be an object with Pods and NumPDBViolations"),
        ([], "each node's victims must be an object with Pods and NumPDBViolations"),
        ({"Pods": "v"}, "a node's Pods must be a list of victims"),
        ({"Pods": ["v"]}, "each victim must carry its UID"),
        ({"Pods": [{}]}, "each victim must carry its UID"),
        ({"Pods": [{"UID": 3}]}, "each victim must carry its UID"),
        ({"Pods": [{"metadata": {}}]}, "each victim must carry its UID"),
        ({"Pods": [], "NumPDBViolations": 1.5}, "NumPDBViolations must be an integer"),
        ({"Pods": [], "NumPDBViolations": True}, "NumPDBViolations must be an integer"),
        ({"Pods": [], "NumPDBViolations": "1"}, "NumPDBViolations must be an integer"),
    ],
)
def test_victims_of_a_wrong_type_get_a_message(victims: object, said: str) -> None:
    assert preempt_failure({"Pod": POD, "NodeNameToMetaVictims": {"n1": victims}}) == said


def test_preempt_without_pod_gets_a_message() -> None:
    assert preempt_failure({"NodeNameToMetaVictims": {}}) == "Pod must be an object: the pod to be scheduled"


# -- bind


def test_binding_is_read() -> None:
    expected = BindQuestion(pod=PodRef(namespace="d", name="p", uid=PodUid("u")), node=NodeName("n1"))
    assert wire.read_bind_question(orjson.dumps(BIND)) == expected


@pytest.mark.parametrize("field", BIND)
@pytest.mark.parametrize("value", [None, "", 3, ["x"], {}])
def test_binding_with_a_field_that_is_not_a_string_names_the_field(field: str, value: object) -> None:
    assert bind_failure(**{field: value}) == f"{field} must be a non-empty string"


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node"])
@pytest.mark.parametrize("value", ["../secrets/x", "a/b", "A", "a%2fb", "a b", "-a", "a\n", "n\u0661", "a" * 254])
def test_binding_with_a_name_that_leaves_its_path_names_the_field(field: str, value: str) -> None:
    assert bind_failure(**{field: value}).startswith(f"{field} must be the name of a Kubernetes object")


@pytest.mark.parametrize("value", ["a", "gpu-07.rack-2.example.com", "a" * 253])
def test_binding_to_any_legal_node_name_is_read(value: str) -> None:
    assert isinstance(wire.read_bind_question(orjson.dumps(BIND | {"Node": value})), BindQuestion)


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (Verb.PRIORITIZE, []),
        (Verb.PREEMPT, {"NodeNameToMetaVictims": {}}),
        (Verb.BIND, {"Error": "why"}),
        (
            Verb.FILTER,
            {"NodeNames": [], "Nodes": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": "why"},
        ),
    ],
)
def test_error_has_the_form_of_its_verb(verb: Verb, said: object) -> None:
    assert orjson.loads(wire.write_error(verb, "why")) == said
