"""The four verbs over a real socket."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from structlog.testing import capture_logs

from app.model.names import NodeName
from app.model.question import Failed, FilterAnswer, Fits, Refused
from app.model.reason import Reason, phrase
from app.telemetry import CallOutcome, Metrics, Verb
from app.web import webhooks
from tests.web.fakes import FakeExtender
from tests.web.served import HttpReply, Served, post, serving

POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}}
NAMES = orjson.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]})
VICTIMS = {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
PREEMPT = orjson.dumps({"Pod": POD, "NodeNameToMetaVictims": VICTIMS})
BIND = orjson.dumps({"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"})
QUESTIONS = {Verb.FILTER: NAMES, Verb.PRIORITIZE: NAMES, Verb.PREEMPT: PREEMPT, Verb.BIND: BIND}


@pytest.fixture
def extender() -> FakeExtender:
    return FakeExtender()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def served(extender: FakeExtender, metrics: Metrics) -> AsyncIterator[Served]:
    async with serving(webhooks.application(extender, metrics)) as one:
        yield one


def filter_reply(**said: object) -> dict[str, object]:
    nothing: dict[str, object] = {
        "NodeNames": [],
        "Nodes": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    return nothing | said


def counted(metrics: Metrics, verb: Verb, outcome: CallOutcome) -> float | None:
    labels = {"verb": verb.value, "outcome": outcome.value}
    return metrics.registry.get_sample_value("leeboard_webhook_duration_seconds_count", labels)


def is_protocol_reply(reply: HttpReply) -> bool:
    """Check what every reply must have in common."""
    headers = reply.headers
    return reply.status == 200 and "transfer-encoding" not in headers and headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Fits((NodeName("n2"),)), filter_reply(NodeNames=["n2"])),
        (
            Refused(Reason.OVER_LIMIT),
            filter_reply(FailedAndUnresolvableNodes=dict.fromkeys(["n1", "n2"], phrase(Reason.OVER_LIMIT))),
        ),
        (Failed("not synced"), filter_reply(Error="not synced")),
    ],
)
async def test_filter_returns_the_decision_of_the_extender(
    served: Served, extender: FakeExtender, answer: FilterAnswer, said: object
) -> None:
    extender.answer = answer
    reply = await served.ask(post("/filter", NAMES))
    assert is_protocol_reply(reply)
    assert reply.json == said


async def test_prioritize_scores_each_offered_node(served: Served, extender: FakeExtender) -> None:
    extender.scores = {NodeName("n1"): 3}
    reply = await served.ask(post("/prioritize", NAMES))
    assert reply.json == [{"Host": "n1", "Score": 3}, {"Host": "n2", "Score": 0}]


async def test_preempt_returns_the_victims_that_the_extender_accepts(served: Served) -> None:
    assert (await served.ask(post("/preempt", PREEMPT))).json == {"NodeNameToMetaVictims": VICTIMS}


async def test_preempt_names_no_node_when_the_extender_allows_none(served: Served, extender: FakeExtender) -> None:
    extender.allowed = {}
    assert (await served.ask(post("/preempt", PREEMPT))).json == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize("error", ["", "its PodGroup did not come together"])
async def test_bind_returns_an_error_or_nothing(served: Served, extender: FakeExtender, error: str) -> None:
    extender.bind_error = error
    assert (await served.ask(post("/bind", BIND))).json == {"Error": error}


async def test_lower_case_body_sent_by_curl_is_answered(served: Served) -> None:
    body = orjson.dumps({"pod": POD, "nodenames": ["n1", "n2"]})
    reply = await served.ask(post("/filter", body, "Content-Type: application/x-www-form-urlencoded", "Accept: */*"))
    assert reply.json == filter_reply(NodeNames=["n1"])


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"{}", b'{"Pod": 1}', b"\x00" * 100])
async def test_bad_question_is_answered_in_protocol_form_and_counted(
    served: Served, extender: FakeExtender, metrics: Metrics, verb: Verb, body: bytes
) -> None:
    reply = await served.ask(post(f"/{verb}", body))
    assert is_protocol_reply(reply)
    assert extender.asked == []
    assert counted(metrics, verb, CallOutcome.BAD_REQUEST) == 1


@pytest.mark.parametrize("verb", Verb)
async def test_broken_extender_is_answered_in_protocol_form_logged_once_and_counted(
    served: Served, extender: FakeExtender, metrics: Metrics, verb: Verb
) -> None:
    extender.breaks_with = RuntimeError("broken")
    with capture_logs() as logs:
        reply = await served.ask(post(f"/{verb}", QUESTIONS[verb]))
    assert is_protocol_reply(reply)
    assert [(line["event"], line["verb"], line["exc_info"]) for line in logs] == [
        ("webhook call failed", verb.value, True)
    ]
    assert counted(metrics, verb, CallOutcome.ERROR) == 1


@pytest.mark.parametrize("verb", [Verb.FILTER, Verb.BIND])
async def test_broken_extender_never_looks_like_success(served: Served, extender: FakeExtender, verb: Verb) -> None:
    extender.breaks_with = RuntimeError("broken")
    reply = await served.ask(post(f"/{verb}", QUESTIONS[verb]))
    assert isinstance(reply.json, dict)
    assert reply.json["Error"] == webhooks.BROKEN


@pytest.mark.parametrize(
    ("verb", "outcome"),
    [
        (Verb.FILTER, CallOutcome.FITS),
        (Verb.PRIORITIZE, CallOutcome.SCORED),
        (Verb.PREEMPT, CallOutcome.PREEMPTED),
        (Verb.BIND, CallOutcome.BOUND),
    ],
)
async def test_answered_call_is_counted_by_verb_and_outcome(
    served: Served, metrics: Metrics, verb: Verb, outcome: CallOutcome
) -> None:
    await served.ask(post(f"/{verb}", QUESTIONS[verb]))
    assert counted(metrics, verb, outcome) == 1


async def test_pipelined_questions_are_answered_in_their_order(served: Served) -> None:
    async with served.connection() as wire:
        await wire.send(post("/bind", BIND) + post("/filter", NAMES) + post("/prioritize", NAMES))
        first, second, third = [await wire.reply() for _ in range(3)]
    assert (first.json, isinstance(second.json, dict), isinstance(third.json, list)) == ({"Error": ""}, True, True)


async def test_connection_is_kept_after_a_bad_question(served: Served) -> None:
    async with served.connection() as wire:
        await wire.send(post("/filter", b"nonsense"))
        await wire.reply()
        await wire.send(post("/bind", BIND))
        assert (await wire.reply()).json == {"Error": ""}


async def test_chunked_question_is_answered(served: Served) -> None:
    head = b"POST /bind HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply = await served.ask(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BIND), BIND))
    assert reply.json == {"Error": ""}


async def test_slow_bind_does_not_delay_a_filter(extender: FakeExtender, served: Served) -> None:
    gang_complete = asyncio.Event()

    async def wait_for_gang(_question: object) -> str:
        await gang_complete.wait()
        return ""

    extender.bind = wait_for_gang  # type: ignore[method-assign, assignment] # this one test needs a barrier
    bind = asyncio.create_task(served.ask(post("/bind", BIND)))
    await served.ask(post("/filter", NAMES))
    gang_complete.set()
    assert (await bind).json == {"Error": ""}


@pytest.mark.parametrize("host", ["[", "]:x", "a b", "\u00e9", ""])
async def test_unknown_host_header_changes_nothing(served: Served, host: str) -> None:
    said = [await served.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()) for path in ("/x", "/bind")]
    assert [reply.status for reply in said] == [404, 405]
