import sys
from pathlib import Path

import pytest

from loadtest.__main__ import INTERRUPTED, main
from loadtest.bench import Bench
from loadtest.contender import CannotError
from loadtest.ours import KubeScheduler
from loadtest.plot import MatplotlibMissingError, draw
from loadtest.report import Report
from tests.loadtest.made_up import report


def test_impossible_sizes_are_refused_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--nodes", "10", "--pods", "81"])

    assert "81 pods cannot run on 80 GPUs; give fewer pods or more nodes." in capsys.readouterr().err


def test_unknown_scheduler_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "none", "--contender", "yunikorn"])

    assert (
        "No scheduler has yunikorn in its name; there are: kube-scheduler alone, kube-scheduler alone, 5 % of the "
        "nodes, Leeboard, extender-only, Leeboard, let in, Leeboard, held." in " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--repeats", "0"), "'0' is no number from 1 on"),
        (("--nodes", "-5"), "'-5' is no number from 1 on"),
        (("--pods", "many"), "'many' is no number from 1 on"),
        (("--limit", "nan"), "'nan' is no time in seconds above 0"),
        (("--limit", "soon"), "'soon' is no time in seconds above 0"),
    ],
)
def test_impossible_numbers_are_refused(given: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "none", *given])

    assert said in capsys.readouterr().err


def test_interrupted_bench_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Bench) -> None:
        raise KeyboardInterrupt

    # No test can press Ctrl-C at the right moment of a real one.
    monkeypatch.setattr(Bench, "run", interrupted)

    assert main(["--peers", "none", "--out", str(tmp_path)]) == INTERRUPTED

    assert Report.from_json((tmp_path / "report.json").read_text()).unfinished.startswith("Interrupted")
    assert "**Interrupted" in (tmp_path / "report.md").read_text()


class Unbuilt(KubeScheduler):
    """A scheduler whose programs cannot be built."""

    name = "unbuilt"

    def build(self) -> None:
        raise CannotError("Its modules are not to be had.")


def test_scheduler_that_cannot_be_built_is_shown_as_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its real place is among the peers, which take minutes to build.
    monkeypatch.setattr("loadtest.__main__.ours", lambda: (Unbuilt(),))

    assert main(["--peers", "none", "--only", "lone", "--only", "gangs", "--out", str(tmp_path)]) == 0

    assert [(run.scenario, run.outcome) for run in Report.from_json((tmp_path / "report.json").read_text()).runs] == [
        ("lone", "0 of 3,000 bound: Its modules are not to be had."),
        ("gangs", "0 of 2,000 bound: Its modules are not to be had."),
    ]


def test_a_missing_matplotlib_gives_advice_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(MatplotlibMissingError, match="`make bench-cluster` installs it"):
        draw(report(), tmp_path / "report.png")
