"""Errors as problem JSON (RFC 9457), for every endpoint that is not a webhook."""

from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"


def body(status: HTTPStatus, detail: str, *, kind: str = "about:blank") -> bytes:
    """Return the problem document."""
    return orjson.dumps({"type": kind, "title": status.phrase, "status": status.value, "detail": detail})


def response(status: HTTPStatus, detail: str, *, kind: str = "about:blank") -> Response:
    """Return the problem as a response."""
    return Response(body(status, detail, kind=kind), status_code=status, media_type=MEDIA_TYPE)


def answer_errors_with_problems(app: FastAPI) -> None:
    """Answer unknown paths, wrong methods, HTTPExceptions of routes and unexpected exceptions with problem JSON."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_exception)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    # Not `request.url`: it is built from the Host header, which the client controls.
    said = response(HTTPStatus(error.status_code), f"{request.method} {request.scope['path']}: {error.detail}")
    said.headers.update(error.headers or {})
    return said


async def _on_exception(_request: Request, _error: Exception) -> Response:
    # The server logs the traceback. Clients do not see it.
    return response(HTTPStatus.INTERNAL_SERVER_ERROR, "Leeboard failed on this request; its log has the traceback")
