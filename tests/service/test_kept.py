"""Recordings of a real control plane that are kept: a change of any decision in them shows here.

Whoever changes decisions on purpose makes them again, and says in the commit what differs:
    LEEBOARD_KEEP_RECORDING=tests/service/kept python -m pytest tests/system/test_recording.py
"""

from pathlib import Path

import pytest

from app.recording.reader import recordings
from app.service.replay import Replay

KEPT = recordings(Path(__file__).parent / "kept")


@pytest.mark.parametrize("recording", KEPT, ids=lambda path: path.name)
def test_kept_recording_of_a_real_control_plane_replays_without_a_difference(recording: Path) -> None:
    replay = Replay(recording)
    try:
        result = replay.run()
    finally:
        replay.close()

    assert result.differences == []
    assert result.commands > 10


def test_the_kept_recordings_are_those_of_two_processes() -> None:
    assert len(KEPT) == 2
