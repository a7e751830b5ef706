"""The four webhooks of kube-scheduler: bytes in, bytes out. The status is always 200, in the protocol's own form.

kube-scheduler treats any other status as an error of the whole cycle, does not retry, and follows redirects. Therefore
errors are reported inside the reply, logged and counted. The extender decides what to answer.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from time import perf_counter
from typing import NamedTuple, Protocol, assert_never

import structlog
from fastapi import FastAPI, Response

from app.model.question import BindQuestion, Failed, FilterAnswer, Fits, PodQuestion, Refused, Scores
from app.model.seam import RawObject
from app.telemetry import CallOutcome, Metrics, Verb
from app.web import routes, wire
from app.web.asgi import EXTENDER_LIMITS, BodyLimits, Bounded
from app.web.routes import Json
from app.web.wire import Victims

BROKEN = "Leeboard failed on this question; its log has the traceback"


class AnswersScheduler(Protocol):
    """Answers the questions of kube-scheduler."""

    async def filter(self, question: PodQuestion) -> FilterAnswer:
        """Choose among the offered nodes."""
        ...

    def prioritize(self, question: PodQuestion) -> Scores:
        """Score the offered nodes."""
        ...

    def preempt(self, pod: RawObject, candidates: Victims) -> Victims:
        """Return the victims that may be preempted: none, or the candidates unchanged."""
        ...

    async def bind(self, question: BindQuestion) -> str:
        """Bind the pod. Return "" when it is bound, otherwise why not."""
        ...


class WebhookReply(NamedTuple):
    """The response body, and the outcome under which metrics count it."""

    body: bytes
    outcome: CallOutcome


class ExtenderBoundary:
    """The exception boundary around the extender."""

    def __init__(
        self, extender: AnswersScheduler, metrics: Metrics, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._extender = extender
        self._metrics = metrics
        self._clock = clock
        self._log = structlog.get_logger()
        self._verbs: Mapping[Verb, Callable[[bytes], Awaitable[WebhookReply]]] = {
            Verb.FILTER: self._filter,
            Verb.PRIORITIZE: self._prioritize,
            Verb.PREEMPT: self._preempt,
            Verb.BIND: self._bind,
        }

    async def answer(self, verb: Verb, body: bytes) -> Json:
        """Return the response to one call. It raises nothing."""
        started = self._clock()
        try:
            reply = await self._verbs[verb](body)
        except Exception:  # noqa: BLE001 - the boundary: kube-scheduler always gets a valid answer
            self._log.exception("webhook call failed", verb=verb.value)
            reply = WebhookReply(wire.write_error(verb, BROKEN), CallOutcome.ERROR)
        self._metrics.webhooks[verb, reply.outcome].observe(self._clock() - started)
        return Json(reply.body)

    async def _filter(self, body: bytes) -> WebhookReply:
        question = wire.read_pod_question(body)
        if isinstance(question, Failed):
            return self._bad(Verb.FILTER, question)
        answer = await self._extender.filter(question)
        return WebhookReply(wire.write_filter(answer, question.offered), _filter_outcome(answer))

    async def _prioritize(self, body: bytes) -> WebhookReply:
        question = wire.read_pod_question(body)
        if isinstance(question, Failed):
            return self._bad(Verb.PRIORITIZE, question)
        return WebhookReply(
            wire.write_scores(self._extender.prioritize(question), question.offered), CallOutcome.SCORED
        )

    async def _preempt(self, body: bytes) -> WebhookReply:
        question = wire.read_preempt_question(body)
        if isinstance(question, Failed):
            return self._bad(Verb.PREEMPT, question)
        victims = self._extender.preempt(question.pod, question.candidates)
        return WebhookReply(wire.write_victims(victims), CallOutcome.PREEMPTED if victims else CallOutcome.REFUSED)

    async def _bind(self, body: bytes) -> WebhookReply:
        question = wire.read_bind_question(body)
        if isinstance(question, Failed):
            return self._bad(Verb.BIND, question)
        error = await self._extender.bind(question)
        return WebhookReply(wire.write_bind(error), CallOutcome.NOT_BOUND if error else CallOutcome.BOUND)

    def _bad(self, verb: Verb, failed: Failed) -> WebhookReply:
        self._log.warning("webhook call cannot be read", verb=verb.value, cause=failed.error)
        return WebhookReply(wire.write_error(verb, failed.error), CallOutcome.BAD_REQUEST)


def application(extender: AnswersScheduler, metrics: Metrics, *, limits: BodyLimits = EXTENDER_LIMITS) -> FastAPI:
    """Build the app of the extender's listener."""
    boundary = ExtenderBoundary(extender, metrics)
    return routes.webhooks(boundary, Verb, limits, document="extender.openapi.json", bounded=_BoundedVerbs)


class _BoundedVerbs(Bounded):
    """Refuses a request in the form of the verb that kube-scheduler called."""

    def refusal(self, path: str, status: HTTPStatus, detail: str) -> Response:
        verb = path.removeprefix("/")
        if verb not in tuple(Verb):
            return super().refusal(path, status, detail)
        return Response(wire.write_error(Verb(verb), detail), media_type="application/json")


def _filter_outcome(answer: FilterAnswer) -> CallOutcome:
    match answer:
        case Fits():
            return CallOutcome.FITS
        case Refused():
            return CallOutcome.REFUSED
        case Failed():
            return CallOutcome.FAILED
        case _:
            assert_never(answer)
