"""How large the page is, and what 1,000 nodes with 8,000 GPUs cost it. Only sizes and counts are judged, no times."""

import gzip
import random
import re
from typing import Any

import orjson
import pytest

from app.view.page import MEDIA_TYPES
from tests.page.conftest import Opens
from tests.page.scene import busy_tick, large
from tests.page.vendoring import PAGE

SCRIPTS_AND_STYLES_BYTES = 60 * 1024
STATE_BYTES = 150 * 1024
TICK_BYTES = 5000
LAZY = "uplot"
STATIC = PAGE.parent
TICKS = 20
LONG_MS = 50


def compressed(content: bytes) -> int:
    return len(gzip.compress(content, mtime=0))


def test_scripts_and_styles_are_within_the_budget() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".mjs", ".css"} and LAZY not in path.parts]

    assert sum(compressed(path.read_bytes()) for path in files) <= SCRIPTS_AND_STYLES_BYTES


def test_every_module_is_asked_for_at_once_by_the_first_answer() -> None:
    index = (STATIC / "index.html").read_text()
    named = set(re.findall(r'(?:href|src)="static/([^"]+\.m?js)"', index))

    assert named == {str(path.relative_to(STATIC)) for path in STATIC.rglob("*.*js") if LAZY not in path.parts}


def test_every_import_is_relative_and_has_a_file() -> None:
    for path in STATIC.rglob("*.*js"):
        for name in re.findall(r'(?:from|import)\s*"([^"]+)"', path.read_text()):
            assert name.startswith("."), f"{path.name} imports {name}"
            assert (path.parent / name).is_file()


def test_every_file_that_is_served_is_named_by_another_one() -> None:
    served = [path for path in STATIC.rglob("*.*") if path.suffix[1:] in MEDIA_TYPES and path.name != "index.html"]
    texts = "".join(path.read_text() for path in STATIC.rglob("*.*") if path.suffix in {".js", ".html", ".mjs"})

    assert [path.name for path in served if path.name not in texts] == []


@pytest.mark.asyncio(loop_scope="session")
async def test_ticks_of_a_large_cluster_touch_only_what_they_name(
    opens: Opens, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scene, chance = large(), random.Random(1)
    state = orjson.dumps(scene.state())
    async with opens(scene) as window:
        await window.shows("#cluster", "8000 GPUs on 1000 nodes")
        await window.page.locator(".block h3 button").first.click()
        painted: Any = await window.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        await window.page.evaluate(
            """(() => {
                 window.long = [];
                 new PerformanceObserver(list => window.long.push(...list.getEntries().map(each => each.duration)))
                   .observe({type: "longtask"});
                 window.changed = 0;
                 new MutationObserver(all => { window.changed += all.length; })
                   .observe(document.getElementById("cluster"), {subtree: true, childList: true, attributes: true});
               })()"""
        )
        sizes = []
        for _ in range(TICKS):
            delta = busy_tick(scene, chance)
            sizes.append(compressed(orjson.dumps(delta)))
            await window.page.evaluate("performance.clearMarks('drawn')")
            window.stage.tell(delta)
            await window.drawn()
        long: list[float] = await window.page.evaluate("window.long")
        changed: int = await window.page.evaluate("window.changed")
        nodes: int = await window.page.evaluate("document.querySelectorAll('*').length")

    figures = {
        "first paint ms": round(painted),
        "state bytes gz": compressed(state),
        "tick bytes gz": max(sizes),
        "long tasks": [round(each) for each in long],
        "elements": nodes,
        "changes of the cluster's elements": changed,
    }
    record_property("figures", figures)
    with capsys.disabled():
        print(f"\n{TICKS} ticks: {figures}")
    assert compressed(state) <= STATE_BYTES
    assert max(sizes) <= TICK_BYTES
    # Sixty GPUs change a tick; one rack of forty is open, and of the others a bar and a line change.
    assert changed < TICKS * 600
    assert nodes < 12_000


@pytest.mark.asyncio(loop_scope="session")
async def test_a_rack_is_drawn_a_part_a_frame_so_that_no_task_is_long(opens: Opens) -> None:
    async with opens(large(racks=16)) as window:
        await window.shows("#waiting", "team-1/waits-1")
        await window.page.evaluate(
            """(() => {
                 window.drawn = [];
                 const rows = all => all.flatMap(({addedNodes}) => [...addedNodes])
                   .flatMap(each => each.querySelectorAll ? [each, ...each.querySelectorAll("tr.node")] : [])
                   .filter(each => each.matches("tr.node"));
                 new MutationObserver(all => window.drawn.push(rows(all).length))
                   .observe(document.getElementById("cluster"), {subtree: true, childList: true});
               })()"""
        )
        await window.page.locator(".block h3 button").first.click()
        await window.becomes("document.querySelectorAll('tr.node').length >= 62")
        drawn: list[int] = await window.page.evaluate("window.drawn")

    assert sum(drawn) >= 62
    assert max(drawn) <= 30
