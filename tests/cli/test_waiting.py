"""The output of `leeboard pending`, `gang`, `top` and `version`, over the real read API and over Kubernetes objects."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot

from app.cli import main
from app.cli.top import screen
from app.model.explanation import Explanation, Member, PodState, Subject, Unknown, Why
from app.model.names import GroupKey, NodeName
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from tests.cli.installation import Replica, answering
from tests.cli.test_object_answers import TOO_FULL, group, holding, pod, run, shown
from tests.cli.test_queues import RESEARCH
from tests.given import group as grouped
from tests.given import pod as member
from tests.occupied import device, node_use, on
from tests.web.fakes import FakeInspect

ROOT = Path(__file__).parents[2]
LONG = "Only 12 of its 16 pods find room now; for the next pod, 18 of 21 nodes have too few GPUs."
GROUPS: tuple[tuple[PodGroup, Refusal | None], ...] = (
    (
        grouped(member("a", gang="train", queue="vision"), member("b", gang="train", queue="vision"), min_member=2),
        Refusal(reason=Reason.GANG_DOES_NOT_FIT, sentence=LONG),
    ),
    (replace(grouped(member("alone", queue="speech")), key=GroupKey("other", "alone")), None),
)


async def asked(*arguments: str, inspect: FakeInspect, columns: int = 80) -> Result:
    async with answering(Replica(inspect=inspect)) as url:
        runner = CliRunner(env={"COLUMNS": f"{columns}", "LEEBOARD_URL": url})
        return await asyncio.to_thread(runner.invoke, main, arguments)


async def waiting(*arguments: str, columns: int = 80) -> Result:
    return await asked("pending", *arguments, inspect=FakeInspect(groups=GROUPS), columns=columns)


# -- pending


async def test_every_podgroup_that_waits_is_a_line() -> None:
    assert "\n" + (await waiting("-A")).stdout == snapshot("""\

NAMESPACE  NAME   QUEUE   PODS  WHY
default    train  vision     2  GangDoesNotFit: Only 12 of its 16 pods find roo…
other      alone  speech     1  -
""")


async def test_the_whole_sentence_is_shown_on_request_and_to_other_programs() -> None:
    wide = (await waiting("-A", "-o", "wide")).stdout
    assert "\n" + wide == snapshot("""\

NAMESPACE  NAME   QUEUE   PODS  PRIORITY  MIN  RUNNING  WHY
default    train  vision     2         0    2        0  GangDoesNotFit: Only 12
                                                        of its 16 pods find room
                                                        now; for the next pod,
                                                        18 of 21 nodes have too
                                                        few GPUs.
other      alone  speech     1         0    1        0  -
""")
    assert LONG in (await waiting("-A", columns=10_000)).stdout


async def test_one_namespace_or_one_queue_is_shown() -> None:
    def names(result: Result) -> list[str]:
        assert result.exit_code == 0
        return result.stdout.split()

    assert names(await waiting("-o", "name")) == ["podgroup.scheduling.run.ai/train"]
    assert names(await waiting("-n", "other", "-o", "name")) == ["podgroup.scheduling.run.ai/alone"]
    assert names(await waiting("-A", "-q", "speech", "-o", "name")) == ["podgroup.scheduling.run.ai/alone"]
    assert [each["name"] for each in orjson.loads((await waiting("-o", "json")).stdout)["items"]] == ["train"]


async def test_that_nothing_waits_is_no_data() -> None:
    result = await waiting("-n", "empty")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No PodGroup waits in namespace empty.\n"


async def test_without_the_service_the_podgroup_objects_are_listed(tmp_path: Path) -> None:
    cluster = holding(groups=[group(pending=2, schedulingConditions=[TOO_FULL])])
    cluster.set_items("/apis/scheduling.run.ai/v2alpha2/podgroups", group(pending=1), group(phase="Running"))
    cluster.set_items("/api/v1/pods")

    assert await shown(cluster, tmp_path, "pending") == snapshot("""\

NAMESPACE  NAME   QUEUE   PODS  WHY
default    train  vision     2  NoNodeFits: Pod train-0 needs 8 GPUs; the most on one node are 4.
""")
    assert await shown(cluster, tmp_path, "pending", "-A", "--no-headers") == snapshot("""\

default  train  vision  1  -
""")


async def test_without_the_service_pods_without_a_podgroup_are_listed_as_well(tmp_path: Path) -> None:
    unmanaged, said = pod("web", labels={}, annotations={}), "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    refused = pod("refused", annotations={})
    refused["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    ]
    pods = [pod("alone", annotations={}), pod("runs", node="gpu-1", annotations={}), pod(), unmanaged, refused]
    cluster = holding(groups=[group(pending=1)], pods=pods)

    assert await shown(cluster, tmp_path, "pending", "--no-headers") == snapshot("""\

default  train    vision  1  -
default  alone    vision  1  -
default  refused  vision  1  Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.
""")


# -- gang


def gang(**more: object) -> Explanation:
    fields = {
        "subject": Subject.POD_GROUP,
        "namespace": "default",
        "name": "train",
        "state": "Waiting",
        "why": Why(reason="NotReady", sentence="Waiting for 4 pods, currently 3 exist."),
        "min_member": 4,
        "counts": {"Held": 2, "Bound": 1},
        "members": (Member("train-10", PodState.HELD, None), Member("train-9", PodState.BOUND, NodeName("gpu-1"))),
        **more,
    }
    return Explanation(**fields)  # type: ignore[arg-type] # free-form by design


async def test_a_gang_shows_its_pods_and_how_many_are_missing() -> None:
    result = await asked("gang", "podgroup/train", inspect=FakeInspect(told=gang()))

    assert "\n" + result.stdout == snapshot("""\

Waiting for 4 pods, currently 3 exist.
default/train: 1 Bound, 2 Held; 4 start together, 1 missing

POD       STATE  NODE
train-9   Bound  gpu-1
train-10  Held   -

and 1 more
""")


async def test_pods_that_name_the_gang_are_found_without_the_service(tmp_path: Path) -> None:
    pods = [pod("train-0", node="gpu-1"), pod("train-1"), pod("other", annotations={})]
    cluster = holding(groups=[group(pending=1, running=1, schedulingConditions=[TOO_FULL])], pods=pods)

    assert await shown(cluster, tmp_path, "gang", "train", "-o", "wide") == snapshot("""\

Pod train-0 needs 8 GPUs; the most on one node are 4.
default/train: 1 Pending, 1 Running; 2 start together

POD      STATE  NODE   PHASE    AGE
train-0  Bound  gpu-1  Running    -
train-1  Held   -      Pending    -
""")
    assert await shown(cluster, tmp_path, "gang", "train", "-o", "name") == "\npod/train-0\npod/train-1\n"
    assert (await run(cluster, tmp_path, "gang", "tarin")).stderr.endswith("; did you mean train?\n")


@pytest.mark.parametrize(
    ("arguments", "namespace"),
    [
        (["train"], "default"),
        (["train", "-n", "vision"], "vision"),
        (["vision/train"], "vision"),
        (["vision/train", "-n", "vision"], "vision"),
        (["podgroup/train", "-n", "vision"], "vision"),
        (["podgroups/train"], "default"),
        (["pg/train"], "default"),
        (["podgroup.scheduling.run.ai/train"], "default"),
    ],
)
async def test_a_podgroup_can_be_written_in_several_ways(arguments: list[str], namespace: str) -> None:
    inspect = FakeInspect(told=gang())
    await asked("gang", *arguments, inspect=inspect)

    assert inspect.questions == [(namespace, "train", Subject.POD_GROUP)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pod/train-0"], "not 'pod/train-0'; `leeboard why pod/train-0` names the PodGroup of a pod or a workload\n"),
        (["job.batch/train"], "not 'job.batch/train'; `leeboard why job.batch/train` names the PodGroup of a pod or"),
        (["vision/train", "-n", "lab"], "'vision/train' is in namespace vision, and -n names lab\n"),
        *((["a/b/c"], "not 'a/b/c'\n"), (["/train"], "not '/train'\n"), (["pg/"], "not 'pg/'\n"), ([""], "not ''\n")),
    ],
)
async def test_what_is_no_podgroup_is_refused_with_what_to_write(arguments: list[str], said: str) -> None:
    inspect = FakeInspect(told=gang())
    result = await asked("gang", *arguments, inspect=inspect)

    assert (result.exit_code, inspect.questions) == (2, [])
    assert "write NAME, podgroup/NAME or NAMESPACE/NAME of a PodGroup" in result.stderr
    assert said in result.stderr


async def test_a_kind_that_was_read_as_a_namespace_is_said_to_be_none_of_a_podgroup() -> None:
    inspect = FakeInspect(told=Unknown("no PodGroup job/train is known"))
    result = await asked("gang", "job/train", inspect=inspect)

    assert (result.exit_code, inspect.questions) == (1, [("job", "train", Subject.POD_GROUP)])
    assert result.stderr == (
        "Error: no PodGroup job/train is known; write NAME, podgroup/NAME or NAMESPACE/NAME of a PodGroup;"
        " `leeboard why job/train` names the PodGroup of a pod or a workload\n"
    )


# -- top

CLUSTER = FakeInspect(
    groups=GROUPS, stands=RESEARCH, gpus=(node_use("gpu-a", on(device(0), is_free=True), on(device(1))),)
)


async def test_top_shows_everything_once_to_another_program() -> None:
    result = await asked("top", inspect=CLUSTER)

    assert "\n" + result.stdout == snapshot("""\

2 GPUs on 1 node: 1 free, 0 reserved, 0 not healthy; at most 1 free on one node

QUEUE            DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
prod                   32      -     8      0        0     0
research               64      -     8   71.5      143     3
  speech               32     48     8   31.5       63     1
  vision               32      -     8     40       80     2
    vision-eval         0      -     8      0        0     0

NAMESPACE  NAME   QUEUE   PODS  WHY
default    train  vision     2  GangDoesNotFit: Only 12 of its 16 pods find roo…
other      alone  speech     1  -
""")


def test_the_screen_is_cut_to_its_height_and_says_so() -> None:
    many = [{**each, "waitingPodGroups": 0} for each in QUEUES]
    facts = {"nodes": "you may not list nodes", "queues": many, "waiting": []}

    text = screen(facts, "gpu", width=80, height=14)

    assert text.splitlines()[0] == "you may not list nodes"
    assert "more lines" in text
    assert text.splitlines()[-1] == "Nothing waits."
    assert len(text.splitlines()) <= 14


AMOUNTS = {"cpuMilli": None, "memoryBytes": None, "gpuMilli": 1000}
QUEUES = [
    {
        "name": f"q{number}",
        "parent": None,
        "problem": None,
        "priority": 100,
        "overQuotaWeightMicro": dict.fromkeys(("cpu", "memory", "gpu"), 0),
        **dict.fromkeys(
            ("deserved", "limit", "fairShare", "allocated", "requested", "allocatedNonPreemptible"), AMOUNTS
        ),
    }
    for number in range(40)
]


@pytest.mark.slow
async def test_top_redraws_a_terminal_and_gives_it_back_at_ctrl_c() -> None:
    async with answering(Replica(inspect=CLUSTER)) as url:
        code, text = await asyncio.to_thread(on_a_terminal, ["top"], {"LEEBOARD_URL": url, "NO_COLOR": "1"})

    assert code == 0
    assert text.startswith("\x1b[?1049h\x1b[?25l\x1b[Hleeboard top, ")
    assert "2 GPUs on 1 node: 1 free" in text
    assert text.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[7m" not in text


@pytest.mark.slow
async def test_a_watch_ends_at_ctrl_c_also_where_a_script_has_started_it() -> None:
    async with answering(Replica(inspect=CLUSTER)) as url:
        code, text = await asyncio.to_thread(on_a_terminal, ["pending", "-A", "-w"], {"LEEBOARD_URL": url})

    assert (code, "Traceback" in text, "\x1b[H" in text) == (0, False, True)


DEAF = ["sh", "-c", 'trap \'\' INT; exec "$0" "$@"']
"""Runs a command as a script does in the background: it ignores SIGINT."""


def on_a_terminal(arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a command on a terminal; press Ctrl-C when it has drawn its first screen. Return its exit code and output."""
    parent, child = pty.openpty()
    command = [*DEAF, sys.executable, "-m", "app", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdin=child, stdout=child, stderr=child)
    os.close(child)
    seen = b""
    deadline = time.monotonic() + 60
    try:
        while b"\x1b[J" not in seen and time.monotonic() < deadline:
            seen += os.read(parent, 1 << 16)
        process.send_signal(signal.SIGINT)
        code = process.wait(30)
        with_rest = seen + _rest(parent)
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    return code, with_rest.decode()


def _rest(terminal: int) -> bytes:
    """Return what is left to read; a terminal whose program has ended is an error."""
    parts = []
    try:
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    except OSError:
        pass
    return b"".join(parts)


# -- version


async def test_versions_of_the_command_and_of_the_service() -> None:
    result = await asked("version", "-o", "json", inspect=FakeInspect())

    assert result.exit_code == 0
    assert set(json.loads(result.stdout)) == {"client", "server", "kubernetes"}


async def test_without_the_service_the_version_says_so_and_ends_with_1(tmp_path: Path) -> None:
    cluster = holding()
    cluster.objects["/version"] = {"gitVersion": "v1.36.0"}

    result = await run(cluster, tmp_path, "version")

    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["client", "kubernetes"]
    assert result.stdout.endswith("v1.36.0\n")
    assert result.stderr.startswith("server: there is no Service leeboard/leeboard:operations")
    assert (await run(cluster, tmp_path, "version", "--client")).exit_code == 0
