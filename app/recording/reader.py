"""Reads a recording. Its last file may end anywhere: the process may have been killed."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from app.model.seam import rfc3339
from app.recording.lines import FORMAT, TIMED, UnreadableLineError
from app.recording.writer import GZIP

CHUNK_BYTES = 1 << 20
"""How much is read, and unpacked, at once."""

LINE_BYTES = 64 << 20
"""No line is longer: one that offers 100,000 nodes has some 10 MB."""


class NoRecordingError(Exception):
    """There is nothing to read. The message says what is expected."""


def recordings(folder: Path) -> list[Path]:
    """Return the recordings in a folder, oldest first, or the folder if it is one; raise `NoRecordingError`."""
    if any(folder.glob("*.jsonl.gz")):
        return [folder]
    found = sorted({file.parent for file in folder.glob("*/*.jsonl.gz")})
    if not found:
        raise NoRecordingError(
            f"{folder} has no recording: expected files such as 000001.jsonl.gz, or folders of them, which a service"
            " with LEEBOARD_RECORD_DIR writes"
        )
    return found


def recording_at(folder: Path, wall_s: float) -> Path:
    """Return the recording of a time in seconds since the epoch; raise `NoRecordingError`, `UnreadableLineError`."""
    there = []
    for one in reversed(recordings(folder)):
        began_s, ended_s = span(one)
        # A user knows the begin in whole seconds.
        if int(began_s) <= wall_s <= ended_s:
            return one
        there.append(f"{one} is from {rfc3339(began_s)} to {rfc3339(ended_s)}")
    raise NoRecordingError(f"nothing is recorded at {rfc3339(wall_s)}: {'; '.join(reversed(there))}")


def span(recording: Path) -> tuple[float, float]:
    """Return the times of the first and the last line, in seconds since the epoch; raise `UnreadableLineError`."""
    head = header(recording)
    at_us, offset_us = head["monotonic_us"], head["offset_us"]
    began_us = at_us + offset_us
    for read in lines(recording):
        if read[0] == "O":
            offset_us = read[1]
        elif read[0] in TIMED:
            at_us += read[1]
    return began_us / 1e6, (at_us + offset_us) / 1e6


def lines(recording: Path) -> Iterator[list[Any]]:
    """Yield the lines of a recording as lists, after the header; raise `UnreadableLineError`."""
    for file in sorted(recording.glob("*.jsonl.gz")):
        for text in _texts(file):
            yield _line(file, text)


def _line(file: Path, text: bytes) -> list[Any]:
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise UnreadableLineError(f"{file} has a line that is not JSON: {text[:80]!r}") from None
    if not _is_line(read):
        raise UnreadableLineError(f"{file} has a line of another form: {text[:80]!r}")
    found: list[Any] = read
    return found


def header(recording: Path) -> dict[str, Any]:
    """Return the first line; raise `UnreadableLineError` for another format."""
    first = next(lines(recording), None)
    if not first or first[0] != "H" or not isinstance(first[-1], dict):
        raise UnreadableLineError(f"{recording} does not begin with a header")
    found: dict[str, Any] = first[-1]
    if found.get("format") != FORMAT:
        raise UnreadableLineError(
            f"{recording} has format {found.get('format')} of version {found.get('version')}; this version reads"
            f" format {FORMAT}"
        )
    return found


def _is_line(read: Any) -> bool:
    match read:
        case [str(kind), *fields]:
            return kind not in TIMED or bool(fields)
        case _:
            return False


def _texts(file: Path) -> Iterator[bytes]:
    unpacker, begun, size = zlib.decompressobj(GZIP), list[bytes](), 0
    for part in _unpacked(file, unpacker):
        first, *others = part.split(b"\n")
        begun.append(first)
        size += len(first)
        if others:
            yield b"".join(begun)
            yield from others[:-1]
            begun, size = [others[-1]], len(others[-1])
        if size > LINE_BYTES:
            raise UnreadableLineError(f"{file} has a line of more than {LINE_BYTES >> 20} MiB")


def _unpacked(file: Path, unpacker: "zlib._Decompress") -> Iterator[bytes]:
    with file.open("rb") as opened:
        while packed := opened.read(CHUNK_BYTES):
            while packed:
                try:
                    yield unpacker.decompress(packed, CHUNK_BYTES)
                except zlib.error as error:
                    raise UnreadableLineError(f"{file} is damaged: {error}") from None
                packed = unpacker.unconsumed_tail
