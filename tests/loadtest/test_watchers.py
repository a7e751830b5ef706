import json
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.ours import watched
from loadtest.report import Report
from loadtest.results import Watched
from loadtest.sheets import to_markdown
from loadtest.viewer_crowd import TEAMS, teams_of
from loadtest.watchers import Watchers, seen_between
from tests.loadtest.made_up import figures, report, run

SEEN = Watched(
    probes=38, filter_p50_ms=1.5, filter_p99_ms=12.0, reads_per_s=49.0, refused_reads=2, deltas_per_s=180.0, view_mib=95
)


def probe(at: float, ms: float, *, reads: int = 0, refused: int = 0, deltas: int = 0) -> str:
    return json.dumps({"at": at, "ms": ms, "reads": reads, "refused": refused, "deltas": deltas})


def test_each_form_of_leeboard_runs_without_watchers_and_with_them() -> None:
    names = [one.name for one in watched(Watchers(viewers=100, readers=50))]

    assert len(names) == len(set(names)) == 6
    assert names[:2] == [
        "Leeboard, extender-only, 0 viewers, 0 readers",
        "Leeboard, extender-only, 100 viewers, 50 readers",
    ]


def test_watchers_can_be_chosen_by_name_and_peers_take_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--viewers", "3", "--contender", "volcano"])

    assert "Leeboard, held, 0 viewers, 0 readers, Leeboard, held, 3 viewers, 0 readers." in " ".join(
        capsys.readouterr().err.split()
    )


def test_only_what_was_seen_in_the_period_counts(tmp_path: Path) -> None:
    log = tmp_path / "watchers.log"
    lines = [
        probe(9.0, 500.0),
        *(
            probe(10.0 + number, number + 1.0, reads=50 * number, refused=number, deltas=200 * number)
            for number in range(5)
        ),
        probe(15.0, 900.0, reads=10_000),
        '{"at": 14.5, "ms',
    ]
    log.write_text("there\n" + "\n".join(lines))

    seen = seen_between(log, 10.0, 14.0)

    assert (seen.probes, seen.filter_p50_ms, seen.filter_p99_ms) == (5, 3.0, 5.0)
    assert (seen.reads_per_s, seen.refused_reads, seen.deltas_per_s) == (50.0, 4, 200.0)
    with pytest.raises(AssertionError, match="The watchers did not watch"):
        seen_between(log, 16.0, 20.0)


def test_viewers_have_different_rights() -> None:
    assert len({teams_of(f"user-{number}") for number in range(100)}) == 100
    assert all(0 < len(teams_of(f"user-{number}")) < TEAMS for number in range(100))


def test_report_shows_what_watchers_cost() -> None:
    made = report(run("Leeboard, 0 viewers, 0 readers"), run("Leeboard, 9 viewers, 0 readers", watched=SEEN))

    (line,) = [
        one
        for one in to_markdown(made).partition("## with and without watchers")[2].splitlines()
        if "9 viewers" in one and "12.00" in one
    ]

    assert [one.strip() for one in line.strip("|").split("|")][1:] == [
        "300", "80", "38", "1.50", "12.00", "49", "2", "180", "95",
    ]  # fmt: skip
    assert Report.from_json(made.to_json()).runs[1].figures == figures(watched=SEEN)
