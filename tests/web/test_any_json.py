"""Whatever is posted to a verb, the answer is 200 in the form that kube-scheduler can decode."""

import http.client
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.telemetry import Metrics, Verb
from app.web import webhooks
from tests.web.fakes import FakeExtender
from tests.web.served import HOST, serving_from_a_thread

pytestmark = pytest.mark.slow

FIELDS = (
    *("Pod", "Nodes", "NodeNames", "NodeNameToVictims", "NodeNameToMetaVictims", "PodName", "PodNamespace", "PodUID"),
    *("Node", "Pods", "UID", "NumPDBViolations", "metadata", "uid", "pod", "nodenames", "items"),
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False) | st.text(max_size=8)
)
KEYS = st.sampled_from(FIELDS) | st.text(max_size=4)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=12)
ALMOST = st.fixed_dictionaries(
    {"Pod": JSON | st.just({}), "NodeNames": JSON | st.lists(st.text(max_size=5))},
    optional={name: JSON for name in FIELDS if name not in ("Pod", "NodeNames")},
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving_from_a_thread(webhooks.application(FakeExtender(), Metrics())) as port:
        yield port


def posted(port: int, verb: Verb, body: bytes) -> object:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("POST", f"/{verb}", body)
        response = connection.getresponse()
        reply = response.read()
    finally:
        connection.close()
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
    return orjson.loads(reply)


def is_filter_reply(reply: Any) -> bool:
    names, unresolvable = reply.pop("NodeNames"), reply.pop("FailedAndUnresolvableNodes")
    error = reply.pop("Error")
    strings = [*names, *unresolvable, *unresolvable.values(), error]
    return reply == {"Nodes": None, "FailedNodes": {}} and all(isinstance(text, str) for text in strings)


def is_scores(reply: Any) -> bool:
    return all(set(one) == {"Host", "Score"} and type(one["Score"]) is int for one in reply)


def is_victims(reply: Any) -> bool:
    by_node = reply.pop("NodeNameToMetaVictims")
    return reply == {} and all(
        type(victims.pop("NumPDBViolations")) is int
        and all(isinstance(pod["UID"], str) for pod in victims.pop("Pods"))
        and victims == {}
        for victims in by_node.values()
    )


def is_bind_reply(reply: Any) -> bool:
    return set(reply) == {"Error"} and isinstance(reply["Error"], str)


FORMS: dict[Verb, Callable[[Any], bool]] = {
    Verb.FILTER: is_filter_reply,
    Verb.PRIORITIZE: is_scores,
    Verb.PREEMPT: is_victims,
    Verb.BIND: is_bind_reply,
}


@pytest.mark.parametrize("verb", Verb)
@settings(max_examples=60, deadline=None)
@given(arguments=JSON | ALMOST)
def test_any_json_is_answered_in_protocol_form(port: int, verb: Verb, arguments: object) -> None:
    assert FORMS[verb](posted(port, verb, orjson.dumps(arguments)))


@pytest.mark.parametrize("verb", Verb)
@settings(max_examples=30, deadline=None)
@given(body=st.binary(max_size=200))
def test_any_bytes_are_answered_in_protocol_form(port: int, verb: Verb, body: bytes) -> None:
    assert FORMS[verb](posted(port, verb, body))
