"""The aggregated API: the read API for those whom the API server has authenticated, with a certificate or a token.

The API server asks for each request who sent it and whether RBAC allows it, and passes it on through its front proxy.
What the user may see is found out as for every other reader.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.certificates.front_proxy import FrontProxy
from app.client.aggregated_paths import GROUP, ROOT, VERSION, WATCHES, of_read_api
from app.model.rights import User
from app.web import problem
from app.web.callers import CALLER, CallersByName, RefusedError, refusal
from app.web.connection import ConnectionLimits
from app.web.identity import user_of

AGGREGATED_CONNECTIONS = ConnectionLimits(connections=512, head_bytes=256 * 1024, headers=4096)
"""The API server writes one header for each group of a user."""

PASSED_ON = frozenset((b"accept", b"accept-encoding", b"if-none-match", b"last-event-id"))
"""Headers of the client that mean something here. No token is among them: the API server has said who asks."""

NO_VIEW = "it is part of the view, which is not enabled; the chart's value view.enabled enables it"
NO_SUCH_PATH = "the aggregated API has no such path; docs/operations.md lists them"

RESOURCES = orjson.dumps(
    {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": []}
)
"""What discovery shows: no resources, because kubectl could not print the answers, which are no Kubernetes objects."""


class KnownProxy(Protocol):
    """Knows the front proxy."""

    @property
    def current(self) -> FrontProxy | None:
        """The front proxy; None while nobody can be trusted."""
        ...


AsksView = Callable[[Request, User], Awaitable[Response]]
"""Asks the view for a user."""


class AggregatedApi:
    """An ASGI app around that of the operations listener."""

    def __init__(
        self, operations: ASGIApp, proxy: KnownProxy, callers: CallersByName, *, view: AsksView | None = None
    ) -> None:
        """`view` answers what only the view can; None where there is no view."""
        self._operations = operations
        self._proxy = proxy
        self._callers = callers
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who asks, then answer, or let the operations listener or the view answer."""
        try:
            user = user_of(scope, self._proxy.current)
            caller = self._callers.of_user(user)
        except RefusedError as error:
            await refusal(error)(scope, receive, send)
            return
        path = of_read_api(scope["path"])
        if path is None:
            await _unknown(scope)(scope, receive, send)
            return
        inner = _inner(scope, path)
        if _is_of_view(path):
            await (await self._of_view(Request(inner), user))(inner, receive, send)
            return
        inner["state"][CALLER] = caller
        await self._operations(inner, receive, send)

    async def _of_view(self, request: Request, user: User) -> Response:
        if self._view is None:
            return problem.response(HTTPStatus.NOT_FOUND, NO_VIEW)
        if request.method != "GET":
            return problem.response(HTTPStatus.METHOD_NOT_ALLOWED, "it can only be read")
        return await self._view(request, user)


def _unknown(scope: Scope) -> Response:
    if scope["path"] == ROOT and scope["method"] == "GET":
        return Response(RESOURCES, media_type="application/json")
    return problem.response(HTTPStatus.NOT_FOUND, NO_SUCH_PATH)


def _inner(scope: Scope, path: str) -> dict[str, Any]:
    """Return the request that the read API gets."""
    query = b"&".join(part for part in scope["query_string"].split(b"&") if part != WATCHES.encode())
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query if path == "/api/v1/stream" else scope["query_string"],
        "headers": [(name, value) for name, value in scope["headers"] if name in PASSED_ON],
        "state": dict(scope.get("state", {})),
    }


def _is_of_view(path: str) -> bool:
    return path in {"/", "/api/v1/state", "/api/v1/stream"} or path.startswith("/static/")
