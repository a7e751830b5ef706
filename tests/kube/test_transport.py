"""Which part of a write is sent when the program was stopped during it."""

import pytest
from aiohttp.abc import AbstractStreamWriter

from app.kube.transport import PromptBody


class Wire(AbstractStreamWriter):
    """Records what was sent."""

    def __init__(self) -> None:
        self.sent = b""

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        raise NotImplementedError

    async def drain(self) -> None:
        raise NotImplementedError

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        raise NotImplementedError

    def enable_chunking(self) -> None:
        raise NotImplementedError

    async def write_headers(self, status_line: str, headers: object) -> None:
        raise NotImplementedError


async def test_a_write_is_sent_once_there_is_a_connection() -> None:
    times, wire = iter([0.0, 4.9]), Wire()

    await PromptBody(b"binding", within_s=5.0, clock=lambda: next(times)).write_with_length(wire, None)

    assert wire.sent == b"binding"


async def test_a_write_that_has_waited_too_long_is_not_sent() -> None:
    times, wire = iter([0.0, 5.1]), Wire()
    body = PromptBody(b"binding", within_s=5.0, clock=lambda: next(times))

    with pytest.raises(TimeoutError, match="too long"):
        await body.write_with_length(wire, None)

    assert wire.sent == b""
