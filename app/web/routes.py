"""The FastAPI apps of the ports, and the routes of the webhooks in them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import orjson
from fastapi import FastAPI
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.web import problem
from app.web.asgi import BodyLimits, Bounded


def application(
    limits: BodyLimits, routes: Sequence[BaseRoute] = (), *, bounded: type[Bounded] = Bounded, **about: Any
) -> FastAPI:
    """Build an app that enforces these limits, sends no redirects and reports errors as problem JSON."""
    hidden: dict[str, Any] = {"openapi_url": None, "docs_url": None, "redoc_url": None}
    app = FastAPI(
        routes=[*routes],
        redirect_slashes=False,
        # The look-up of a telemetry collector in each call costs half as much as all layers.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        **(hidden | about),
    )
    problem.answer_errors_with_problems(app)
    app.add_middleware(bounded, limits=limits)
    return app


@dataclass(slots=True)
class Json:
    """A response with status 200 and encoded JSON. A `Response` spends more time on its headers."""

    body: bytes

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the response."""
        headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


Verb_contra = TypeVar("Verb_contra", contravariant=True)


class Answers(Protocol[Verb_contra]):
    """The exception boundary of one port's verbs."""

    async def answer(self, verb: Verb_contra, body: bytes) -> ASGIApp:
        """Return the response to one call. It raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class _Endpoint(Generic[Verb_contra]):
    """One verb as an ASGI app behind `Bounded`. A FastAPI handler costs 0.15 ms, more than most answers here."""

    boundary: Answers[Verb_contra]
    verb: Verb_contra

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        whole = await receive()
        await (await self.boundary.answer(self.verb, whole["body"]))(scope, receive, send)


class _ExactRoute(Route):
    """A POST route with an exact path. Starlette's pattern also matches the path with a line feed at its end."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["path"] != self.path:
            return Match.NONE, {}
        match = Match.FULL if scope["method"] == "POST" else Match.PARTIAL
        return match, {"endpoint": self.endpoint, "path_params": {}}


def webhooks(
    boundary: Answers[Verb_contra],
    verbs: Iterable[Verb_contra],
    limits: BodyLimits,
    *,
    document: str,
    bounded: type[Bounded] = Bounded,
) -> FastAPI:
    """Build the app of a port that answers these verbs.

    Its OpenAPI document is a hand-written file beside this module. It is not served: the port answers only its verbs.
    """
    routes = [_ExactRoute(f"/{verb}", _Endpoint(boundary, verb), methods=["POST"]) for verb in verbs]
    app = application(limits, routes, bounded=bounded)
    written = files(__package__) / document
    app.openapi = lambda: orjson.loads(written.read_bytes())  # type: ignore[method-assign] # as FastAPI's manual says
    return app
