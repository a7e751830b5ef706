"""The admission webhooks: AdmissionReview v1 in and out. `control.admission` decides what to answer.

A review that can be answered gets a review with the same uid. A broken review, a cache that is still being filled and a
fault of Leeboard get an HTTP error, so that the API server applies the webhook's `failurePolicy`. A denial would stop
pods that Leeboard has no reason to deny. The listener sends no redirect: the API server would follow it.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, assert_never

import orjson
import structlog
from fastapi import FastAPI
from starlette.types import ASGIApp

from app.model.admission import AdmissionAnswer, AdmissionQuestion, Admitted, Denied, Operation, Undecided
from app.model.quantity import shown
from app.telemetry import Metrics, Review, ReviewOutcome
from app.web import problem, routes
from app.web.asgi import MIB, BodyLimits
from app.web.body import too_many_values
from app.web.connection import ConnectionLimits
from app.web.routes import Json

CONNECTIONS = ConnectionLimits(connections=2048)
"""An API server opens one connection for each object that it stores at the same time."""
LIMITS = BodyLimits(body_bytes=4 * MIB, in_flight_bytes=64 * MIB)
"""The old and the new object, 1.5 MB each."""

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
WARNING_BYTES = 256
"""The API server truncates a longer warning."""
MESSAGE_BYTES = 2048
BROKEN = "Leeboard failed on this review; its log has the traceback"

Fields = Mapping[str, Any]


class AnswersAdmission(Protocol):
    """Answers admission questions."""

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Return the patch that the object needs."""
        ...

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Return whether the object may be stored."""
        ...


@dataclass(frozen=True, slots=True)
class ReceivedQuestion:
    """A question and the uid of its review."""

    uid: str
    question: AdmissionQuestion


class BrokenReviewError(Exception):
    """The body is not an AdmissionReview. The message says what is expected."""


def read(body: bytes) -> ReceivedQuestion:
    """Read a review; raise `BrokenReviewError`."""
    if found := too_many_values(body):
        raise BrokenReviewError(f"the objects have {found}")
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BrokenReviewError("the body is not JSON") from None
    if not isinstance(review, dict) or (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise BrokenReviewError(f"expected a {KIND} of {API_VERSION}: list v1 in admissionReviewVersions")
    request = _mapping(review, "request")
    kind = _mapping(request, "kind")
    operation = _operation(request)
    old = request.get("oldObject")
    was = _mapping(request, "oldObject") if old is not None else None
    question = AdmissionQuestion(
        group=_text(kind, "group"),
        kind=_text(kind, "kind"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        operation=operation,
        object=dict(was if operation is Operation.DELETE and was is not None else _mapping(request, "object")),
        old=dict(was) if was is not None else None,
        user=_text(_mapping(request, "userInfo"), "username") if request.get("userInfo") is not None else "",
        dry_run=request.get("dryRun") is True,
    )
    return ReceivedQuestion(_uid(request), question)


def write(uid: str, answer: Admitted | Denied) -> bytes:
    """Write the review that answers the review with this uid."""
    response: dict[str, object] = {"uid": uid, "allowed": isinstance(answer, Admitted)}
    match answer:
        case Admitted(patch=patch, warnings=warnings):
            if patch:
                response |= {"patchType": "JSONPatch", "patch": b64encode(orjson.dumps(list(patch))).decode()}
            if warnings:
                response["warnings"] = [_cut(text, WARNING_BYTES) for text in warnings]
        case Denied(message):
            status = {
                "code": HTTPStatus.FORBIDDEN.value,
                "reason": "Forbidden",
                "message": _cut(message, MESSAGE_BYTES),
            }
            response["status"] = status
        case _:
            assert_never(answer)
    return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response})


@dataclass(frozen=True, slots=True)
class _Reply:
    """The response, and the outcome under which metrics count it."""

    response: ASGIApp
    outcome: ReviewOutcome


class AdmissionBoundary:
    """The exception boundary around admission."""

    def __init__(self, admission: AnswersAdmission, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = structlog.get_logger()
        self._verbs: Mapping[Review, Callable[[AdmissionQuestion], AdmissionAnswer]] = {
            Review.MUTATE: admission.mutate,
            Review.VALIDATE: admission.validate,
        }

    def answer(self, verb: Review, body: bytes) -> ASGIApp:
        """Return the response to one call. It raises nothing."""
        try:
            reply = self._answer(verb, body)
        except BrokenReviewError as broken:
            self._log.warning("review cannot be read", verb=verb.value, cause=str(broken))
            reply = _Reply(problem.response(HTTPStatus.BAD_REQUEST, str(broken)), ReviewOutcome.BAD_REQUEST)
        except Exception:  # noqa: BLE001 - the boundary: the API server must not wait for an answer after any fault
            self._log.exception("review failed", verb=verb.value)
            reply = _Reply(problem.response(HTTPStatus.INTERNAL_SERVER_ERROR, BROKEN), ReviewOutcome.ERROR)
        self._metrics.reviews[verb, reply.outcome].inc()
        return reply.response

    def _answer(self, verb: Review, body: bytes) -> _Reply:
        asked = read(body)
        answer = self._verbs[verb](asked.question)
        if isinstance(answer, Undecided):
            return _Reply(problem.response(HTTPStatus.SERVICE_UNAVAILABLE, answer.cause), ReviewOutcome.UNDECIDED)
        return _Reply(Json(write(asked.uid, answer)), _outcome(answer))


class _Turns:
    """Answers one review in each iteration of the loop, so that the extender's questions are answered in between."""

    def __init__(self, boundary: AdmissionBoundary) -> None:
        self._boundary = boundary
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, verb: Review, body: bytes) -> ASGIApp:
        """Return the response to one call. It raises nothing."""
        async with self._one_at_a_time:
            said = self._boundary.answer(verb, body)
            await asyncio.sleep(0)
        return said


def application(admission: AnswersAdmission, metrics: Metrics, *, limits: BodyLimits = LIMITS) -> FastAPI:
    """Build the app of the admission listener."""
    turns = _Turns(AdmissionBoundary(admission, metrics))
    return routes.webhooks(turns, Review, limits, document="admission.openapi.json")


def _outcome(answer: Admitted | Denied) -> ReviewOutcome:
    if isinstance(answer, Denied):
        return ReviewOutcome.DENIED
    return ReviewOutcome.CHANGED if answer.patch else ReviewOutcome.UNCHANGED


def _uid(request: Fields) -> str:
    uid = _text(request, "uid")
    if not uid:
        raise BrokenReviewError("field uid of the request is missing")
    return uid


def _operation(request: Fields) -> Operation:
    try:
        return Operation(_text(request, "operation"))
    except ValueError:
        expected = ", ".join(Operation)
        raise BrokenReviewError(f"field operation is {shown(request.get('operation'))}; expected {expected}") from None


def _mapping(parent: Fields, key: str) -> Fields:
    value = parent.get(key)
    if isinstance(value, dict):
        return value
    raise BrokenReviewError(f"field {key} is {shown(value)}; expected a mapping")


def _text(parent: Fields, key: str) -> str:
    value = parent.get(key)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise BrokenReviewError(f"field {key} is {shown(value)}; expected a text")


def _cut(text: str, size: int) -> str:
    """Return a text on one line, cut to at most `size` bytes."""
    line = " ".join(text.split())
    return line if len(line.encode()) <= size else line.encode()[: size - 3].decode(errors="ignore") + "..."
