"""Writes a recording: lines are taken at once, and a thread compresses and stores them.

A recording never delays the service. If the disk is too slow, full, or gone, the recording ends, and its last line says
why; the service continues.
"""

import os
import re
import threading
import zlib
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import structlog

from app.recording.lines import line

log = structlog.get_logger()

SEGMENT_BYTES = 16 << 20
"""The size of a file, compressed."""

WAITING_BYTES = 64 << 20
"""How much may wait for the disk."""

FOLDER = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
FILE = re.compile(r"\d{6,}\.jsonl\.gz")

WRITE_EVERY_S = 0.25
ENDS_WITHIN_S = 5.0
LEVEL = 1
GZIP = 31
"""The `wbits` of zlib for a gzip header."""


class RecordingWriter:
    """One recording in a folder of its own. Only the thread that makes it adds lines."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        """Create the folder; raise OSError. The recording ends when its files have `most_bytes`."""
        folder.mkdir(mode=0o700, parents=True)
        self._folder = folder
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._stored = 0
        self._end = ""
        """Why it ended; empty while it goes on."""
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether no further line is taken."""
        return bool(self._end)

    def add(self, written: bytes) -> None:
        """Take a line."""
        if self._end:
            return
        self._waiting += len(written)
        if self._waiting - self._stored > WAITING_BYTES:
            self.end(f"the disk took less than came in: {WAITING_BYTES >> 20} MiB wait")
            return
        self._lines.append(written)

    def close(self) -> None:
        """Store what waits, and end; a disk that hangs does not keep the process."""
        self.end("the service stopped")
        self._is_closed = True
        self._wake.set()
        self._thread.join(ENDS_WITHIN_S)
        if self._thread.is_alive():
            log.warning("recording not stored to its end", folder=str(self._folder))

    def end(self, why: str) -> None:
        """Take no further line, and say why in the last one."""
        if not self._end:
            self._lines.append(line("E", why))
            self._end = why
            if why != "the service stopped":
                log.warning("recording ended", folder=str(self._folder), why=why)

    def _work(self) -> None:
        try:
            self._store_all()
        except OSError as error:
            self._end = self._end or str(error)
            log.warning("recording ended", folder=str(self._folder), why=str(error))
        self._lines.clear()

    def _store_all(self) -> None:
        number, total = 0, 0
        while total < self._most_bytes and not (self._is_closed and not self._lines):
            number += 1
            with self._opened(number) as file:
                packer, size = zlib.compressobj(LEVEL, wbits=GZIP), 0
                while size < SEGMENT_BYTES and size + total < self._most_bytes:
                    self._wake.wait(WRITE_EVERY_S)
                    is_last, taken = self._is_closed, self._taken()
                    packed = packer.compress(taken) + packer.flush(zlib.Z_SYNC_FLUSH) if taken else b""
                    size += file.write(packed)
                    file.flush()
                    if is_last:
                        break
                file.write(packer.flush())
                total += size
        if total >= self._most_bytes:
            self.end(f"it has {self._most_bytes >> 20} MiB, half of LEEBOARD_RECORD_MIB")
            with self._opened(number + 1) as file:
                file.write(zlib.compress(line("E", self._end) + b"\n", wbits=GZIP))

    def _opened(self, number: int) -> BinaryIO:
        # It names pods and what the cluster's users say of them, which is not for everybody on the machine.
        return open(self._folder / f"{number:06}.jsonl.gz", "xb", opener=_private)

    def _taken(self) -> bytes:
        taken = [self._lines.popleft() for _ in range(len(self._lines))]
        self._stored += sum(map(len, taken))
        return b"".join(one + b"\n" for one in taken)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def begun(parent: Path, *, most_bytes: int) -> RecordingWriter:
    """Begin a recording in a new folder, and remove the oldest ones beyond `most_bytes`; raise OSError.

    Half of the room is for the new recording, so that the one of the process before stays.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _make_room(parent, most_bytes // 2)
    name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return RecordingWriter(parent / name, most_bytes=most_bytes // 2)


def _make_room(parent: Path, most_bytes: int) -> None:
    # Only files that a recording has are removed, in folders with the name of one; a link is not followed.
    total = 0
    recordings = sorted(filter(_is_recording, parent.iterdir()), reverse=True)
    for number, one in enumerate(recordings):
        files = [file for file in one.iterdir() if FILE.fullmatch(file.name)]
        total += sum(file.stat().st_size for file in files)
        # A recording ends when it has the size, so a full one is larger by what was written last.
        beyond = WAITING_BYTES if number == 0 else 0
        if total > most_bytes + beyond:
            for file in files:
                file.unlink()
            with suppress(OSError):  # it holds other files, which stay
                one.rmdir()


def _is_recording(folder: Path) -> bool:
    return FOLDER.fullmatch(folder.name) is not None and folder.is_dir() and not folder.is_symlink()
