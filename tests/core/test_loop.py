import asyncio
from collections.abc import AsyncIterator, Coroutine
from math import inf
from typing import Any
from weakref import WeakSet

import pytest

from app.core.loop import FEW_TIMERS, DeterministicLoop, Job


class Owner:
    """Runs rounds by hand, and counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0
        self.jobs: list[tuple[Job, asyncio.Future[Any]]] = []
        self.loop = DeterministicLoop(self)  # type: ignore[abstract]
        self.said: list[Any] = []

    def wake(self) -> None:
        self.woken += 1

    def run_job(self, job: Job, result: asyncio.Future[Any]) -> None:
        self.jobs.append((job, result))

    def starts(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        with self.loop.entered(0.0):
            return self.loop.create_task(work)

    def rounds(self, *times: float) -> list[Any]:
        """Run a round at each time, and return what was said in them."""
        self.said.clear()
        for now_s in times:
            self.loop.run_round(now_s)
        return [*self.said]


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_callbacks_run_in_the_order_of_the_calls_and_those_that_they_add_in_the_next_round(owner: Owner) -> None:
    def first() -> None:
        owner.said.append("first")
        owner.loop.call_soon(owner.said.append, "added")

    owner.loop.call_soon(first)
    owner.loop.call_soon(owner.said.append, "second")

    assert owner.rounds(0.0) == ["first", "second"]
    assert owner.rounds(0.0) == ["added"]


def test_timers_run_when_they_are_due_by_time_and_then_in_the_order_of_the_calls(owner: Owner) -> None:
    for name, delay_s in (("late", 3.0), ("one", 2.0), ("two", 2.0)):
        owner.loop.call_later(delay_s, owner.said.append, name)

    assert owner.loop.due_at() == 2.0
    assert owner.rounds(1.9) == []
    assert owner.rounds(3.0) == ["one", "two", "late"]
    assert owner.loop.due_at() == inf


def test_a_cancelled_callback_does_not_run_and_its_time_is_not_due(owner: Owner) -> None:
    timer = owner.loop.call_later(1.0, owner.said.append, "timer")
    soon = owner.loop.call_soon(owner.said.append, "soon")
    timer.cancel()
    soon.cancel()

    assert timer.cancelled()
    assert owner.loop.due_at() == inf
    assert owner.rounds(5.0) == []


def test_cancelled_timers_are_not_kept_until_they_would_be_due(owner: Owner) -> None:
    class Waits:
        def __call__(self) -> None:
            raise AssertionError("it was cancelled")

    kept: WeakSet[Waits] = WeakSet()
    for number in range(10 * FEW_TIMERS):
        act = Waits()
        kept.add(act)
        owner.loop.call_later(3600.0, act).cancel()
        if number % 10 == 0:
            owner.loop.call_later(2.0 + number, owner.said.append, number)
    del act

    assert not kept
    assert len(owner.loop._timers) <= 3 * FEW_TIMERS  # nothing else shows what is kept
    assert owner.rounds(1e6) == [*range(0, 10 * FEW_TIMERS, 10)]


def test_an_error_in_a_call_does_not_leave_its_work_waiting(owner: Owner) -> None:
    def asked() -> None:
        with owner.loop.entered(1.0):
            owner.loop.call_soon(owner.said.append, "work")
            raise ValueError("bad question")

    with pytest.raises(ValueError, match="bad question"):
        asked()

    assert owner.woken == 1


def test_time_is_that_of_the_round_and_never_goes_back(owner: Owner) -> None:
    owner.loop.run_round(7.0)
    owner.loop.run_round(6.0)

    assert owner.loop.time() == 7.0


def test_coroutines_use_what_asyncio_offers(owner: Owner) -> None:
    async def work(name: str, pause_s: float) -> None:
        for _ in range(2):
            owner.said.append(f"{name} {asyncio.get_running_loop().time():g}")
            await asyncio.sleep(pause_s)

    async def main() -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work("quick", 1.0))
            tasks.create_task(work("slow", 2.0))
        try:
            async with asyncio.timeout(3.0):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"timed out at {asyncio.get_running_loop().time():g}"
        return "not reached"

    task = owner.starts(main())
    said = owner.rounds(*(step // 9 for step in range(90)))

    assert said == ["quick 0", "slow 0", "quick 1", "slow 2"]
    assert task.result() == "timed out at 7"


def test_the_loop_outside_is_the_running_one_again_after_a_round(owner: Owner) -> None:
    async def main() -> None:
        outside = asyncio.get_running_loop()
        owner.loop.call_soon(lambda: owner.said.append(asyncio.get_running_loop() is owner.loop))
        owner.loop.run_round(0.0)
        owner.said.append(asyncio.get_running_loop() is outside)

    asyncio.run(main())

    assert owner.said == [True, True]


def test_a_round_runs_within_no_task_of_the_loop_outside(owner: Owner) -> None:
    async def main() -> None:
        outside, task = asyncio.get_running_loop(), asyncio.current_task()
        owner.loop.call_soon(lambda: owner.said.append(asyncio.current_task(outside)))
        owner.loop.run_round(0.0)
        owner.said.append(asyncio.current_task() is task)

    asyncio.run(main())

    assert owner.said == [None, True]


def test_a_generator_that_is_left_in_the_middle_ends_in_a_round(owner: Owner) -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            owner.said.append(f"ended on this loop: {asyncio.get_running_loop() is owner.loop}")

    async def main() -> None:
        async for _ in numbers():
            return

    async def outside() -> None:
        owner.starts(main())
        assert owner.rounds(0.0) == []
        await asyncio.sleep(0)
        assert owner.said == []
        assert owner.rounds(0.0, 0.0) == ["ended on this loop: True"]

    asyncio.run(outside())


def test_a_task_group_that_fails_cancels_its_tasks_in_the_same_order_in_each_run() -> None:
    def cancelled(spare: int) -> list[int]:
        owner, _others = Owner(), [asyncio.Event() for _ in range(spare)]

        async def wait(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                owner.said.append(number)

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(40):
                    tasks.create_task(wait(number))
                await asyncio.sleep(1.0)
                raise ValueError("failed")

        failed = owner.starts(main())
        said = owner.rounds(0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0)
        assert isinstance(failed.exception(), ExceptionGroup)
        return said

    orders = [cancelled(spare) for spare in range(3)]

    assert sorted(orders[0]) == [*range(40)]
    assert orders == 3 * [orders[0]]


def test_a_job_of_a_thread_is_the_owners(owner: Owner) -> None:
    async def main() -> None:
        owner.said.append(await asyncio.to_thread(lambda: "done"))

    owner.starts(main())
    assert owner.rounds(0.0, 1.0) == []
    ((job, result),) = owner.jobs
    owner.loop.call_soon(result.set_result, job())

    assert owner.rounds(2.0, 2.0, 2.0) == ["done"]


def test_an_executor_of_ones_own_is_refused(owner: Owner) -> None:
    with pytest.raises(ValueError, match="owner of the loop"):
        owner.loop.run_in_executor(object(), lambda: None)  # type: ignore[arg-type]


def test_the_owner_is_woken_by_work_from_outside_of_a_round_only(owner: Owner) -> None:
    owner.loop.call_soon(lambda: owner.loop.call_soon(lambda: None))
    assert owner.woken == 1
    owner.loop.run_round(0.0)
    assert owner.woken == 1
    assert owner.loop.is_ready
    assert owner.rounds(0.0) == []

    with owner.loop.entered(0.0):
        owner.loop.call_later(5.0, lambda: None)
    assert owner.woken == 2
    with owner.loop.entered(0.0):
        owner.loop.call_later(9.0, lambda: None)
    assert owner.woken == 2, "an earlier timer is due first"
    with owner.loop.entered(0.0):
        owner.loop.call_soon(lambda: None)
    assert owner.woken == 3


def test_an_error_of_a_callback_is_logged_and_ends_nothing(owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    owner.loop.call_soon(lambda: 1 // 0)
    owner.loop.call_soon(owner.said.append, "next")

    assert owner.rounds(0.0) == ["next"]
    assert "division" in capsys.readouterr().out
