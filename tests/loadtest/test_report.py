from dataclasses import replace

import pytest

from loadtest.admission import STARTING, Creation, Others
from loadtest.ours import ALONE, EXTENDER_ONLY, HELD, LET_IN
from loadtest.report import Report
from loadtest.sheets import to_markdown
from tests.loadtest.made_up import MADE, SIDE_BY_SIDE, failed, report, run

CREATIONS = (
    Creation(what=f"{STARTING}: kube-scheduler's own, without Leeboard", pods_per_s=(200.0, 100.0, 300.0)),
    Creation(what=f"{STARTING}: managed", pods_per_s=(150.0,)),
)
OTHERS = (Others(when="before the release", pods_per_s=20.0, median_s=0.01, p99_s=0.02),)


def line(text: str, beginning: str) -> str:
    """Return the one line of a table with this prefix."""
    (found,) = [one for one in text.splitlines() if one.startswith(f"| {beginning} |")]
    return found


def test_report_shows_median_minimum_and_maximum_and_the_ratio_to_kube_scheduler_alone() -> None:
    text = to_markdown(report(*SIDE_BY_SIDE)).partition("## lone: what it costs")[0]

    assert line(text, ALONE) == (
        "| kube-scheduler alone | 400 (300-420) | 1.00 | 0.10 | 5.00 | 9.90 | 2.00 | 1.00 | 4.00 | 80 | 3 |"
    )
    assert line(text, EXTENDER_ONLY) == (
        "| Leeboard, extender-only | 240 | 0.60 | 0.10 | 5.00 | 9.90 | 2.00 | 1.00 | 4.00 | 80 | 1 |"
    )
    assert line(text, LET_IN) == (
        "| Leeboard, let in | 310 | 0.78 | 0.10 | 5.00 | 9.90 | 2.00 | 1.00 | 4.00 | 80 | 1 |"
    )


def test_report_shows_which_scheduler_failed_and_how_far_it_got() -> None:
    text = to_markdown(report(run(ALONE), failed("Volcano", "time was up after 300 s.", bound=1200)))

    assert "| Volcano | - | - | - | - | - | - | - | - | - | FAILED 1 of 1 |" in text
    assert "Volcano: 1,200 of 3,000 bound: time was up after 300 s." in text


def test_report_shows_budgets_that_are_reached_missed_and_not_measured() -> None:
    text = to_markdown(report(*SIDE_BY_SIDE))

    assert "| lone pods | >= 0.7 x kube-scheduler alone (goal 0.9) | 0.78 x (310/s against 400/s) | reached |" in text
    missed = "0.60 x (240/s against 400/s) | missed"
    assert f"| lone pods, extender-only | >= 0.7 x kube-scheduler alone (goal 0.9) | {missed} |" in text
    assert "| held pods | >= 0.45 x kube-scheduler alone | 0.40 x (160/s against 400/s) | missed |" in text
    assert "| held pods | >= 3 x KAI-Scheduler | - | not measured |" in text


def test_report_shows_costs_by_program_and_the_noise_of_the_machine() -> None:
    text = to_markdown(report(run(ALONE)))

    assert line(text.partition("## lone: what it costs")[2], ALONE) == (
        "| kube-scheduler alone | etcd 0.50, kube-apiserver 2.00, kube-scheduler 1.50, the bench 100.00 "
        "| kube-scheduler 2.00 | kube-scheduler 80.00 |"
    )
    assert "A fixed CPU loop took 15 (14-16) ms beside these runs." in text


def test_report_shows_the_backlog_beside_none_and_which_pods_made_room() -> None:
    made = report(
        run(HELD, 90, scenario="backlog", empty_pods_per_s=100.0), run(HELD, 8, scenario="reclaim", made=MADE)
    )
    text = to_markdown(made.with_removals(400.0, 300.0).with_removals(420.0, 320.0))

    assert "| Leeboard, held | 100 | 90 |" in text
    assert "| Leeboard, held | 800 | 280 | 3.00 | 10.00 | 4 | 1.50 |" in text
    assert (
        "as many at once, removed only by the bench: 410 (400-420) deleted or 310 (300-320) evicted a second." in text
    )


def test_report_shows_admission_beside_none() -> None:
    text = to_markdown(replace(report(), creations=CREATIONS, others=OTHERS))

    assert f"| {STARTING}: managed | 150 | 0.75 |" in text
    assert "| before the release | 20.0 | 0.010 | 0.020 |" in text


def test_report_names_version_and_flags_of_every_program() -> None:
    text = to_markdown(replace(report(run(ALONE)), flags={ALONE: {"kube-scheduler": ["--config=...", "--qps=5000"]}}))

    assert f"### {ALONE}\n\nversion of {ALONE}\n\n```text\nkube-scheduler --config=... --qps=5000\n```" in text
    assert "etcd --log-level=error" in text


def test_interrupted_report_says_so_at_its_top() -> None:
    text = to_markdown(replace(report(run(ALONE)), unfinished="Interrupted: this is what was done until then."))

    assert text.index("**Interrupted: this is what was done until then.**") < text.index("## Budgets")


@pytest.mark.parametrize("made", [report(*SIDE_BY_SIDE), report(failed("x", "no.")), report()])
def test_report_is_unchanged_after_json(made: Report) -> None:
    whole = replace(made, creations=CREATIONS, others=OTHERS).with_removals(400.0, 300.0)

    read = Report.from_json(whole.to_json())

    assert (read, to_markdown(read)) == (whole, to_markdown(whole))
