"""Runs these tests in virtual time."""

import asyncio
from collections.abc import Callable, Mapping

from tests.control.virtual import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}
