"""What the saturated hour shows, in small: a large gang starts behind streams of small pods."""

from random import Random

import pytest

from app.model.queue import Queue
from loadtest.saturated import POLICIES, Figures, Job, Load, Play, weighted

CAME_AT = 300.0
END = 1200.0


def small(random: Random, queue: str, number: int, at: float) -> Job:
    """Make a pod of one GPU that runs for five minutes at most, which nothing tells."""
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
    # What the wait costs: most GPUs that it needs are idle for some minutes.
    assert figures.idle < most_idle
    assert figures.lost < 0.02
