"""Whoever reads the page: with the keyboard, a screen reader, on paper, on a telephone, in high contrast."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.page.conftest import Opens
from tests.page.scene import Scene, device, queue, share, waiting, why
from tests.page.stage import Stage, Window
from tests.page.story import story
from tests.page.vendoring import TESTS

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = TESTS / "axe-core" / "axe.min.js"
GRAVE = {"serious", "critical"}
HOSTILE = (
    '<img src=x onerror="document.title=1">',
    "\u202egnp.exe\u202c",
    "n" * 253,
    "مرحبا/بالعالم",
    "'\"`${1+1}</script><script>document.title=1</script>",
)


async def focuses(window: Window, name: str) -> None:
    """Wait until the focus is on what a screen reader names so, or what begins so."""
    named = "(at => at.getAttribute('aria-label') ?? at.innerText.trim().split('\\n')[0])(document.activeElement)"
    await window.becomes(f"{named}.startsWith({json.dumps(name)})")


async def drawn(window: Window, cell: str) -> list[str]:
    """Return the letters that are drawn in a cell."""
    drawn: list[str] = await window.page.locator(f'[data-cell="{cell}"] [data-tag]').evaluate_all(
        """all => all.map(each => getComputedStyle(each, "::after").content.split('"')[1])"""
    )
    return drawn


async def grave(window: Window) -> list[str]:
    """Return axe's serious findings."""
    # The page's policy forbids inline scripts, so the tool is evaluated and not added to the document.
    await window.page.evaluate(AXE.read_text())
    found: Any = await window.page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in GRAVE
    ]


async def test_the_keyboard_alone_reaches_every_region_and_opens_what_it_finds(opens: Opens) -> None:
    async with opens() as window:
        press = window.page.keyboard.press
        await window.shows("#waiting", "vision/train-llm")

        await press("g")
        await press("c")
        await focuses(window, "Cluster")
        await press("Tab")
        await focuses(window, "mig-1")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "End"):
            await press(key)
        await focuses(window, "GPU 7 of gpu-a-2; queue vision")
        assert await window.page.locator("[data-lit]").count() == 16
        await press("Enter")
        await window.shows("main h2", "vision/train-vit-a-2-7")
        await press("Escape")
        await window.shows("main", "Waiting")

        await press("g")
        await press("q")
        await focuses(window, "Queues")
        await press("g")
        await press("w")
        await focuses(window, "Waiting")
        await press("j")
        await focuses(window, "Position 1: more on vision/train-llm")
        await press("Enter")
        await window.shows(".more", "Members")
        await press("j")
        await press("j")
        await focuses(window, "Position 3: more on vision/notebook-2")
        await press("k")
        await press("/")
        await window.becomes("document.activeElement?.id === 'filter'")
        await window.page.keyboard.type("train")
        await window.becomes("document.querySelectorAll('tr.waits').length === 1")
        await press("Escape")
        await press("?")
        assert "next and previous row" in await window.text("dialog[open]")
        await press("Escape")
        assert await window.page.locator("dialog[open]").count() == 0
        window.complaints.clear()  # the pod that was opened is not known, and the browser reports the 404


async def test_the_cells_are_one_stop_of_the_tab_key(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#cluster", "64 GPUs")
        assert await window.page.locator(".blocks [tabindex='0']").count() == 1
        await window.page.click('[data-cell="gpu-b-1/3"]')
        assert await window.page.locator(".blocks [tabindex='0']").get_attribute("data-cell") == "gpu-b-1/3"
        await window.page.keyboard.press("Tab")
        await focuses(window, "queues below product")


async def test_letters_are_no_shortcuts_once_they_are_switched_off(opens: Opens) -> None:
    async with opens() as window:
        await window.page.keyboard.press("?")
        await window.page.get_by_label("Letters are shortcuts").uncheck()
        await window.page.get_by_role("button", name="Close").click()
        await window.page.keyboard.press("?")
        assert await window.page.locator("dialog[open]").count() == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "#/why/vision/train-llm", "#/queue/vision"])
async def test_axe_has_no_serious_finding(opens: Opens, colours: str, path: str) -> None:
    async with opens(path=path, color_scheme=colours) as window:
        await window.shows("main", "vision")
        if not path:
            await window.page.get_by_role("button", name="more on vision/train-llm").click()
            await window.shows(".more", "Decisions")
        assert await grave(window) == []


async def test_axe_has_no_serious_finding_where_a_token_is_asked_for_or_nothing_is_there(opens: Opens) -> None:
    async with opens(stage=Stage(story(), token="secret")) as window:
        await window.shows(".token", "Who are you?")
        assert await grave(window) == []
        window.complaints.clear()
    async with opens(Scene()) as window:
        await window.shows("#cluster", "No node")
        await window.page.keyboard.press("?")
        assert await grave(window) == []


async def test_a_change_is_read_out_in_one_sentence_until_that_is_switched_off(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#spoken", "10.25 GPUs free, 3 PodGroups waiting.")
        await window.page.keyboard.press("m")
        window.stage.scene.drop("waiting", "hidden")
        await window.tick()
        await window.becomes("document.getElementById('spoken').innerText === ''")


async def test_paper_has_the_header_every_region_the_time_and_the_address(opens: Opens, tmp_path: Path) -> None:
    async with opens(color_scheme="dark") as window:
        await window.shows("#waiting", "vision/train-llm")
        await window.page.emulate_media(media="print")

        seen = await window.text("body")
        for text in (
            "free 10.25",
            "gpu-a-1",
            "research",
            "vision/train-llm",
            f"{window.stage.url} at 2026-11-26T18:00:00Z",
        ):
            assert text in seen
        for hidden in ("#filter", ".pointed", "header button"):
            assert await window.page.locator(hidden).first.is_hidden()
        ground = await window.page.evaluate("getComputedStyle(document.querySelector('.slice.bound')).backgroundColor")
        assert ground == "rgb(255, 255, 255)"
        bar: Any = await window.page.evaluate(
            "(style => [style.printColorAdjust, style.backgroundColor !== style.borderColor])"
            "(getComputedStyle(document.querySelector('.queue-bar .held')))"
        )
        assert bar == ["exact", True]
        # A rack that is longer than a sheet goes on on the next one.
        whole = await window.page.evaluate("getComputedStyle(document.querySelector('.block.open')).breakInside")
        assert whole == "auto"
        await window.page.pdf(path=tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


async def test_forced_colours_leave_letters_borders_and_crosses(opens: Opens) -> None:
    async with opens(forced_colors="active") as window:
        await window.shows("#cluster", "64 GPUs")
        styles: Any = await window.page.evaluate(
            """['.gpu .reserved', '.gpu .leaving', '.gpu .bound'].map(each =>
                 (style => [style.borderTopStyle, style.color !== style.backgroundColor])(
                   getComputedStyle(document.querySelector(each))))"""
        )

        assert styles == [["dashed", True], ["dotted", True], ["solid", True]]
        assert await drawn(window, "gpu-a-4/7") == ["✕"]
        assert await drawn(window, "gpu-a-1/0") == ["V"]


@pytest.mark.parametrize("width", [360, 768, 1440, 3840])
async def test_the_page_is_no_wider_than_the_screen(opens: Opens, width: int) -> None:
    async with opens(viewport={"width": width, "height": 800}) as window:
        await window.shows("#waiting", "vision/train-llm")
        assert await window.page.evaluate("document.documentElement.scrollWidth") <= width
        await window.page.evaluate("location.hash = '#/why/vision/train-llm'")
        await window.shows("main", "Decisions")
        assert await window.page.evaluate("document.documentElement.scrollWidth") <= width


async def test_the_colours_follow_the_reader_and_are_remembered(opens: Opens) -> None:
    async with opens(color_scheme="light") as window:
        ground = "getComputedStyle(document.body).backgroundColor"
        assert await window.page.evaluate(ground) == "rgb(255, 255, 255)"
        await window.page.get_by_role("button", name="Colours: auto").click()
        await window.page.get_by_role("button", name="Colours: light").click()
        await window.page.reload()
        await window.shows("header", "dark")
        assert await window.page.evaluate(ground) == "rgb(20, 23, 28)"


@pytest.mark.parametrize("name", HOSTILE, ids=["html", "right-to-left", "long", "arabic", "script"])
async def test_a_hostile_name_is_shown_as_text_and_widens_nothing(opens: Opens, name: str) -> None:
    scene = Scene()
    scene.put("nodes", [name, name, 1, 0, name, "contested", "ok", name, "plugin"])
    scene.put("devices", device(name, 0, profile=name))
    scene.put("shares", share(f"{name}/0", f"x/{name}", name, group=name))
    scene.put("queues", queue(name, name), queue("child", name))
    scene.put("waiting", waiting(1, f"x/{name}", name, f"It waits for {name}."))
    scene.whys[f"x/{name}"] = why("x", name, why={"reason": name, "sentence": name, "details": {}}, queue=name)
    async with opens(scene, viewport={"width": 1000, "height": 800}) as window:
        await window.shows("#waiting tbody bdi", f"x/{name}")
        assert name in (await window.page.locator("#queues tbody .name").all_inner_texts())
        await window.page.click("td[data-cell]")
        assert name in await window.page.locator("#pointed").inner_text()
        assert await window.page.evaluate("document.documentElement.scrollWidth") <= 1000
        await window.page.click("#waiting tbody a")
        await window.shows("main h2", f"x/{name}")
        assert await window.page.locator("img, main script").count() == 0
        assert re.search("1$", await window.page.title()) is None
