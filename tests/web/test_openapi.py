"""The hand-written OpenAPI documents of the webhooks, compared with real calls and answers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from app.model.admission import Undecided
from app.model.live import TABLES
from app.model.question import Failed, FilterAnswer, Refused
from app.model.reason import Reason
from app.telemetry import Metrics, Verb
from app.web import admission, operations, webhooks
from app.web.callers import Anybody
from app.web.view_document import COLUMNS
from tests.web.fakes import FakeExtender, FakeInspect, FakePulse
from tests.web.served import post, serving
from tests.web.test_admission import FakeAdmission
from tests.web.test_webhooks import PREEMPT

EXTENDING = webhooks.application(FakeExtender(), Metrics())
ADMITTING = admission.application(FakeAdmission(), Metrics())
RECORDED = [
    orjson.loads(line) for line in (Path(__file__).parent / "data" / "recorded.jsonl").read_bytes().splitlines()
]
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
KEYWORDS = {
    *("type", "const", "enum", "minimum", "maximum", "items"),
    *("properties", "required", "additionalProperties", "description"),
}
"""The keywords of JSON Schema that the documents use."""


def resolved(document: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference to its end."""
    while "$ref" in part:
        found: Any = document
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = found
    return part


def faults(document: Mapping[str, Any], part: Mapping[str, Any], body: object) -> list[str]:
    """Return the violations of the schema of a request or a response in a body."""
    (content,) = resolved(document, part)["content"].values()
    return list(_faults(document, content["schema"], body, "body"))


def _faults(document: Mapping[str, Any], schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    schema = resolved(document, schema)
    assert schema.keys() <= KEYWORDS
    types = schema.get("type", ())
    if types and not any(type(value) is TYPES[each] for each in ([types] if isinstance(types, str) else types)):
        yield f"{at} is a {type(value).__name__}"
    elif value != schema.get("const", value) or value not in schema.get("enum", (value,)):
        yield f"{at} is {value}"
    elif isinstance(value, int):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{at} is {value}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(document, schema["items"], item, f"{at}[{number}]")
    elif isinstance(value, dict):
        yield from _faults_inside(document, schema, value, at)


def _faults_inside(
    document: Mapping[str, Any], schema: Mapping[str, Any], value: Mapping[str, Any], at: str
) -> Iterator[str]:
    yield from (f"{at} lacks {name}" for name in schema.get("required", ()) if name not in value)
    for name, inner in value.items():
        rule = schema.get("properties", {}).get(name, schema["additionalProperties"])
        if isinstance(rule, Mapping):
            yield from _faults(document, rule, inner, f"{at}.{name}")
        elif not rule:
            yield f"{at}.{name} is unknown"


def of_call(path: str, status: int, request: object, reply: object) -> tuple[list[str], list[str]]:
    """Return the errors of a question, and of its answer."""
    document = app_of(path).openapi()
    post = document["paths"][path]["post"]
    return faults(document, post["requestBody"], request), faults(document, post["responses"][str(status)], reply)


def app_of(path: str) -> FastAPI:
    return EXTENDING if path.removeprefix("/") in tuple(Verb) else ADMITTING


@pytest.mark.parametrize("app", [EXTENDING, ADMITTING])
def test_the_document_describes_the_routes_that_exist(app: FastAPI) -> None:
    told = {(path, method.upper()) for path, methods in app.openapi()["paths"].items() for method in methods}

    assert told == {(one.path, method) for one in app.routes if isinstance(one, Route) for method in one.methods or ()}


@pytest.mark.parametrize("call", RECORDED, ids=lambda call: call["path"])
def test_recorded_calls_and_answers_have_the_shapes_of_the_document(call: dict[str, Any]) -> None:
    assert of_call(**call) == ([], [])


@pytest.mark.parametrize("call", RECORDED, ids=lambda call: call["path"])
def test_a_missing_or_unknown_field_is_an_error(call: dict[str, Any]) -> None:
    request, reply = call["request"], call["reply"]
    for name in request.keys() - {"Nodes"}:
        assert of_call(**call | {"request": without(request, name)}) == ([f"body lacks {name}"], [])
    for name in reply:
        assert of_call(**call | {"reply": without(reply, name)}) == ([], [f"body lacks {name}"])
    assert of_call(**call | {"reply": reply | {"more": 1}}) == ([], ["body.more is unknown"])


def without(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


@pytest.mark.parametrize("answer", [None, Refused(Reason.OVER_LIMIT), Failed("not synced")])
async def test_each_verb_is_answered_in_the_shape_of_the_document(answer: FilterAnswer | None) -> None:
    asked = [(call["path"], call["request"]) for call in RECORDED if app_of(call["path"]) is EXTENDING]
    asked += [("/prioritize", request) for path, request in asked if path == "/filter"]
    asked.append(("/preempt", orjson.loads(PREEMPT)))
    async with serving(webhooks.application(FakeExtender(answer=answer), Metrics())) as served:
        for path, request in asked:
            reply = await served.ask(post(path, orjson.dumps(request)))
            assert of_call(path, reply.status, request, reply.json) == ([], [])


async def test_a_review_that_cannot_be_decided_is_answered_in_the_shape_of_a_problem() -> None:
    asked = [(call["path"], call["request"]) for call in RECORDED if app_of(call["path"]) is ADMITTING]
    async with serving(admission.application(FakeAdmission(Undecided("not yet")), Metrics())) as served:
        for path, request in asked:
            reply = await served.ask(post(path, orjson.dumps(request)))
            assert (reply.status, of_call(path, 503, request, reply.json)) == (503, ([], []))


def test_the_read_api_describes_the_state_with_every_column_and_the_stream() -> None:
    app = operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Anybody())
    paths = app.openapi()["paths"]

    state = paths["/api/v1/state"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    tables = state["properties"]["tables"]["properties"]
    assert {name: tuple(columns) for name, columns in COLUMNS.items()} == TABLES
    assert {name: tuple(one["properties"]["columns"]["items"]["enum"]) for name, one in tables.items()} == TABLES
    assert "text/event-stream" in paths["/api/v1/stream"]["get"]["responses"]["200"]["content"]
    assert "/api/v1/queues" in paths
