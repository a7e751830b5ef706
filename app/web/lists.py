"""Sends long lists in parts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from fastapi import Response
from fastapi.responses import StreamingResponse

from app.web.answers import Answer

PAUSE_EVERY = 100
"""After this many items of a list, other tasks get a turn."""
PART_BYTES = 256 << 10
"""The size of one part of a list that is sent in parts."""
JSON = "application/json"


async def each_of(answers: Iterable[Answer]) -> AsyncIterator[Answer]:
    """Yield these answers, and let other tasks run in between."""
    for number, answer in enumerate(answers, start=1):
        yield answer
        if number % PAUSE_EVERY == 0:
            await asyncio.sleep(0)


async def listed(around: Callable[[], Answer], items: AsyncIterator[Answer]) -> Response:
    """Answer with a list. Send a long list in parts, so that a slow client holds only one part in memory.

    `around` is the answer without its items. Its fields after the items are evaluated at the end.
    """
    parts = _parts(around, items)
    first = await anext(parts)
    second = await anext(parts, None)
    if second is None:
        return Response(first, media_type=JSON)

    async def all_parts() -> AsyncIterator[str]:
        yield first
        yield second
        async for part in parts:
            yield part

    return StreamingResponse(all_parts(), media_type=JSON)


async def _parts(around: Callable[[], Answer], items: AsyncIterator[Answer]) -> AsyncIterator[str]:
    before, _, _ = _written(around()).partition("[]")
    part, comma = f"{before}[", ""
    async for item in items:
        if len(part) > PART_BYTES:
            yield part
            part = ""
        part += comma + item.model_dump_json(by_alias=True)
        comma = ","
    _, _, after = _written(around()).partition("[]")
    yield f"{part}]{after}"


def _written(around: Answer) -> str:
    return around.model_dump_json(by_alias=True, exclude_none=True)
