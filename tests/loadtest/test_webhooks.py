import pytest

from loadtest.latencies import Beside, rows
from loadtest.target import Usage
from loadtest.webhooks import Measured, Phase, is_good, phases

UNUSED = Usage(cpu_s=0.0, resident_mb=0.0, calls=0, plans=0, planning_s=0.0)


def measured(*faults: str, requests: int = 1, ended_well: bool = True) -> Measured:
    told = {"bind": faults} if faults else {}
    made = rows({"bind": [1.0] * requests}, told, over_s=1.0)
    return Measured(phase=Phase(names=500), rows=made, faults=told, used=UNUSED, ended_well=ended_well)


def test_every_size_is_measured_alone_before_any_is_measured_beside_a_plan() -> None:
    assert [str(phase) for phase in phases([100, 500], [500])] == ["100 names", "500 names", "500 names beside a plan"]
    assert [phase.beside for phase in phases([100], [500])] == [Beside.NOTHING, Beside.PLAN]


def test_phase_without_a_wrong_answer_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert (is_good(measured()), capsys.readouterr().out) == (True, "")


def test_wrong_answers_are_reported_with_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    good = is_good(measured("taken", "gone"))

    assert (good, capsys.readouterr().out) == (False, "500 names: 2 of bind failed; the first: taken\n")


@pytest.mark.parametrize("ended", [measured(requests=0), measured(ended_well=False)])
def test_phase_that_ended_early_is_not_good(ended: Measured, capsys: pytest.CaptureFixture[str]) -> None:
    good = is_good(ended)

    assert (good, capsys.readouterr().out) == (False, "500 names: locust did not end as it should\n")


def test_usage_of_a_phase_is_the_difference_and_its_memory_that_at_the_end() -> None:
    before = Usage(cpu_s=1.0, resident_mb=100.0, calls=10, plans=1, planning_s=0.5)
    after = Usage(cpu_s=3.0, resident_mb=150.0, calls=30, plans=4, planning_s=2.0)

    assert after.since(before) == Usage(cpu_s=2.0, resident_mb=150.0, calls=20, plans=3, planning_s=1.5)
