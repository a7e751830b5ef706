"""Serves the page with a scene behind it, and opens it in chromium."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.view.application import _Safe
from app.view.page import Page
from app.web import problem
from app.web.callers import token_of
from app.web.connection import ConnectionLimits
from app.web.listener import listener
from tests.page.scene import Json, Scene
from tests.page.story import story

HOST = "127.0.0.1"
SERVICE_PROXY = "/api/v1/namespaces/leeboard/services/http:leeboard:operations/proxy"
"""A path under which the API server passes requests on."""
LIMITS = ConnectionLimits(connections=64)
CHROMIUM = shutil.which("chromium")
WIDE = {"width": 1600, "height": 1000}
PATIENCE_S = 60.0
"""No test waits this long unless it fails."""


def event(kind: str, identity: str, body: Json) -> bytes:
    """Write one event of the stream."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (identity.encode(), kind.encode(), orjson.dumps(body))


@dataclass
class Stage:
    """The read API of one scene."""

    scene: Scene
    token: str = ""
    """The token that is asked for; empty means none."""
    full: str = ""
    """The sentence of a server that has no room for one more stream."""
    ring: list[tuple[str, bytes]] = field(default_factory=list)
    listening: list[asyncio.Queue[bytes]] = field(default_factory=list)
    resumed_after: list[str] = field(default_factory=list)
    """The Last-Event-ID of each stream."""
    port: int = 0
    running: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The page."""
        return f"http://{HOST}:{self.port}/"

    def tell(self, delta: Json) -> None:
        """Send a delta to every stream."""
        said = event("delta", self.scene.identity, delta)
        self.ring.append((self.scene.identity, said))
        for each in self.listening:
            each.put_nowait(said)

    async def stop(self) -> None:
        """Stop serving, as a process that ends."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])

    def application(self) -> Starlette:
        """Build the app."""
        page = Page.installed()
        routes = [
            Route("/", page.index),
            Route("/static/{path:path}", page.file),
            Route("/api/v1/state", self._guarded(self._state)),
            Route("/api/v1/stream", self._guarded(self._stream)),
            Route("/api/v1/why/{namespace}/{name:path}", self._guarded(self._why)),
        ]
        # The API server removes the header.
        proxied = Mount(SERVICE_PROXY, routes=routes, middleware=[Middleware(_WithoutAuthorization)])
        return Starlette(routes=[proxied, *routes], middleware=[Middleware(_Safe)])

    def _guarded(self, then: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if self.token and token_of(dict(request.scope["headers"])) != f"Bearer {self.token}":
                return _problem(401, "send a token of the cluster")
            return await then(request)

        return endpoint

    async def _state(self, _request: Request) -> Response:
        return Response(orjson.dumps(self.scene.state()), media_type="application/json")

    async def _why(self, request: Request) -> Response:
        name = f"{request.path_params['namespace']}/{request.path_params['name']}"
        if name not in self.scene.whys:
            return _problem(404, f"no pod and no PodGroup {name} is known")
        return Response(orjson.dumps(self.scene.whys[name]), media_type="application/json")

    async def _stream(self, request: Request) -> Response:
        if self.full:
            return _problem(503, self.full)
        last = request.headers.get("last-event-id", "")
        self.resumed_after.append(last)
        return StreamingResponse(self._events(last), media_type="text/event-stream")

    async def _events(self, last: str) -> AsyncIterator[bytes]:
        told: asyncio.Queue[bytes] = asyncio.Queue()
        identities = [identity for identity, _ in self.ring]
        if last == self.scene.identity:
            yield b": nothing new\n\n"
        elif last in identities:
            yield b"".join(said for _, said in self.ring[identities.index(last) + 1 :])
        else:
            yield event("state", self.scene.identity, self.scene.state())
        self.listening.append(told)
        try:
            while True:
                yield await told.get()
        finally:
            self.listening.remove(told)


class _WithoutAuthorization:
    """Removes the header that the API server's service proxy keeps for itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = [header for header in scope["headers"] if header[0] != b"authorization"]
        await self._app({**scope, "headers": kept}, receive, send)


def _problem(status: int, detail: str) -> Response:
    return Response(
        orjson.dumps({"title": "", "status": status, "detail": detail}), status, media_type=problem.MEDIA_TYPE
    )


@contextlib.asynccontextmanager
async def staged(stage: Stage) -> AsyncIterator[Stage]:
    """Serve a stage until the block ends; on the port that it had, if it had one."""
    bound = listener(stage.application(), HOST, stage.port, limits=LIMITS, grace_s=0.1)
    stage.port = bound.port
    stage.running = asyncio.create_task(bound.run())
    try:
        yield stage
    finally:
        await stage.stop()
        bound.close()


@dataclass
class Window:
    """A tab on the page, and everything that it asked for and complained about."""

    url: str
    page: Any
    stage: Stage
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def elsewhere(self) -> list[str]:
        """The requests to others."""
        return [url for url in self.requests if not url.startswith(self.url)]

    def hear(self, said: Any) -> None:
        """Keep an error of the console."""
        if said.type == "error":
            self.complaints.append(said.text)

    async def text(self, selector: str) -> str:
        """Return what a reader sees of an element, on one line."""
        return " ".join((await self.page.locator(selector).first.inner_text()).split())

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element shows this text; fail with what it shows."""
        from playwright.async_api import expect  # noqa: PLC0415 # only where playwright is installed

        await expect(self.page.locator(selector).first).to_contain_text(text, timeout=1000 * PATIENCE_S)

    async def tick(self, **scalars: Any) -> None:
        """Send the collected changes, and wait until the page has drawn them."""
        await self.page.evaluate("performance.clearMarks('drawn')")
        self.stage.tell(self.stage.scene.delta(**scalars))
        await self.drawn()

    async def drawn(self) -> None:
        """Wait until the next event is applied and drawn."""
        await self.becomes("performance.getEntriesByName('drawn').length > 0")
        await self.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    async def becomes(self, condition: str) -> None:
        """Wait for a condition of the page. Playwright's own way needs eval, which the page's policy forbids."""
        look = f"() => {condition} ? done() : requestAnimationFrame(look)"
        async with asyncio.timeout(PATIENCE_S):
            await self.page.evaluate(f"new Promise(done => {{ const look = {look}; look(); }})")


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    """Run chromium."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 # only where playwright is installed

    async with async_playwright() as playwright:
        # In a container chromium runs as root, where its sandbox does not work.
        running = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        await running.close()


@contextlib.asynccontextmanager
async def opened(
    browser: Any, scene: Scene | None = None, *, stage: Stage | None = None, path: str = "", **options: Any
) -> AsyncIterator[Window]:
    """Open the page on a scene; at the end nobody else was asked for anything, and the console is silent."""
    on = stage or Stage(scene or story())
    async with staged(on), looked_at(browser, on.url, path, stage=on, **options) as window:
        yield window


@contextlib.asynccontextmanager
async def looked_at(
    browser: Any, url: str, path: str = "", *, stage: Stage | None = None, **options: Any
) -> AsyncIterator[Window]:
    """Open what is served at this address, by a stage or by a service."""
    settings = {"viewport": WIDE, "reduced_motion": "reduce", "locale": "en-GB", "timezone_id": "UTC", **options}
    async with await browser.new_context(**settings) as context:
        page = await context.new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        window = Window(url, page, stage or Stage(Scene()))
        page.on("request", lambda request: window.requests.append(request.url))
        page.on("pageerror", lambda error: window.complaints.append(str(error)))
        page.on("console", window.hear)
        await page.goto(url + path)
        yield window
        assert (window.elsewhere, window.complaints) == ([], [])
