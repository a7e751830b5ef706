"""The output of `leeboard replay`, of one short recording of the demo."""

import asyncio
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from click.testing import CliRunner, Result
from inline_snapshot import snapshot

from app.cli import main
from app.recording import reader
from app.service.past_state import PastState
from tests.control.virtual import VirtualTimeLoop
from tests.service.recorded import demo, serving

Line = list[Any]

BEGIN, MIDDLE, END = "2023-11-14T22:13:20Z", "2023-11-14T22:14:00Z", "2023-11-14T22:14:20Z"
LATER = "2023-11-14T22:13:25Z"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record one minute of the demo."""
    folder = tmp_path_factory.mktemp("recordings")
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(demo(folder, seed=219, minutes=1.0))
    return folder


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """Copy the recording, so that a test may change it."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def record_pods_that_nobody_asks_about(folder: Path, **settings: Any) -> None:
    """Record a gang without a kube-scheduler that would start it."""

    async def record() -> None:
        async with serving(record_dir=folder, **settings) as service:
            service.nodes(1)
            service.queue()
            service.gang("train", size=2)
            await asyncio.sleep(10.0)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(record())


def replay(folder: Path, *options: str, columns: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": f"{columns}"}).invoke(main, ["replay", str(folder), *options])


def shown(folder: Path, *options: str) -> str:
    result = replay(folder, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def read(folder: Path, *options: str) -> dict[str, Any]:
    (one,) = json.loads(shown(folder, "-o", "json", *options))
    assert isinstance(one, dict)
    return one


def complaint(folder: Path, *options: str) -> str:
    """Return the only line that is said, of a replay that cannot run."""
    result = replay(folder, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line


def file_of(folder: Path) -> Path:
    (recording,) = reader.recordings(folder)
    return recording / "000001.jsonl.gz"


def rewrite(folder: Path, change: Callable[[list[Line]], None]) -> None:
    (recording,) = reader.recordings(folder)
    lines = list(reader.lines(recording))
    change(lines)
    file_of(folder).write_bytes(gzip.compress(b"".join(orjson.dumps(one) + b"\n" for one in lines)))


def test_a_replay_says_what_it_has_compared(folder: Path) -> None:
    first, second, third = shown(folder).splitlines()

    assert first.endswith(f"Z: version 0.1.0, {BEGIN} to {END} (60.0 s)")
    assert second.startswith("  inputs ")
    assert second.endswith(", differences 0")
    assert third == "  the recording ends because the service stopped"


def test_json_has_the_same_and_no_state_without_a_time(folder: Path) -> None:
    one = read(folder)

    assert (one["began"], one["ended"], one["end"]) == (BEGIN, END, "the service stopped")
    assert one["commands"] > 50
    assert one["kinds"]["c"] == one["commands"]
    assert (one["differences"], one["state"]) == ([], None)


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_difference_is_shown_and_is_exit_code_1(folder: Path, output: str) -> None:
    def bind_elsewhere(lines: list[Line]) -> None:
        bind = next(line for line in lines if line[0] == "c" and line[2] == "bind")
        bind[3] = ["elsewhere"]

    rewrite(folder, bind_elsewhere)
    result = replay(folder, "-o", output)

    assert result.exit_code == 1
    if output == "text":
        assert 'recorded  ["c",' in result.stdout
        assert '"bind",["elsewhere"]]' in result.stdout
        assert "differences 1\n" in result.stdout
    else:
        ((difference,),) = [one["differences"] for one in json.loads(result.stdout)]
        assert difference["recorded"][2:] == ["bind", ["elsewhere"]]
        assert difference["replayed"][2] == "bind"


def test_a_command_that_is_not_repeated_is_a_difference(folder: Path) -> None:
    rewrite(folder, lambda lines: lines.insert(len(lines) - 1, ["c", 9999, "evict", []]))
    result = replay(folder)

    assert result.exit_code == 1
    assert '    recorded  ["c",9999,"evict",[]]\n    replayed  nothing\n' in result.stdout


def test_a_recording_of_a_killed_process_is_replayed_as_far_as_it_goes(folder: Path) -> None:
    file = file_of(folder)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    one = read(folder)

    assert one["differences"] == []
    assert one["end"] == ""
    assert one["inputs"] > 100
    assert BEGIN < one["ended"] < END


def test_several_recordings_are_replayed_one_after_the_other(folder: Path) -> None:
    (recording,) = reader.recordings(folder)
    shutil.copytree(recording, folder / "20270101T000000.000000Z")

    first, second = json.loads(shown(folder, "-o", "json"))

    assert (first["recording"], second["recording"]) == (str(recording), str(folder / "20270101T000000.000000Z"))


# What cannot be read


def test_a_folder_without_a_recording_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    assert complaint(tmp_path) == (
        f"Error: {tmp_path} has no recording: expected files such as 000001.jsonl.gz, or folders of them, which a"
        " service with LEEBOARD_RECORD_DIR writes"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no JSON", "has a line that is not JSON: b'no JSON'"),
        (b"5", "has a line of another form: b'5'"),
        (b'["R"]', "has a line of another form: b'[\"R\"]'"),
        (b'["Z",1]', "has the unknown kind 'Z'"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(folder: Path, line: bytes, message: str) -> None:
    file = file_of(folder)
    whole = gzip.decompress(file.read_bytes()).splitlines()
    file.write_bytes(gzip.compress(b"\n".join([whole[0], line, *whole[1:]])))

    assert message in complaint(folder)


def test_a_damaged_file_is_named(folder: Path) -> None:
    file_of(folder).write_bytes(b"no gzip")

    assert complaint(folder).startswith(f"Error: {file_of(folder)} is damaged: ")


# The state at a time


def test_a_time_that_is_none_is_a_usage_error(folder: Path) -> None:
    result = replay(folder, "--until", "noon")

    assert result.exit_code == 2
    assert "'noon' is not a time such as 2026-01-31T09:30:00Z" in result.stderr


@pytest.mark.parametrize("time", ["2023-11-14T22:13:19Z", "2023-11-14T22:15:00Z"])
def test_a_time_outside_of_the_recording_is_refused_with_the_times_that_are_recorded(folder: Path, time: str) -> None:
    (recording,) = reader.recordings(folder)

    assert complaint(folder, "--until", time) == (
        f"Error: nothing is recorded at {time}: {recording} is from {BEGIN} to {END}"
    )


@pytest.mark.parametrize("time", [BEGIN, "2023-11-14T22:14:00", "2023-11-14T23:14:00+01:00", END])
def test_a_replay_stops_at_the_time(folder: Path, time: str) -> None:
    one = read(folder, "--until", time)

    assert one["ended"] == one["state"]["at"] == (time if time in {BEGIN, END} else MIDDLE)
    assert one["differences"] == []


def test_the_state_says_what_waits_and_why_and_what_each_queue_has(folder: Path) -> None:
    state = read(folder, "--until", MIDDLE)["state"]

    assert set(state) == set(PastState.__dataclass_fields__)
    whys = {f"{one['namespace']}/{one['name']}": one["why"] for one in state["waiting"]}
    assert whys["serving/gang-15"] == {
        "reason": "OverLimit",
        "sentence": "Queue serving would exceed its limit of 32 GPUs: it holds 0.5 GPUs, and 32 GPUs are requested.",
        "details": whys["serving/gang-15"]["details"],
    }
    allocated = {one["name"]: one["allocated"]["gpu_milli"] for one in state["queues"]}
    assert allocated["acme"] == allocated["product"] + allocated["research"] > 0


def test_the_text_has_the_waiting_podgroups_the_reservations_and_the_queues(folder: Path) -> None:
    state = read(folder, "--until", MIDDLE)["state"]
    text = shown(folder, "--until", MIDDLE)

    assert f"\nWaiting at {MIDDLE}: {len(state['waiting'])} PodGroups\n" in text
    assert "OverLimit: Queue serving would exceed" in text
    assert "\nReserved: no places\n" in text
    assert "\nQUEUE " in text


def test_a_reservation_is_shown_with_its_pod_and_node(tmp_path: Path) -> None:
    record_pods_that_nobody_asks_about(tmp_path)

    state = read(tmp_path, "--until", LATER)["state"]
    text = shown(tmp_path, "--until", LATER)

    assert state["reservations"] == [
        {
            "namespace": "q",
            "pod": f"train-{i}",
            "pod_group": "train",
            "node": "node-00",
            "devices": [],
            "state": "Promised",
        }
        for i in range(2)
    ]
    assert text.partition("\n\n")[2] == snapshot("""\
Waiting at 2023-11-14T22:13:25Z: no PodGroups

Reserved: 2 places

POD        PODGROUP  NODE     STATE
q/train-0  train     node-00  Promised
q/train-1  train     node-00  Promised

QUEUE  DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
q             8      -     2      2        2     0

In GPUs. - means unlimited; under FAIR it means that the queue gets no share.
""")


def test_a_service_on_standby_says_why_nothing_was_decided(tmp_path: Path) -> None:
    record_pods_that_nobody_asks_about(tmp_path, scheduler_lease="kube-system/kube-scheduler")

    text = shown(tmp_path, "--until", LATER)

    assert text.partition("\n\n")[2] == snapshot("""\
Nothing was decided at 2023-11-14T22:13:25Z: the lease kube-system/kube-scheduler of kube-scheduler
has no holder

Waiting at 2023-11-14T22:13:25Z: 1 PodGroup

PODGROUP  QUEUE  PODS  WHY
q/train   q         2  -

Reserved: no places

QUEUE  DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
q             8      -     2      0        2     1

In GPUs. - means unlimited; under FAIR it means that the queue gets no share.
""")
