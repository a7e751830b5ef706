"""What Leeboard does, and in which order, follows from what it is told alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_with_other_hashes_and_addresses_write_the_same_in_the_same_order() -> None:
    first, second = (calls(hash_seed) for hash_seed in ("1", "2"))

    assert {verb for _, verb, *_ in map(str.split, first)} >= {"release", "bind", "evict", "nominate", "create_pod"}
    assert first == second


def calls(hash_seed: str) -> list[str]:
    """Return the calls of one scenario, in order."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    program = [sys.executable, "-m", "tests.control.calls_in_order"]
    return subprocess.run(
        program, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()
