"""The kept pictures are small, and can be taken again; `python -m tests.page.pictures` does so."""

from typing import Any

import pytest

from tests.page.pictures import COLOURS, picture, taken

MOST_BYTES = 200_000
SIZE = slice(16, 24)
"""Where a PNG keeps its width and height."""


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("colours", COLOURS)
async def test_a_picture_can_be_taken_again_and_is_small(browser: Any, colours: str) -> None:
    fresh, kept = await taken(browser, colours), picture(colours).read_bytes()

    assert fresh[SIZE] == kept[SIZE]
    assert max(len(fresh), len(kept)) < MOST_BYTES
