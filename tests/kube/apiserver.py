"""A fake API server: each request gets the next answer of a script, and is recorded."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import orjson
import yaml
from aiohttp import web

from app.kube.access import Credentials
from app.kube.client import KubeCluster
from app.kube.transport import Transport, TransportLimits
from app.model.names import PodUid
from app.model.seam import PodRef, RawObject

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
POD = PodRef(namespace="default", name="p", uid=PodUid("u1"))
BRIEF = TransportLimits(connect_within_s=0.2, answer_within_s=0.1, page_within_s=0.1, silence_s=0.1, renew_every_s=0.0)
"""Short deadlines for tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class FakeApiServer:
    """Listens on loopback; a request beyond the script is never answered."""

    def __init__(self) -> None:
        self.script: deque[Answer] = deque()
        self.seen: list[Seen] = []
        self.url = ""

    def will(self, *answers: Answer) -> None:
        """Append to the script."""
        self.script.extend(answers)

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.read()
        self.seen.append(
            Seen(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers=dict(request.headers),
                body=orjson.loads(body) if body else None,
            )
        )
        return await (self.script.popleft() if self.script else silent())(request)


@asynccontextmanager
async def running(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeApiServer]:
    """Serve the script until the block ends."""
    fake = FakeApiServer()
    async with listening(fake.take, tls=tls) as fake.url:
        yield fake


@asynccontextmanager
async def listening(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Give every request to `answer` until the block ends; yield the address."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http{'s' if tls else ''}://{host}:{port}"
    finally:
        await runner.cleanup()


class Pauses(list[float]):
    """A sleep that only records its requested durations."""

    async def __call__(self, pause_s: float) -> None:
        """Let other tasks run once."""
        self.append(pause_s)
        await asyncio.sleep(0)


def kubeconfig(url: str, folder: Path, *, token: str = "first", **cluster: str) -> Path:
    """Write a kubeconfig whose token lies in `folder/token`."""
    (folder / "token").write_text(f"{token}\n")
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


async def connected(path: Path, *, pauses: Pauses | None = None, limits: TransportLimits = BRIEF) -> KubeCluster:
    """Connect with short deadlines, without sleeps and with a repeatable random generator."""
    credentials = Credentials(kubeconfig=str(path))
    transport = Transport(credentials, await credentials.read(), limits)
    return KubeCluster(transport, sleep=pauses if pauses is not None else Pauses(), chance=Random(1))


def says(body: object, *, code: int = 200, **headers: str) -> Answer:
    """Answer with JSON, or with bytes as they are."""

    async def answer(_: web.Request) -> web.Response:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=code, body=content, headers={"Content-Type": "application/json"} | named)

    return answer


def refuses(code: int, message: str = "no", *, cause: str = "", field: str = "", **headers: str) -> Answer:
    """Answer with a Status as the real server writes it."""
    return says(status(code, message, cause=cause, field=field), code=code, **headers)


def status(code: int, message: str = "no", *, cause: str = "", field: str = "") -> dict[str, Any]:
    """Build a Status."""
    details = {"causes": [{"reason": cause, "field": field}]} if field else {}
    return {"kind": "Status", "status": "Failure", "code": code, "message": message, "details": details}


def silent() -> Answer:
    """Never answer; the connection stays open."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody ends this wait")

    return answer


def loses_the_reply() -> Answer:
    """Take the request and cut the connection."""

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer


def lists(*objects: object, version: str = "10", more: str = "") -> Answer:
    """Answer with one page of a list."""
    return says({"metadata": {"resourceVersion": version, "continue": more}, "items": objects})


def streams(*chunks: bytes, then: Callable[[web.Request], Awaitable[object]] | None = None) -> Answer:
    """Answer with a watch stream; it ends normally unless `then` says otherwise."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then:
            await then(request)
        return response

    return answer


def pod(name: str, version: str = "1") -> dict[str, Any]:
    """Build the few fields of a pod that a watch reads."""
    return {"metadata": {"name": name, "resourceVersion": version}}


def line(kind: str, body: object) -> bytes:
    """Build one line of a watch."""
    return orjson.dumps({"type": kind, "object": body}, option=orjson.OPT_APPEND_NEWLINE)


def whole(raw: RawObject) -> RawObject:
    """Keep all of an object, for tests that check what has arrived."""
    return raw
