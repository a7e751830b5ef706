"""The process that the load test starts, with a backlog in it."""

from pathlib import Path

import httpx
import pytest

from loadtest.target import Target, Usage
from tests.system.waiting import eventually

pytestmark = pytest.mark.slow

NODES = 16


def reasons(target: Target) -> list[str]:
    """Return why each PodGroup is pending, according to the service."""
    waiting = httpx.get(f"{target.operations}/api/v1/podgroups", trust_env=False).json()["items"]
    return [each["why"]["reason"] for each in waiting if each["why"]]


def wait_until_told(target: Target, expected: list[str]) -> None:
    eventually(lambda: reasons(target) == expected, within_s=30.0, what=f"waiting for {expected}")


def test_backlog_waits_until_it_may_start(tmp_path: Path) -> None:
    with Target(NODES, tmp_path / "log") as target:
        target.fill(3)
        wait_until_told(target, ["OverLimit"] * 3)
        target.stir()

        target.let_start()

        wait_until_told(target, [])


def test_emptied_backlog_can_be_filled_again(tmp_path: Path) -> None:
    with Target(NODES, tmp_path / "log") as target:
        for _ in range(2):
            target.fill(2)
            wait_until_told(target, ["OverLimit"] * 2)
            target.let_start()
            target.empty()
            wait_until_told(target, [])


def test_service_counts_what_it_has_used(tmp_path: Path) -> None:
    with Target(NODES, tmp_path / "log") as target:
        used = target.usage()

    assert used == Usage(
        cpu_s=used.cpu_s, resident_mb=used.resident_mb, calls=0, plans=used.plans, planning_s=used.planning_s
    )
    assert (used.cpu_s > 0, used.resident_mb > 0) == (True, True)


def test_service_that_does_not_start_leaves_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEBOARD_PROMISE_TTL_S", "never")

    with pytest.raises(RuntimeError, match="log says why"), Target(NODES, tmp_path / "log"):
        pass

    assert "LEEBOARD_PROMISE_TTL_S" in (tmp_path / "log").read_text()
