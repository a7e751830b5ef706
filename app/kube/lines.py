"""Parses the lines of a list or a watch, completely or not at all. `watch` decides when to start again."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import aiohttp
import orjson

from app.kube import errors
from app.kube.errors import BrokenStreamError
from app.kube.transport import TransportLimits
from app.model.seam import Changed, Deleted, Progress, RawObject, WatchEvent

T = TypeVar("T")

SLICE, SLICE_BYTES = 10, 1 << 16
"""The most objects, and bytes of them, that are parsed before the event loop gets a turn. One object is never divided.
"""


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The events of one slice of a read, and the resourceVersion of its last line."""

    events: list[WatchEvent[T]]
    version: str


async def batches(content: aiohttp.StreamReader, limits: TransportLimits) -> AsyncGenerator[list[bytes], None]:
    """Yield the complete lines of each read in slices, with turns for other tasks in between, until the stream ends.

    Raises `BrokenStreamError` when no line arrives in time, when a line is too long, or when the stream ends within a
    line.
    """
    begun: list[bytes] = []
    clock = asyncio.get_running_loop()
    deadline_s = clock.time() + limits.silence_s
    while chunk := await _next(content, deadline_s, limits):
        last = chunk.rfind(b"\n")
        if last < 0:
            begun.append(chunk)
            _check_length(begun, limits)
            continue
        for number, lines in enumerate(_sliced(b"".join([*begun, chunk[:last]]).split(b"\n"))):
            if number:
                await asyncio.sleep(0)
            yield lines
        begun = [chunk[last + 1 :]]
        # The deadline restarts only here: the time that the consumer took is not silence of the API server.
        deadline_s = clock.time() + limits.silence_s
    if any(begun):
        raise BrokenStreamError("the stream ended in the middle of a line")


def _sliced(lines: list[bytes]) -> Iterator[list[bytes]]:
    piece, size = list[bytes](), 0
    for line in lines:
        if piece and (len(piece) >= SLICE or size + len(line) > SLICE_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    yield piece


def _check_length(begun: list[bytes], limits: TransportLimits) -> None:
    if sum(map(len, begun)) > limits.line_bytes:
        raise BrokenStreamError(f"a line is longer than {limits.line_bytes} bytes")


async def _next(content: aiohttp.StreamReader, deadline_s: float, limits: TransportLimits) -> bytes:
    try:
        async with asyncio.timeout_at(deadline_s):
            return await content.readany()
    except TimeoutError as error:
        raise BrokenStreamError(f"silent for {limits.silence_s:g} s") from error
    except (aiohttp.ClientError, OSError) as cause:
        raise errors.lost("GET", cause) from cause


def decode(lines: list[bytes], keep: Callable[[RawObject], T]) -> Batch[T]:
    """Parse the lines of one slice, all or none.

    Raises `BrokenStreamError` for a line that is no watch event, and the error of an ERROR event.
    """
    events: list[WatchEvent[T]] = []
    version = ""
    for line in lines:
        try:
            message = orjson.loads(line)
            kind, body = message["type"], message["object"]
            if kind == "ERROR":
                raise errors.of_error_event(body)
            version = body["metadata"]["resourceVersion"]
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise BrokenStreamError(f"a line of {len(line)} bytes is no watch event") from error
        events.append(_event(kind, body, keep))
    return Batch(events, str(version))


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `next` is the continue token, empty on the last page."""

    objects: list[RawObject]
    size_bytes: int
    version: str
    next: str


def decode_page(body: bytes) -> Page:
    """Parse one page; raise `BrokenStreamError` when it is not a list."""
    try:
        page = orjson.loads(body)
        objects, metadata = list(map(_mapping, page["items"] or [])), page["metadata"]
        return Page(objects, len(body), str(metadata["resourceVersion"]), metadata.get("continue") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BrokenStreamError(f"an answer of {len(body)} bytes is no list") from error


def _mapping(value: object) -> RawObject:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _event(kind: str, body: RawObject, keep: Callable[[RawObject], T]) -> WatchEvent[T]:
    match kind:
        case "ADDED" | "MODIFIED":
            return Changed(keep(body))
        case "DELETED":
            return Deleted(keep(body))
        case "BOOKMARK":
            return Progress()
    raise BrokenStreamError("an event of unknown type")
