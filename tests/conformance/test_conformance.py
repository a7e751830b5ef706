"""The runner itself: the sample passes, a wrong answer fails, and nothing that was not run counts as passed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import main

SAMPLE = Path(__file__).parent / "data"


def altered(folder: Path, change: dict[str, Any]) -> str:
    """Write the queue order sample with its first case changed."""
    content = json.loads((SAMPLE / "plugin_queue_order.json").read_text())
    content["cases"] = [content["cases"][0] | change]
    file = folder / "altered.json"
    file.write_text(json.dumps(content))
    return str(file)


def test_the_sample_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([str(SAMPLE)])

    printed = capsys.readouterr().out.splitlines()
    assert code == 0
    assert "plugin_job_order 8/11 (3 not run)" in printed
    assert printed[-2:] == ["3 not run", "54 passed, 0 failed"]


def test_a_wrong_answer_fails_and_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([altered(tmp_path, {"id": "x", "expected": -1})])

    printed = capsys.readouterr().out.splitlines()
    assert code == 1
    assert printed == [
        "FAILED x: result: expected -1, got 1",
        "plugin_queue_order 0/1",
        "0 not run",
        "0 passed, 1 failed",
    ]


def test_a_case_that_breaks_us_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([altered(tmp_path, {"id": "x", "left": {}})])

    assert code == 1
    assert capsys.readouterr().out.startswith("FAILED x: KeyError(")


def test_a_suite_without_a_runner_is_counted_as_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "later.json"
    file.write_text(json.dumps({"schema": "kai-vectors/1", "suite": "later", "cases": [{"id": "later/0"}]}))

    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["later 0/1 (1 not run)", "1 not run", "0 passed, 0 failed"]


def test_results_are_written_as_json_without_an_expectation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([altered(tmp_path, {"id": "x", "expected": None}), "-o", "json"])

    assert code == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"id": "x", "result": 1}]
