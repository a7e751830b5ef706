"""The runner itself: the sample passes, a wrong answer fails, and nothing that was not run counts as passed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import main

SAMPLE = Path(__file__).parent / "data"
ANSWERS = ("expected", "observed", "kai_initial")


def altered(folder: Path, change: dict[str, Any]) -> str:
    """Write the queue order sample with its first case changed."""
    content = json.loads((SAMPLE / "plugin_queue_order.json").read_text())
    content["cases"] = [content["cases"][0] | change]
    file = folder / "altered.json"
    file.write_text(json.dumps(content))
    return str(file)


def with_expectation(folder: Path, identity: str, change: dict[str, Any]) -> str:
    """Write one scheduling case with what it expects changed."""
    suite = identity.split("/", maxsplit=1)[0]
    content = json.loads((SAMPLE / f"{suite}.json").read_text())
    case = next(case for case in content["cases"] if case["id"] == identity)
    case["expected"] = case["expected"] | change
    file = folder / f"{suite}.json"
    file.write_text(json.dumps(content | {"cases": [case]}))
    return str(file)


def stripped(value: Any) -> Any:
    """Return what is left of a vector file without any answer."""
    if isinstance(value, dict):
        kept = {key: stripped(each) for key, each in value.items() if key not in ANSWERS}
        return {key: None if key == "pop_expect" else each for key, each in kept.items()}
    return [stripped(each) for each in value] if isinstance(value, list) else value


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_sample_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([str(SAMPLE)])

    lines = printed(capsys)
    assert [line for line in lines if line.startswith("FAILED")] == []
    assert code == 0
    assert "action_allocate 7/7" in lines
    assert "integration_reclaim 2/2" in lines
    assert lines[-1].endswith(" passed, 0 failed")


def test_a_wrong_answer_fails_and_shows_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([altered(tmp_path, {"id": "x", "expected": -1})])

    assert code == 1
    assert printed(capsys) == [
        "FAILED x: result: expected -1, got 1",
        "plugin_queue_order 0/1",
        "0 not run",
        "0 passed, 1 failed",
    ]


def test_a_scheduling_case_fails_with_a_line_that_shows_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = "action_allocate/TestHandleMIGAllocation/4"
    jobs = {"pending_job-0": {"status": "Binding", "node": "node0"}}

    code = main([with_expectation(tmp_path, identity, {"jobs": jobs})])

    assert code == 1
    assert printed(capsys)[:2] == [
        f"FAILED {identity}: pending_job-0-0: expected Binding on node0, got Pending",
        "action_allocate 0/1",
    ]


def test_more_evictions_than_allowed_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    identity = "action_preempt/TestHandlePreempt/1"
    none = {"binds": 0, "evictions": 0, "pipelined": 9}

    code = main([with_expectation(tmp_path, identity, {"max_per_round": none})])

    assert code == 1
    assert "session 0: 1 evictions, at most 0 expected" in printed(capsys)[0]


def test_gpu_groups_are_compared_by_the_pods_that_share_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = "action_allocate/TestHandleFractionalGPUAllocation/11"
    jobs = {
        "pending_job0": {"status": "Pipelined", "node": "node0", "gpu_groups": ["another"]},
        "running_job0": {"status": "Running", "node": "node0", "gpu_groups": ["one"]},
    }

    code = main([with_expectation(tmp_path, identity, {"jobs": jobs})])

    assert code == 1
    assert "cannot be" in printed(capsys)[0]


def test_nodes_are_compared_by_their_whole_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    identity = "integration_deletion/TestDeletionIntegrationTest/3"
    nodes = {"node0": {"idle_gpus": 2, "releasing_gpus": 0}}

    code = main([with_expectation(tmp_path, identity, {"nodes": nodes})])

    assert code == 1
    assert "match 0: node0: expected 2 idle GPUs, got 1" in printed(capsys)[0]


def test_a_case_that_makes_leeboard_raise_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([altered(tmp_path, {"id": "x", "left": {}})])

    assert code == 1
    assert printed(capsys)[0].startswith("FAILED x: KeyError(")


def test_a_suite_without_a_runner_is_counted_as_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "later.json"
    file.write_text(json.dumps({"schema": "kai-vectors/1", "suite": "later", "cases": [{"id": "later/0"}]}))

    assert main([str(tmp_path)]) == 0
    assert printed(capsys) == ["later 0/1 (1 not run)", "1 not run", "0 passed, 0 failed"]


def test_the_option_only_runs_the_named_cases(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(SAMPLE), "--only", "action_preempt/TestHandlePreempt/1"])

    assert printed(capsys) == ["action_preempt 1/1", "0 not run", "1 passed, 0 failed"]


def test_results_are_written_as_json_without_an_expectation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([altered(tmp_path, {"id": "x", "expected": None}), "-o", "json"])

    assert code == 0
    assert [json.loads(line) for line in printed(capsys)] == [{"id": "x", "result": 1}]


def test_json_has_a_match_for_each_point_of_comparison_and_counts_for_each_session(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([str(SAMPLE), "-o", "json", "--only", "integration_reclaim/TestReclaimFractionalIntegrationTest/4"])

    outcome = json.loads(printed(capsys)[0])
    case = json.loads((SAMPLE / "integration_reclaim.json").read_text())["cases"][0]
    settled, after = case["rounds"]["until_match"], case["rounds"]["after_match"]
    assert (len(outcome["matches"]), len(outcome["rounds"])) == (1 + after, settled + after)
    assert set(outcome["rounds"][0]) == {"binds", "evictions", "pipelined"}
    seat = outcome["matches"][0]["tasks"]["running_job0-0"]
    assert seat == {"status": "Running", "node": "node0", "gpu_groups": []}


def test_the_computed_result_does_not_depend_on_the_expected_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in SAMPLE.glob("*.json"):
        (tmp_path / file.name).write_text(json.dumps(stripped(json.loads(file.read_text()))))

    main([str(SAMPLE), "-o", "json"])
    with_answers = printed(capsys)
    main([str(tmp_path), "-o", "json"])

    assert printed(capsys) == with_answers
