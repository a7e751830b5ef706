from dataclasses import replace

import pytest

from app.model.explanation import QueueStand
from app.model.names import QueueName
from app.model.queue import Queue
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot
from app.scheduling.explain import queue_summary
from tests.given import group, node, placed, pod, queue, snapshot

INVALID = replace(queue("odd", "gone"), problem="its parent queue gone does not exist")
TREE = (queue("top", deserved=8), queue("b", "top", deserved=2), queue("a", "top"), INVALID)


def busy(queues: tuple[Queue, ...] = TREE) -> Snapshot:
    """Build a cluster of eight GPUs: a runs one pod and has two pending ones, b and odd run one each."""
    ran = [group(running=[placed(pod(f"{name}-runs", queue=name), "n")]) for name in ("a", "b", "odd")]
    waits = [group(pod(f"a-{number}", gpus=4, queue="a")) for number in range(2)]
    return snapshot([node("n")], queues, [*ran, *waits])


def numbers(stand: QueueStand | None) -> tuple[int, int, int | None, int]:
    assert stand is not None
    fair = stand.fair_share
    gpus = stand.allocated.gpu_milli // 1000, stand.requested.gpu_milli // 1000
    return *gpus, None if fair is None else fair.gpu_milli // 1000, stand.waiting


def test_every_queue_is_listed_by_name_with_the_queues_below() -> None:
    found = {stand.queue.name: numbers(stand) for stand in queue_summary.stands(busy())}

    assert list(found.items()) == [
        ("a", (1, 9, 7, 2)),
        ("b", (1, 1, 1, 0)),
        ("odd", (1, 1, None, 0)),
        ("top", (2, 10, 8, 2)),
    ]


@pytest.mark.parametrize("name", ["a", "b", "odd", "top"])
def test_a_single_queue_is_described_as_in_the_list_of_all(name: str) -> None:
    world = busy()
    (expected,) = (stand for stand in queue_summary.stands(world) if stand.queue.name == name)

    assert queue_summary.stand_of(world, QueueName(name)) == expected


@pytest.mark.parametrize("name", ["a", "b", "odd", "top"])
def test_among_very_many_queues_a_single_queue_is_described_without_its_fair_share(name: str) -> None:
    many = tuple(queue(f"r{number}") for number in range(queue_summary.MOST_DIVIDED))
    world = busy((*TREE, *many))
    (expected,) = (stand for stand in queue_summary.stands(world) if stand.queue.name == name)

    assert queue_summary.stand_of(world, QueueName(name)) == replace(expected, fair_share=None)


def test_a_queue_that_does_not_exist_has_no_summary() -> None:
    assert queue_summary.stand_of(busy(), QueueName("none")) is None


def test_an_empty_queue_holds_nothing() -> None:
    (stand,) = queue_summary.stands(snapshot([node("n")], [queue("idle")], []))

    assert stand == QueueStand(queue=queue("idle"), fair_share=Resources(), allocated=NOTHING)
