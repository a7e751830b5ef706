"""A share of the seeds of `python -m tests.faults`, and that a run follows from its script alone."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.faults.generate import generate
from tests.faults.script import Operation, load
from tests.faults.shrinking import shrunk
from tests.faults.world import World

pytestmark = pytest.mark.slow

SEEDS = (*range(8), 329, 459, 593, 594, 783, 801, 808, 838, 958, 966)
FOLLOWED = (1, 8)
"""The seeds whose runs are repeated under another hash seed."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_invariant_is_broken_under_faults(seed: int) -> None:
    assert World(generate(seed)).run().violations == []


@pytest.mark.parametrize("seed", FOLLOWED)
def test_a_run_writes_the_same_under_every_hash_seed(seed: int) -> None:
    command = [sys.executable, "-m", "tests.faults", "--seed", str(seed)]
    told = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": number}, capture_output=True, check=False).stdout
        for number in ("1", "2")
    ]

    assert b"digest" in told[0]
    assert told[0] == told[1]


def test_a_script_survives_json() -> None:
    script = generate(3)

    assert load(script.dump()) == script


def test_a_failing_script_is_shrunk_to_the_operations_that_it_needs() -> None:
    script = replace(generate(5), quiet_at=25.0, end_at=30.0)
    wrong = Operation(at=20.0, do="node", args={"unknown": "argument"})

    small = shrunk(script.keep((*script.operations, wrong)), "error in the loop")

    assert small.operations == (wrong,)


def test_seeds_run_in_several_processes() -> None:
    command = [sys.executable, "-m", "tests.faults", "--first", "4", "--seeds", "2", "--workers", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("2 seeds, ")
