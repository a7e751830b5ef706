"""The messages between the deciding process and the view: a length of four bytes, then JSON.

to the view    one Setup; then, for each request, any number of parts with rows, and one frame
from the view  one byte for each frame that it wants: while nobody watches, it wants none
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

NEXT = b"n"
"""The request for the next frame."""

MOST_BYTES = 64 << 20
"""The size of the largest message. A part has at most `feed.ROWS_AT_ONCE` rows and a little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the view has to know of the settings."""

    operations: str
    """The URL of the operations listener of the deciding process."""
    anonymous: bool
    """Whether every reader sees everything."""
    reviews: bool
    """Whether there is an API server that reviews tokens."""
    kubeconfig: str | None
    secret: str
    """By which the deciding process vouches for users."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Read it."""
        return cls(**message)

    def message(self) -> Mapping[str, object]:
        """Write it."""
        return asdict(self)


def written(message: Mapping[str, object]) -> bytes:
    """Return a message as bytes."""
    try:
        body = orjson.dumps(message)
    except TypeError:  # a text that is no UTF-8
        body = orjson.dumps(_clean(message))
    return len(body).to_bytes(4, "big") + body


async def read(reader: asyncio.StreamReader) -> Mapping[str, Any]:
    """Return the next message; raise EOFError when the other process is gone."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MOST_BYTES:
            raise EOFError(f"a message of {size} bytes")
        message: Mapping[str, Any] = orjson.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other process is gone") from error
    return message


def _clean(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case dict():
            return {_clean(key): _clean(each) for key, each in value.items()}
        case list() | tuple():
            return [_clean(each) for each in value]
        case _:
            return value
