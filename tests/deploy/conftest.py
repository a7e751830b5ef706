"""Helm is built once from its Go module; a run without the system tests has no Go and leaves out these too."""

import os

import pytest

from tests.system.controlplane import build


@pytest.fixture(scope="session", autouse=True)
def _helm() -> None:
    """Fail each test with one sentence when Helm cannot be built; never skip silently."""
    if os.environ.get("LEEBOARD_SYSTEM_TESTS") == "skip":
        pytest.skip("LEEBOARD_SYSTEM_TESTS=skip")
    try:
        build.helm()
    except build.ToolchainMissingError as missing:
        pytest.fail(str(missing), pytrace=False)
