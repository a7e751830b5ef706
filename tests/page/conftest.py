"""Chromium for the tests of the page. Without it they are skipped, and say what is missing."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from tests.page.stage import CHROMIUM, Window, browsing, opened

Opens = Callable[..., AbstractAsyncContextManager[Window]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    """One chromium for all tests."""
    pytest.importorskip("playwright.async_api", reason="playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    async with browsing() as running:
        yield running


@pytest.fixture
def opens(browser: Any) -> Opens:
    """Open the page on a scene; at the end nobody else was asked for anything, and the console is silent."""
    return partial(opened, browser)
