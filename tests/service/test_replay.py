import asyncio
import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.model.question import PodQuestion
from app.model.seam import KubeError
from app.recording import reader
from app.recording.lines import UnreadableLineError
from app.service.replay import Replay, Replayed
from tests.service.recorded import demo, serving
from tests.service.test_shell import BrokenWatch, SlowBinds


class BadText(SlowBinds):
    """A cluster whose errors are no UTF-8."""

    asked = 0

    async def read_lease(self, namespace: str, name: str) -> None:
        BadText.asked += 1
        raise KubeError(f"{namespace}/{name}: \udcff")


def replayed(folder: Path, **more: Any) -> Replayed:
    (recording,) = reader.recordings(folder)
    replay = Replay(recording)
    try:
        return replay.run(**more)
    finally:
        replay.close()


def read(folder: Path) -> list[list[Any]]:
    (recording,) = reader.recordings(folder)
    return list(reader.lines(recording))


def rewritten(folder: Path, lines: list[list[Any]]) -> None:
    (recording,) = reader.recordings(folder)
    for file in recording.iterdir():
        file.unlink()
    text = b"".join(orjson.dumps(one) + b"\n" for one in lines)
    (recording / "000001.jsonl.gz").write_bytes(gzip.compress(text))


async def test_a_replay_of_the_demo_sends_the_same_commands_and_gives_the_same_answers(tmp_path: Path) -> None:
    await demo(tmp_path, seed=219, minutes=10.0, audit_interval_s=60.0)

    result = replayed(tmp_path)

    assert result.differences == []
    assert result.end == "the service stopped"
    assert result.commands > 1000
    assert result.answers > 500
    assert result.lasted_s == pytest.approx(600, abs=10)


async def test_a_replay_of_a_failing_watch_has_no_differences(tmp_path: Path) -> None:
    async with serving(seen=BrokenWatch, record_dir=tmp_path) as service:  # type: ignore[arg-type]
        await asyncio.wait({service.running})

    result = replayed(tmp_path)

    assert result.kinds["e"] == 1
    assert result.differences == []


async def test_what_cannot_be_recorded_ends_the_recording_and_not_the_service(tmp_path: Path) -> None:
    async with serving(seen=BadText, record_dir=tmp_path, scheduler_lease="a/b", hostname="h") as service:  # type: ignore[arg-type]
        await asyncio.sleep(5.0)

        assert BadText.asked > 5, "the lease is read again after an error"
        assert not service.running.done()

    assert "a line of kind F cannot be written" in replayed(tmp_path).end


async def test_a_replay_keeps_no_record_that_it_has_shown(tmp_path: Path) -> None:
    async with serving(record_dir=tmp_path) as service:
        service.nodes(20)
        await asyncio.sleep(2.0)
    (recording,) = reader.recordings(tmp_path)
    replay = Replay(recording)
    result = replay.run()
    replay.close()

    assert result.kinds["V"] >= 20
    assert len(replay._kept) == result.kinds["V"]
    assert replay._kept.waiting() == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["S", 3, ["L", [0, 10**12], False]], "objects 0 to 1000000000000 of 0 are not known"),
        (["O", 10**18], "has no use"),
        (["R"], "a line of another form"),
        (["A", 1, "filter", 5], "has no use"),
        (["Z"], "unknown kind"),
    ],
)
async def test_a_line_that_no_service_writes_is_refused(tmp_path: Path, line: list[Any], complaint: str) -> None:
    async with serving(record_dir=tmp_path):
        pass
    head, *_ = read(tmp_path)
    rewritten(tmp_path, [head, line, ["R", 1]])

    with pytest.raises(UnreadableLineError, match=complaint):
        replayed(tmp_path)


@pytest.mark.parametrize("change", [{"offset_us": "x"}, {"settings": 5}, {"settings": {"gang_barrier_s": -1}}])
async def test_a_header_that_this_version_cannot_use_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    async with serving(record_dir=tmp_path):
        pass
    (kind, head), *others = read(tmp_path)
    rewritten(tmp_path, [[kind, head | change], *others])

    with pytest.raises(UnreadableLineError, match="has a header that this version cannot use"):
        replayed(tmp_path)


async def test_a_replay_has_only_the_settings_of_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(record_dir=tmp_path):
        await asyncio.sleep(2.0)
    (kind, head), *others = read(tmp_path)
    del head["settings"]["gang_barrier_s"]
    rewritten(tmp_path, [[kind, head], *others])
    monkeypatch.setenv("LEEBOARD_GANG_BARRIER_S", "-1")

    assert replayed(tmp_path).differences == []


async def test_a_question_that_fails_is_recorded_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("app.control.webhooks.extender.planner.scores", fails)
    async with serving(record_dir=tmp_path) as service:
        nodes = service.nodes(2)
        service.queue()
        await asyncio.sleep(1.0)
        with pytest.raises(ValueError, match="a fault"):
            service.shell.prioritize(PodQuestion(pod=service.pod("p"), uid=None, offered=nodes))

    result = replayed(tmp_path)

    assert result.differences == []
    assert any(line[0] == "Q" and "a fault" in str(line[-1]) for line in read(tmp_path))


async def test_a_service_that_stops_decides_nothing_more(tmp_path: Path) -> None:
    async with serving(record_dir=tmp_path) as service:
        service.nodes(1)
        service.queue()
        await asyncio.sleep(1.0)
        service.running.cancel()
        await asyncio.sleep(1.0)
        service.pod("late")
        await asyncio.sleep(60.0)

        assert not list(service.shell.components.cache.reservations)

    assert replayed(tmp_path).differences == []
