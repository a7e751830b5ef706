"""A share of the scenarios of `python -m tests.oracle check`, and that a changed decision shows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.model.podgroup import PodGroup
from app.scheduling.placement import score
from app.scheduling.preemption import victims
from app.scheduling.preemption.victims import LastTurn
from app.settings import PlacementStrategy
from tests.oracle.__main__ import compare
from tests.oracle.kept import KEPT, kept
from tests.oracle.running import heard
from tests.oracle.scenarios import FAMILIES, names

pytestmark = pytest.mark.slow

REPLAYED = ["writes-1", "restarts-2", "replicas-2", "sharing-faults-3", "reclaim-3"]
"""They have refused and unknown writes, restarts, changes of the lease, shared GPUs and evictions."""

SHARE = [*(name for family in FAMILIES if (name := f"{family}-2") not in REPLAYED), "demo-7"]

PLANTED = "quiet-1"

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("name", SHARE)
def test_a_scenario_says_what_is_kept(name: str) -> None:
    assert heard(name) == kept()[name], "if this is meant: python -m tests.oracle record, and say so in the commit"


@pytest.mark.parametrize("name", REPLAYED)
def test_a_recorded_scenario_says_what_is_kept_and_so_does_its_replay(name: str, tmp_path: Path) -> None:
    assert heard(name, tmp_path / name) == kept()[name]
    assert compare(tmp_path) == 0


def test_every_scenario_is_kept_in_a_small_file() -> None:
    assert sorted(kept()) == sorted(names())
    assert len(names()) >= 60
    assert KEPT.stat().st_size < 100_000


def emptiest_node(patch: pytest.MonkeyPatch) -> None:
    scarcity_of = score.scarcity_of
    patch.setattr(score, "scarcity_of", lambda free, _: scarcity_of(free, PlacementStrategy.SPREAD))
    scarcity = score.scarcity
    patch.setattr(score, "scarcity", lambda free, _: scarcity(free, PlacementStrategy.SPREAD))


def turned_victims(patch: pytest.MonkeyPatch) -> None:
    last_turn = victims.last_turn

    def turned(group: PodGroup) -> LastTurn:
        priority, elastic, created_at, leaving, name, namespace = last_turn(group)
        return -priority, -elastic, -created_at, leaving, name, namespace

    patch.setattr(victims, "last_turn", turned)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    heard(PLANTED, folder / PLANTED)
    return folder


@pytest.mark.parametrize("plant", [emptiest_node, turned_victims])
def test_a_changed_decision_changes_the_digest_and_differs_first_in_a_command_or_an_answer(
    plant: Plant, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch)

    assert heard(PLANTED) != kept()[PLANTED]
    assert compare(recorded) == 1
    told = capsys.readouterr().out
    assert f"{PLANTED}: " in told
    assert "1 scenarios differ" in told
    assert '["c",' in told or '["a",' in told
