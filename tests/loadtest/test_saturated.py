"""The effect of the saturated hour, in small: a large gang starts behind streams of small pods."""

from math import inf
from random import Random

import pytest

from app.model.queue import Queue
from app.scheduling.preemption.ageing import LONGEST_PAUSE_S
from loadtest.saturated import POLICIES, Figures, Load, Play, weighted
from loadtest.virtual_time import Job

pytestmark = pytest.mark.slow

CAME_AT = 300.0
END = 1200.0


def small(random: Random, queue: str, number: int, at: float) -> Job:
    """Build a pod of one GPU that runs for at most five minutes, which no field says."""
    return Job(f"{queue}{number}", queue, 1, 1, random.uniform(60, 300), at)


ALONE = [weighted("a", 1, 0)]
TWO = [weighted("a", 1, 0), weighted("b", 1, 0)]


@pytest.mark.parametrize(
    ("queues", "pods", "most_idle"),
    [(ALONE, 8, 0.25), (TWO, 4, 0.12), (TWO, 3, 0.1)],
    ids=["the whole cluster", "all of its queue's share", "most of its queue's share"],
)
def test_a_gang_behind_small_pods_starts_within_ten_minutes(queues: list[Queue], pods: int, most_idle: float) -> None:
    gang = Job("gang", "a", pods, 8, 600.0, CAME_AT)
    play = Play(Load(queues, small), 0, POLICIES["leeboard"])
    play.post(CAME_AT, "come", gang)

    figures = Figures.of(play.run(0.0, END))

    assert gang.started_at is not None
    assert gang.started_at - CAME_AT <= 600.0
    # The cost of the wait: most GPUs that it needs are idle for some minutes.
    assert figures.idle < most_idle
    assert figures.lost < 0.02


@pytest.mark.parametrize("other", ["a", "b"], ids=["of the same queue", "of another queue"])
def test_a_gang_after_another_gang_waits_no_longer_than_the_pause_between_them(other: str) -> None:
    gangs = [Job(f"gang-{queue}{at}", queue, 2, 8, 300.0, at) for queue, at in (("a", CAME_AT), (other, 1200.0))]
    play = Play(Load(TWO, small), 0, POLICIES["leeboard"])
    for gang in gangs:
        play.post(gang.created_at, "come", gang)

    figures = Figures.of(play.run(0.0, 2400.0))

    waits = [gang.started_at - gang.created_at if gang.started_at is not None else inf for gang in gangs]
    assert max(waits) <= 600.0 + LONGEST_PAUSE_S
    assert figures.idle < 0.05
