"""The output of `leeboard queues`, over the real read API."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot

from app.cli import main
from app.cli.queue_tables import queues_table
from app.model.explanation import QueueStand
from app.model.queue import Entitlement, Queue
from app.model.resources import Resources
from app.web.answers import QueueAnswer
from tests.cli.installation import Replica, answering
from tests.given import GIB, queue
from tests.web.fakes import FakeInspect


def stand(of: Queue, *, waiting: int = 0, milli: int = 0) -> QueueStand:
    """Build a queue that holds this amount, requests twice as much and has a fair share of eight GPUs."""
    return QueueStand(
        queue=of,
        allocated=Resources(gpu_milli=milli),
        requested=Resources(gpu_milli=2 * milli),
        fair_share=Resources(gpu_milli=8000),
        waiting=waiting,
    )


def invalid(name: str, parent: str, problem: str) -> QueueStand:
    return replace(stand(replace(queue(name, parent), problem=problem)), fair_share=None)


RESEARCH = (
    stand(queue("prod", deserved=32)),
    stand(queue("research", deserved=64), waiting=3, milli=71_500),
    stand(queue("speech", "research", deserved=32, limit=48), waiting=1, milli=31_500),
    stand(queue("vision", "research", deserved=32), waiting=2, milli=40_000),
    stand(queue("vision-eval", "vision")),
)


async def run(*arguments: str, stands: Sequence[QueueStand], columns: int = 80) -> Result:
    async with answering(Replica(inspect=FakeInspect(stands=stands))) as url:
        runner = CliRunner(env={"COLUMNS": f"{columns}", "LEEBOARD_URL": url})
        return await asyncio.to_thread(runner.invoke, main, ["queues", *arguments])


async def shown(*arguments: str, stands: Sequence[QueueStand] = RESEARCH, columns: int = 80) -> str:
    result = await run(*arguments, stands=stands, columns=columns)
    assert result.exit_code == 0, result.output
    return "\n" + result.stdout


def answer_of(of: QueueStand) -> dict[str, Any]:
    return QueueAnswer.of(of).model_dump(mode="json", by_alias=True)


def names(text: str) -> list[str]:
    """Return the first column, without the headings and the notes."""
    return [line.split()[0] for line in text.partition("\n\n")[0].splitlines()[1:]]


async def test_queues_are_a_tree_with_their_numbers() -> None:
    assert await shown() == snapshot("""\

QUEUE            DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
prod                   32      -     8      0        0     0
research               64      -     8   71.5      143     3
  speech               32     48     8   31.5       63     1
  vision               32      -     8     40       80     2
    vision-eval         0      -     8      0        0     0

In GPUs. - means unlimited; under FAIR it means that the queue gets no share.
""")


async def test_one_queue_is_shown_with_the_queues_below() -> None:
    assert await shown("vision") == snapshot("""\

QUEUE          DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
vision               32      -     8     40       80     2
  vision-eval         0      -     8      0        0     0

In GPUs. - means unlimited; under FAIR it means that the queue gets no share.
""")


async def test_every_queue_is_shown_with_its_error() -> None:
    circle = [invalid(name, parent, "its parents form a circle") for name, parent in (("x", "y"), ("y", "x"))]
    orphan = invalid("orphan", "gone", "its parent queue gone does not exist; create it")

    assert await shown(stands=[orphan, *circle]) == snapshot("""\

QUEUE     DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
orphan !         0      -     -      0        0     0
x !              0      -     -      0        0     0
  y !            0      -     -      0        0     0

In GPUs. - means unlimited; under FAIR it means that the queue gets no share.
! orphan: its parent queue gone does not exist; create it
! x: its parents form a circle
! y: its parents form a circle
""")


async def test_other_resources_are_shown_on_request_and_named_where_they_are_limited() -> None:
    governing = replace(
        stand(queue("q", deserved=1)),
        requested=Resources(memory_bytes=3 * GIB // 2),
        allocated=Resources(cpu_milli=1500),
    )
    memory = Entitlement(deserved=64 * GIB, limit=128 * GIB)
    governing = replace(governing, queue=replace(governing.queue, memory_bytes=memory))

    assert "Queues also govern memory: -r memory.\n" in await shown(stands=[governing])
    assert await shown("-r", "memory", stands=[governing]) == snapshot("""\

QUEUE  DESERVED  LIMIT  FAIR  ALLOC  REQUEST  WAIT
q            64    128     0      0      1.5     0

In GiB of memory. - means unlimited; under FAIR it means that the queue gets no
share.
Queues also govern GPUs: -r gpu.
""")
    assert "q             -      -     0    1.5        0     0\n" in await shown("-r", "cpu", stands=[governing])


@pytest.mark.parametrize("columns", [60, 80, 200])
async def test_no_line_is_wider_than_the_terminal_and_control_characters_are_removed(columns: int) -> None:
    evil = "\x1b[2J\x07\u202e" + "n" * 230
    stands = [stand(queue("top"), milli=10**9), invalid(evil, "top", evil)]

    text = await shown(stands=stands, columns=columns)

    assert max(len(line) for line in text.splitlines()) <= columns
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_a_gpu_share_has_as_many_digits_as_in_messages() -> None:
    text = queues_table([answer_of(stand(queue("q"), milli=351))], "gpu", width=80)

    assert text.splitlines()[1].split() == ["q", "0", "-", "8", "0.351", "0.702", "0"]


def test_a_chain_of_thousands_of_queues_is_shown_to_its_end() -> None:
    chain = [stand(queue(f"q{number:04}", f"q{number - 1:04}" if number else None)) for number in range(5_000)]

    text = queues_table([*map(answer_of, chain)], "gpu", width=80)

    assert names(text) == [f"q{number:04}" for number in range(5_000)]


async def test_json_is_the_answer_of_the_service() -> None:
    every = orjson.loads((await run("-o", "json", stands=RESEARCH)).stdout)
    some = orjson.loads((await run("vision", "-o", "json", stands=RESEARCH)).stdout)

    assert every["kind"] == some["kind"] == "QueueList"
    assert [each["name"] for each in some["items"]] == ["vision", "vision-eval"]
    assert [each for each in every["items"] if each["name"].startswith("vision")] == some["items"]


async def test_an_unknown_queue_gives_the_list_of_known_ones() -> None:
    lines = [(await run("none", stands=stands)).stderr for stands in (RESEARCH[:2], ())]

    assert lines == [
        "Error: no queue 'none' is known; there are prod, research\n",
        "Error: no queue 'none' is known; there are none\n",
    ]


async def test_a_cluster_without_queues_says_so_and_what_to_do() -> None:
    assert "There are no queues" in await shown(stands=())
