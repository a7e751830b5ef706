"""The pictures of the documents: the page on the story, in light and in dark.

python -m tests.page.pictures            take them again
"""

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.page.scene import WHOLE
from tests.page.stage import Window, browsing, opened

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
COLOURS = ("light", "dark")
VIEWPORT = {"width": 1440, "height": 790}
MINUTES = 50
FRAMES_A_MINUTE = 120


def picture(colours: str) -> Path:
    """Return where a picture is kept."""
    return FOLDER / f"page-{colours}.png"


async def taken(browser: Any, colours: str) -> bytes:
    """Open the page, let most of an hour pass, point at a gang, and take the picture."""
    async with opened(browser, color_scheme=colours, viewport=VIEWPORT) as window:
        await window.shows("#waiting", "vision/train-llm")
        await _pass(window)
        await window.page.hover('[data-cell="gpu-a-2/3"] i')
        content: bytes = await window.page.screenshot()
        return content


async def _pass(window: Window) -> None:
    scene, chance = window.stage.scene, random.Random(7)
    now = dict(scene.tables["queues"])
    parents = {row[1] for row in now.values()}
    less = {name: 6 * WHOLE for name in now if name not in parents}
    for minute in range(MINUTES):
        scene.tick += FRAMES_A_MINUTE
        is_last = minute == MINUTES - 1
        steps = [(name, before + chance.choice((-2, -1, 1, 2)) * WHOLE) for name, before in less.items()]
        less = {name: 0 if is_last else max(0, after) for name, after in steps}
        for name, row in now.items():
            below = [name, *(child for child, of in now.items() if child and of[1] == name)]
            held = max(0, row[6] - sum(less.get(each, 0) for each in below))
            scene.put("queues", [*row[:6], held, *row[7:]])
        await window.tick()


async def main() -> None:
    """Take every picture again."""
    FOLDER.mkdir(exist_ok=True)
    async with browsing() as browser:
        for colours in COLOURS:
            picture(colours).write_bytes(await taken(browser, colours))
            print(f"{picture(colours).name}: {picture(colours).stat().st_size} bytes")


if __name__ == "__main__":
    asyncio.run(main())
