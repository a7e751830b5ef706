import errno
import gzip
import io
import stat
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from app.recording import reader, writer
from app.recording.lines import FORMAT, UnreadableLineError, line
from app.recording.reader import NoRecordingError
from app.recording.writer import RecordingWriter, begun

MIB = 1 << 20


def written(folder: Path, *lines: bytes, most_bytes: int = MIB) -> Path:
    recording = RecordingWriter(folder / "20260101T000000.000000Z", most_bytes=most_bytes)
    for one in lines:
        recording.add(one)
    recording.close()
    return folder / "20260101T000000.000000Z"


def test_lines_come_back_in_order_and_the_last_one_says_why_it_ends(tmp_path: Path) -> None:
    recording = written(tmp_path, *(line("R", number) for number in range(1000)))

    read = list(reader.lines(recording))

    assert read == [*(["R", number] for number in range(1000)), ["E", "the service stopped"]]


def test_a_recording_goes_on_in_further_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(writer, "WRITE_EVERY_S", 0.001)
    recording = RecordingWriter(tmp_path / "r", most_bytes=MIB)
    for number in range(20):
        recording.add(line("R", number))
        while len(list((tmp_path / "r").iterdir())) <= number:
            pass
    recording.close()

    assert len(list((tmp_path / "r").iterdir())) > 15
    assert [one[1] for one in reader.lines(tmp_path / "r")][:20] == list(range(20))


def test_a_full_recording_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WRITE_EVERY_S", 0.001)
    recording = RecordingWriter(tmp_path / "r", most_bytes=MIB)
    number = 0
    while not recording.is_over:
        number += 1
        recording.add(line("R", str(hash(str(number)))))
    recording.add(line("R", "too late"))
    recording.close()

    read = list(reader.lines(tmp_path / "r"))

    assert read[-1] == ["E", "it has 1 MiB, half of LEEBOARD_RECORD_MIB"]
    assert ["R", "too late"] not in read
    assert sum(file.stat().st_size for file in (tmp_path / "r").iterdir()) < 1.5 * MIB


def test_a_killed_process_leaves_what_it_had_stored(tmp_path: Path) -> None:
    recording = written(tmp_path, *(line("R", number) for number in range(1000)))
    file = recording / "000001.jsonl.gz"
    whole = file.read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 3):
        file.write_bytes(whole[:size])
        read = list(reader.lines(recording))
        assert read == [["R", number] for number in range(len(read))][: len(read)] or read[-1][0] == "E"


def test_what_a_disk_cannot_take_ends_the_recording_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordingWriter, "_opened", lambda *_: Full())
    recording = RecordingWriter(tmp_path / "r", most_bytes=MIB)
    recording.add(line("R", 1))
    recording.close()
    recording.add(line("R", 2))

    assert recording.is_over
    assert "No space left on device" in capsys.readouterr().out


def test_a_disk_that_is_too_slow_ends_the_recording_and_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAITING_BYTES", 1000)
    monkeypatch.setattr(writer, "WRITE_EVERY_S", 3600.0)
    recording = RecordingWriter(tmp_path / "r", most_bytes=MIB)
    for number in range(1000):
        recording.add(line("R", number))
    is_over = recording.is_over
    recording.close()

    assert is_over
    *taken, last = reader.lines(tmp_path / "r")
    assert taken == [["R", number] for number in range(len(taken))]
    assert last == ["E", "the disk took less than came in: 0 MiB wait"]


def test_a_disk_that_hangs_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = threading.Event()

    class Hanging(io.BytesIO):
        def write(self, _: Any) -> int:
            answers.wait(10.0)
            return 0

    monkeypatch.setattr(RecordingWriter, "_opened", lambda *_: Hanging())
    monkeypatch.setattr(writer, "ENDS_WITHIN_S", 0.05)
    recording = RecordingWriter(tmp_path / "r", most_bytes=MIB)
    recording.add(line("R", 1))
    began = time.monotonic()
    recording.close()
    took_s = time.monotonic() - began
    answers.set()

    assert took_s < 5.0
    assert "recording not stored to its end" in capsys.readouterr().out


def test_the_oldest_recordings_are_removed_to_make_room_and_nothing_else_is(tmp_path: Path) -> None:
    for year in (2023, 2024, 2025):
        folder = tmp_path / f"{year}0101T000000.000000Z"
        folder.mkdir()
        (folder / "000001.jsonl.gz").write_bytes(bytes(MIB))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "000001.jsonl.gz").write_bytes(bytes(4 * MIB))

    begun(tmp_path, most_bytes=5 * MIB).close()

    names = sorted(each.name for each in tmp_path.iterdir())
    assert [name[:4] for name in names[:2]] == ["2024", "2025"]
    assert names[-1] == "mine"
    assert len(names) == 4


def test_the_recording_of_the_process_before_stays_also_when_it_is_full(tmp_path: Path) -> None:
    for year, size in ((2024, 1), (2025, MIB + 1000)):
        folder = tmp_path / f"{year}0101T000000.000000Z"
        folder.mkdir()
        (folder / "000001.jsonl.gz").write_bytes(bytes(size))

    begun(tmp_path, most_bytes=2 * MIB).close()

    assert min(each.name for each in tmp_path.iterdir()).startswith("2025")


def test_links_and_files_of_others_stay_where_recordings_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAITING_BYTES", 1000)
    names = [f"{year}0101T000000.000000Z" for year in (2022, 2023, 2024)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "000001.jsonl.gz").write_bytes(bytes(MIB))
    parent = tmp_path / "recordings"
    parent.mkdir()
    (parent / names[0]).symlink_to(elsewhere)
    (parent / names[1]).mkdir()
    (parent / names[1] / "000001.jsonl.gz").write_bytes(bytes(4 * MIB))
    (parent / names[1] / "notes.txt").write_text("mine")
    (parent / names[2]).write_text("a file")
    (parent / "20240101Tale.of.a.ZZ").mkdir()
    (parent / "2024T1.1Z").mkdir()

    begun(parent, most_bytes=2 * MIB).close()

    kept = sorted(str(each.relative_to(parent)) for each in parent.rglob("*"))
    expected = [names[0], names[1], f"{names[1]}/notes.txt", names[2], "20240101Tale.of.a.ZZ", "2024T1.1Z"]
    assert [each for each in kept if each in expected] == sorted(expected)
    assert (elsewhere / "000001.jsonl.gz").exists()
    assert not (parent / names[1] / "000001.jsonl.gz").exists()


def test_only_the_user_of_the_service_may_read_a_recording(tmp_path: Path) -> None:
    recording = written(tmp_path, line("R", 1))

    modes = [stat.S_IMODE(each.stat().st_mode) for each in (recording, recording / "000001.jsonl.gz")]

    assert modes == [0o700, 0o600]


def test_a_folder_without_a_recording_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(NoRecordingError, match="LEEBOARD_RECORD_DIR"):
        reader.recordings(tmp_path)


def test_a_folder_of_recordings_has_them_oldest_first(tmp_path: Path) -> None:
    first, second = begun(tmp_path, most_bytes=MIB), begun(tmp_path, most_bytes=MIB)
    first.close()
    second.close()

    found = reader.recordings(tmp_path)

    assert found == sorted(found)
    assert len(found) == 2
    assert reader.recordings(found[0]) == [found[0]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "does not begin with a header"),
        (b'["R", 1]\n', "does not begin with a header"),
        (b'["H", {"format": 99, "version": "9.9"}]\n', f"format 99 of version 9.9; this version reads format {FORMAT}"),
        (b"not JSON\n", "a line that is not JSON"),
        (b"5\n", "a line of another form"),
        (b"[]\n", "a line of another form"),
        (b'["R"]\n', "a line of another form"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: bytes, complaint: str) -> None:
    (tmp_path / "000001.jsonl.gz").write_bytes(gzip.compress(text))

    with pytest.raises(UnreadableLineError, match=complaint):
        reader.header(tmp_path)


def test_a_file_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "000001.jsonl.gz").write_bytes(b'["H", {}]')

    with pytest.raises(UnreadableLineError, match="is damaged"):
        reader.header(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    recording = written(tmp_path, *(line("R", number) for number in range(1000)))
    file = recording / "000001.jsonl.gz"
    packed = bytearray(file.read_bytes())
    packed[0] = 0
    file.write_bytes(packed)

    with pytest.raises(UnreadableLineError, match="is damaged"):
        list(reader.lines(recording))


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES", 4 * MIB)
    (tmp_path / "000001.jsonl.gz").write_bytes(gzip.compress(bytes(100 * MIB)))

    tracemalloc.start()
    try:
        with pytest.raises(UnreadableLineError, match="a line of more than 4 MiB"):
            list(reader.lines(tmp_path))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most < 12 * MIB
