"""Only the planning step makes a typical mix, beside the event loop."""

import pytest
from structlog.testing import capture_logs

from app.cluster.state.mix_input import FEW, MixInput
from app.cluster.state.pod_arrivals import PodArrivals
from app.model.mix import TypicalMix
from app.model.question import Fits
from app.scheduling.placement import expected_use
from tests.control.virtual import threads_take
from tests.control.wired import World, lets_in, living, passes


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TypicalMix]:
    """Return the mixes that are made, in their order."""
    found = list[TypicalMix]()
    original = MixInput.mix

    def mix(arrived: MixInput) -> TypicalMix:
        found.append(original(arrived))
        return found[-1]

    monkeypatch.setattr(MixInput, "mix", mix)
    return found


def run_many(world: World, pods: int) -> None:
    """Have so many pods run that a new mix is due."""
    for number in range(pods):
        world.runs(f"r{world.now()}-{number}", "b")


async def shown(world: World, pods: int) -> None:
    """Wait until the cache has these pods, but planning has not gone on yet."""
    while len(list(world.cache.pods.all())) < pods:
        await passes(0)


async def test_the_first_mix_is_there_before_the_first_question(made: list[TypicalMix]) -> None:
    async with living("a", "b", gpus=8) as world:
        await passes(1)

        assert len(made) == 1
        assert world.cache.snapshot().mix is made[0]


async def test_the_first_mix_after_a_restart_counts_the_pods_that_run(made: list[TypicalMix]) -> None:
    async with living("a", "b", gpus=8) as world:
        for number in range(7):
            world.runs(f"r{number}", "b", cpu=1)
        await passes(1)
        async with living(cluster=world.cluster) as restarted:
            await passes(1)

            mix = restarted.cache.snapshot().mix
            assert mix is made[-1]
            assert (1024, 7) in {
                (kind.cpu_milli, count // 1024) for kind, count in zip(mix.pods, mix.counts, strict=True)
            }


async def test_planning_makes_a_mix_when_it_is_due_and_only_then(made: list[TypicalMix]) -> None:
    async with living("a", "b", gpus=8) as world:
        await passes(1)
        run_many(world, FEW - 1)
        await passes(60)
        assert len(made) == 1
        run_many(world, 1)
        await passes(1)

        assert len(made) == 2
        assert world.cache.snapshot().mix is made[1]


async def test_no_reader_makes_a_mix_that_is_due(made: list[TypicalMix]) -> None:
    async with living("a", "b", gpus=8) as world:
        pod = world.pod("waits", gpus=9)
        await passes(1)
        run_many(world, FEW)
        await shown(world, FEW + 1)
        assert world.cache.arrivals.is_due(world.cache.snapshots.table())

        asked = world.asked("asked")
        assert isinstance(await world.what_if(asked, "a", "b"), Fits)
        assert world.scores(asked, "a", "b")
        assert lets_in(world.fast_path, asked)
        world.inspect.queues()()
        world.inspect.queue_stands()()
        world.inspect.explain("q", "waits-0")
        assert world.inspect.pod("q", "waits-0") is not None
        assert world.cache.snapshot().mix is made[0]
        world.meter.look()
        await world.filter(pod, "a", "b")

        assert world.cache.arrivals.is_due(world.cache.snapshots.table())
        assert len(made) == 1


async def test_the_event_loop_answers_while_a_mix_is_made(
    made: list[TypicalMix], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living("a", "b", gpus=8) as world:
        await passes(1)
        threads_take(5)
        run_many(world, FEW)
        await passes(1)
        assert not world.cache.arrivals.is_due(world.cache.snapshots.table())

        assert await world.choose(world.pod("new"), "a", "b") == "a"
        assert len(made) == 1
        await passes(5)

        assert len(made) == 2
        # The tables of the new mix are there as well.
        monkeypatch.setattr(expected_use, "_whole_and_part", None)
        assert isinstance(await world.what_if(world.asked("asked"), "a", "b"), Fits)


async def test_a_plan_before_the_first_mix_assumes_one_kind_of_pod(made: list[TypicalMix]) -> None:
    threads_take(5)
    async with living("a", "b", gpus=8) as world:
        assert world.cache.arrivals.last is None

        assert await world.choose(world.pod("new"), "a", "b") == "a"

        mix = world.cache.snapshot().mix
        assert mix is not None
        assert [kind.devices for kind in mix.pods] == [1]
        assert not made
        await passes(6)
        assert world.cache.snapshot().mix is made[0]


@pytest.mark.parametrize("broken", [(PodArrivals, "freeze"), (MixInput, "mix")], ids=["input", "mix"])
async def test_a_fault_in_the_mix_does_not_stop_planning(
    broken: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    async with living("a", gpus=8) as world:
        await passes(1)
        before = world.cache.arrivals.last
        monkeypatch.setattr(*broken, fail)
        with capture_logs() as logs:
            for number in range(2 * FEW):
                world.runs(f"r{number}", "a", gpus=0)
                world.runs(f"g{number}", "gone")
            pod = world.pod("new")
            await passes(30)

        assert world.promised(pod) == "a"
        assert world.cache.arrivals.last is before
        assert [log["event"] for log in logs] == ["learning the typical mix failed"]
