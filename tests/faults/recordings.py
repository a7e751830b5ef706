"""Records each life of Leeboard in a world, and replays the recordings."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from app.recording.reader import recordings
from app.service.replay import Replay, Replayed
from tests.faults.script import Script


def recorded_in(folder: Path, script: Script) -> Script:
    """Return a script whose run keeps recordings in a folder, and is the same otherwise."""
    return replace(script, settings={**script.settings, "record_dir": str(folder)})


def replayed(folder: Path) -> Iterator[Replayed]:
    """Replay all recordings of a folder, oldest first."""
    for recording in recordings(folder):
        replay = Replay(recording)
        try:
            yield replay.run()
        finally:
            replay.close()


def main() -> int:
    """Replay the recordings in a folder; print what differs first in each."""
    differ = 0
    for one in replayed(Path(sys.argv[1])):
        print(f"{one.inputs} inputs, {one.commands} Commands, {one.answers} answers: {one.differences[:1]}")
        differ += bool(one.differences)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
