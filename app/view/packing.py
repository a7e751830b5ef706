"""Text that is compressed once and sent to many: pieces, of which each client gets its own gzip body.

A piece ends at a whole byte and refers to nothing before it, as a full flush of zlib leaves it. So the pieces of a
state and of its changes may follow one another in any order. Only the checksum at the end of a body is the client's.
"""

import zlib
from functools import cached_property
from typing import Protocol

HEAD = bytes.fromhex("1f8b08000000000000ff")
"""Of RFC 1952: deflate, no name, no time."""
END = b"\x03\x00"
"""The last block of deflate, which is empty."""
RAW = -zlib.MAX_WBITS
LEVEL = 9
"""A change is small."""


class Piece:
    """Text, and the same compressed once somebody asks for it."""

    def __init__(self, plain: bytes, *, level: int = LEVEL) -> None:
        """Compress nothing yet."""
        self.plain = plain
        self._level = level

    @cached_property
    def packed(self) -> bytes:
        """The raw deflate blocks."""
        packer = zlib.compressobj(self._level, wbits=RAW)
        return packer.compress(self.plain) + packer.flush(zlib.Z_FULL_FLUSH)


class Body(Protocol):
    """The body of one answer. Each method returns the bytes to send."""

    def begin(self) -> bytes:
        """Begin it."""
        ...

    def add(self, piece: Piece) -> bytes:
        """Add a piece."""
        ...

    def end(self) -> bytes:
        """End it."""
        ...


class PlainBody:
    """For clients that read no gzip."""

    def begin(self) -> bytes:
        """Begin with nothing."""
        return b""

    def add(self, piece: Piece) -> bytes:
        """Add the text."""
        return piece.plain

    def end(self) -> bytes:
        """End with nothing."""
        return b""


class GzipBody:
    """For all others."""

    def __init__(self) -> None:
        """Have no text yet."""
        self._checksum = 0
        self._size = 0

    def begin(self) -> bytes:
        """Begin with the head of gzip."""
        return HEAD

    def add(self, piece: Piece) -> bytes:
        """Add the blocks."""
        self._checksum = zlib.crc32(piece.plain, self._checksum)
        self._size += len(piece.plain)
        return piece.packed

    def end(self) -> bytes:
        """End with the checksum and the size."""
        return END + b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in (self._checksum, self._size))
