"""The bench of hostile clients attacks, and measures the effect on other clients; figures are the bench's own."""

from pathlib import Path

import pytest

from loadtest.attacks import ATTACKS, Port, attack
from loadtest.hostile import Outcome, outcome_of, settings_in
from loadtest.target import Target

pytestmark = pytest.mark.slow

NODES = 100
SECONDS = 1.0
CHOSEN = ("half-sent-posts to operations", "pipelined-probes to operations", "one-byte-chunks to admission")


def test_no_probe_and_no_question_fails_beside_hostile_clients(tmp_path: Path) -> None:
    with Target(NODES, tmp_path / "log", **settings_in(tmp_path)) as target:
        outcomes = [outcome_of(target, each, SECONDS) for each in ATTACKS if each.name in CHOSEN]

    assert [each.attack.name for each in outcomes] == list(CHOSEN)
    assert [(each.failed_probes, each.failed_filters) for each in outcomes] == [(0, 0)] * len(CHOSEN)
    assert all(each.probes and each.filters_ms for each in outcomes)


async def test_only_loopback_is_attacked() -> None:
    with pytest.raises(ValueError, match=r"is not a port of 127\.0\.0\.1"):
        await attack(ATTACKS[1], "http://192.0.2.1:80", 0.1)


def test_every_port_open_to_the_network_is_attacked() -> None:
    assert {each.port for each in ATTACKS} == {Port.NOWHERE, Port.OPERATIONS, Port.ADMISSION, Port.PROBES}


def outcome(port: Port, *took_ms: float, failed_probes: int = 0) -> Outcome:
    return Outcome(
        attack=next(each for each in ATTACKS if each.port is port),
        filters_ms=took_ms,
        failed_filters=0,
        probes=1,
        failed_probes=failed_probes,
        failed_beside=0,
        longest_hold_ms=1.0,
    )


def test_a_hundredth_of_all_questions_may_take_longer_than_p99() -> None:
    assert outcome(Port.OPERATIONS, *[1.0] * 99, 50.0).p99_ms == 1.0


def test_a_slow_filter_is_a_miss_beside_every_port_except_that_of_admission() -> None:
    slow = {port for port in Port if outcome(port, 50.0).is_missed}

    assert slow == {Port.NOWHERE, Port.OPERATIONS, Port.PROBES}
    assert outcome(Port.ADMISSION, 50.0, failed_probes=1).is_missed
