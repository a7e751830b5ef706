"""The answers of each port of webhooks or probes to a wrong method or path: never a redirect."""

from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest
from starlette.types import ASGIApp

from app.telemetry import Metrics, Review, Verb
from app.web import admission, health, webhooks
from tests.web.fakes import FakeExtender, FakeInspect, FakePulse
from tests.web.served import HttpReply, Served, serving
from tests.web.test_admission import FakeAdmission, review
from tests.web.test_webhooks import QUESTIONS

METHODS = ("POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")


def extending() -> ASGIApp:
    return webhooks.application(FakeExtender(), Metrics())


def admitting() -> ASGIApp:
    return admission.application(FakeAdmission(), Metrics())


def probing() -> ASGIApp:
    return health.application(FakeInspect(), FakePulse())


PORTS: dict[Callable[[], ASGIApp], dict[str, bytes]] = {
    extending: {f"/{verb}": QUESTIONS[verb] for verb in Verb},
    admitting: {f"/{verb}": review() for verb in Review},
    probing: {"/livez": b"", "/healthz": b"", "/readyz": b"", "/readyz/cache-synced": b""},
}
WEBHOOKS = (extending, admitting)
PAGES = ("/", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect", "/metrics", "/nowhere")


def spelled_otherwise(path: str) -> Iterator[str]:
    """Yield paths that a careless or hostile client may use instead of this one."""
    yield from (f"{path}/", f"/{path}", path.upper(), f"{path}%2F", f"{path}/x/..", f"/x/..{path}", f"{path};a=b")


async def asked(served: Served, method: str, path: str, body: bytes = b"") -> HttpReply:
    """Send one request over a connection of its own."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    async with served.connection() as wire:
        await wire.send(head.encode() + body)
        return await wire.reply(to_head=method == "HEAD")


def is_problem(reply: HttpReply, status: HTTPStatus, detail: str) -> bool:
    """Return whether the status is a problem document without a redirect."""
    about = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    is_said = reply.headers["content-type"] == "application/problem+json" and "location" not in reply.headers
    return is_said and reply.status == status and (not reply.body or reply.json == about)


@pytest.mark.parametrize("port", PORTS)
async def test_each_path_accepts_its_own_methods_and_lists_them_for_others(port: Callable[[], ASGIApp]) -> None:
    taken = ("POST",) if port in WEBHOOKS else ("GET", "HEAD")
    async with serving(port()) as served:
        for path, body in PORTS[port].items():
            for method in taken:
                assert (await asked(served, method, path, body)).status == 200
                assert (await asked(served, method, f"/%{ord(path[1]):x}{path[2:]}?timeout=5s", body)).status == 200
            for method in (each for each in METHODS if each not in taken):
                reply = await asked(served, method, path, body)
                assert is_problem(reply, HTTPStatus.METHOD_NOT_ALLOWED, f"{method} {path}: Method Not Allowed")
                assert sorted(reply.headers["allow"].split(", ")) == sorted(taken)


@pytest.mark.parametrize("port", PORTS)
async def test_every_other_path_is_unknown_whatever_the_method(port: Callable[[], ASGIApp]) -> None:
    here = PORTS[port]
    paths = {*PAGES, *(path for paths in PORTS.values() for path in paths), *here}
    others = [path for path in sorted(paths) if path not in here]
    if port in WEBHOOKS:
        others += [other for path in here for other in (*spelled_otherwise(path), f"{path}%0A")]
    else:
        others += ["/livez/", "//livez", "/LIVEZ", "/readyz/", "/readyz/a/b", "/livez/no-such-check/"]
    async with serving(port()) as served:
        for path in others:
            for method in METHODS:
                known = path.replace("%2F", "/").replace("%0A", "\n")
                reply = await asked(served, method, path)
                assert is_problem(reply, HTTPStatus.NOT_FOUND, f"{method} {known}: Not Found"), (method, path)
