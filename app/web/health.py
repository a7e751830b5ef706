"""Health as the API server tells it: /livez, /readyz, ?verbose, ?exclude=NAME and one check at a time."""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from app.model.question import Check
from app.web import problem

Checks = Callable[[], Sequence[Check]]


def add_routes(app: FastAPI, *, livez: Checks, readyz: Checks) -> None:
    """Add the health endpoints; /healthz is the old name of /livez."""
    for path, title, checks in (
        ("/livez", "livez", livez),
        ("/healthz", "livez", livez),
        ("/readyz", "readyz", readyz),
    ):
        app.add_route(path, _summary(title, checks), methods=["GET"], include_in_schema=False)
        app.add_route(path + "/{name}", _single(checks), methods=["GET"], include_in_schema=False)


def _summary(title: str, checks: Checks) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        seen = checks()
        excluded = frozenset(request.query_params.getlist("exclude"))
        passed = all(check.passed for check in seen if check.name not in excluded)
        if passed and "verbose" not in request.query_params:
            return PlainTextResponse("ok")
        lines = [f"[+]{check.name} excluded: ok" if check.name in excluded else _line(check) for check in seen]
        lines += _unknown(excluded - {check.name for check in seen})
        lines.append(f"{title} check {'passed' if passed else 'failed'}")
        return PlainTextResponse("\n".join(lines) + "\n", _status(passed=passed))

    return endpoint


def _single(checks: Checks) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        name = request.path_params["name"]
        check = next((check for check in checks() if check.name == name), None)
        if check is None:
            return problem.response(HTTPStatus.NOT_FOUND, f"there is no check named {name!r}")
        return PlainTextResponse("ok" if check.passed else _line(check) + "\n", _status(passed=check.passed))

    return endpoint


def _unknown(names: frozenset[str]) -> list[str]:
    # A probe with a misspelt name would otherwise fail for a check that its author believes excluded.
    return [f"warn: there is no check named {name!r} to exclude" for name in sorted(names)]


def _line(check: Check) -> str:
    return f"[+]{check.name} ok" if check.passed else f"[-]{check.name} failed: {check.failure}"


def _status(*, passed: bool) -> HTTPStatus:
    return HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
