"""Serves an app on a real port of loopback during a block, and sends it raw bytes."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import orjson
import structlog
from starlette.types import ASGIApp

from app.web.connection import ConnectionLimits
from app.web.listener import Listener, listener

HOST = "127.0.0.1"
CONNECTIONS = ConnectionLimits(connections=64)
PATIENCE_S = 10.0
"""No test waits this long unless it fails."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """One response as it came off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> object:
        return orjson.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes) -> None:
        """Write, and stop without an error when the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                self._writer.write(part)
                await self._writer.drain()

    async def reply(self, *, to_head: bool = False) -> HttpReply:
        """Read one response; the one to HEAD has no body, whatever its length header, and a 304 has none."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            status, *lines = head.decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            has_body = not to_head and " 304 " not in status
            body = await self._reader.readexactly(int(headers["content-length"])) if has_body else b""
        return HttpReply(int(status.split()[1]), headers, body)

    async def is_closed_by_server(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read() == b""
            except ConnectionError:
                return True


@dataclass(frozen=True, slots=True)
class Served:
    """A running listener."""

    port: int
    listener: Listener

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(self, request: bytes) -> HttpReply:
        async with self.connection() as wire:
            await wire.send(request)
            return await wire.reply()


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, limits: ConnectionLimits = CONNECTIONS, *, grace_s: int = 5) -> AsyncIterator[Served]:
    """Serve `app` until the block ends."""
    bound = listener(app, HOST, 0, limits=limits, grace_s=grace_s)
    running = asyncio.create_task(bound.run())
    try:
        yield Served(bound.port, bound)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        bound.close()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Write one complete request."""
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str) -> bytes:
    """Write one request without a body."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers)).encode() + b"\r\n\r\n"


@contextlib.contextmanager
def serving_from_a_thread(application: ASGIApp) -> Iterator[int]:
    """Return the port of an application that runs in a thread of its own: Hypothesis does not speak asyncio."""
    loop = asyncio.new_event_loop()
    bound = listener(application, HOST, 0, limits=CONNECTIONS)
    running = loop.create_task(bound.run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([running])))
    with structlog.testing.capture_logs():
        thread.start()
        yield bound.port
        loop.call_soon_threadsafe(running.cancel)
        thread.join()
    loop.close()
