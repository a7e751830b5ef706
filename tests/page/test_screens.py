"""Every screen answers its question in text."""

import re

import pytest

from app.view.sight import HIDDEN
from tests.page.conftest import Opens
from tests.page.scene import Scene, large, queue, share
from tests.page.stage import Stage, Window
from tests.page.story import LANGUAGE, NOTEBOOK, PREEMPTED, SENTENCE, story

NOT_KNOWN = "\N{EN DASH}"
"""What is shown where nothing was measured. It is never 0."""

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def cell(window: Window, at: str) -> str:
    """Return what a cell tells a screen reader."""
    return str(await window.page.locator(f'[data-cell="{at}"]').get_attribute("aria-label"))


async def row_of(window: Window, queue: str) -> str:
    return await window.text(f'[data-row="queue {queue}"]')


async def test_the_header_says_what_is_free_what_fits_and_how_old_the_picture_is(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("header", "10.25")
        figures = await window.page.locator(".figure").all_inner_texts()
        status = await window.text(".status")

        assert [" ".join(each.split()) for each in figures] == [
            "free 10.25",
            "held 39.05",
            "reserved 4",
            "unhealthy 1",
            "not managed 2",
            "of GPUs 64",
            "PodGroups wait 3",
        ]
        assert await window.text(".fits") == (
            "Largest gang that fits now: 2 pods of 4 GPUs or 5 pods of 2 GPUs or 10 pods of 1 GPU"
        )
        assert re.match(r"live, heard \d+s ago; plan of 17:59:58, 12 ms server time 18:0", status)


async def test_a_cell_says_whose_the_gpu_is_and_what_is_wrong_with_it(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#cluster", "64 GPUs on 9 nodes")

        assert await cell(window, "gpu-a-1/0") == (
            "GPU 0 of gpu-a-1; queue vision, vision/train-vit-a-1-0; NVLink clique 0"
        )
        assert await cell(window, "gpu-a-3/4") == (
            "GPU 4 of gpu-a-3; reserved, queue language, language/llm-a-3-4; NVLink clique 1"
        )
        assert await cell(window, "gpu-a-4/3") == (
            "GPU 3 of gpu-a-4; queue serving, serving/asr-3-0 0.5 of it; queue serving, serving/asr-3-1 0.25 of it;"
            " 0.25 free; NVLink clique 0"
        )
        assert await cell(window, "gpu-a-4/7") == "GPU 7 of gpu-a-4; unhealthy; free; NVLink clique 1"
        assert await cell(window, "gpu-b-3/2") == ("GPU 2 of gpu-b-3; free; but the node is cordoned; NVLink clique 0")
        assert await cell(window, "mig-1/2") == (
            "GPU 2 of mig-1; MIG 1g.5gb; queue language, a pod in a namespace that you may not see"
        )
        assert await window.text('[data-cell="node gpu-b-3"]') == "gpu-b-3 cordoned agent stale"
        assert "24 GPUs: 14.3 held, 2 not managed, 0 free, 7.7 blocked" in await window.text("#cluster")


async def test_a_look_at_one_gpu_lights_its_gang_and_names_its_pods(opens: Opens) -> None:
    async with opens() as window:
        await window.page.hover('[data-cell="gpu-a-4/0"] i')
        lit = await window.page.eval_on_selector_all("[data-lit]", "all => all.map(each => each.dataset.gang)")

        assert lit == ["language/bert"] * 6
        assert "language/bert-a-4-0, gang bert, queue language, since 15m" in await window.text("#pointed")
        assert "80 GiB, 3 GiB in use" in await window.text("#pointed")
        await window.page.hover('[data-cell="old-1/0"]')
        assert f"{NOT_KNOWN}, memory in use not measured, health not known (no agent)" in await window.text("#pointed")


async def test_a_cell_is_drawn_again_when_its_gpu_changes(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#cluster", "32 GPUs: 22.75 held")
        window.stage.scene.put("shares", share("gpu-a-4/4", "vision/new", "vision"))
        window.stage.scene.drop("shares", "gpu-a-1/0 vision/train-vit-a-1-0")
        await window.tick()

        assert "vision/new" in await cell(window, "gpu-a-4/4")
        assert await cell(window, "gpu-a-1/0") == "GPU 0 of gpu-a-1; free; NVLink clique 0"
        assert "32 GPUs: 22.75 held" in await window.text("#cluster")


async def test_a_large_cluster_is_shown_as_bars_until_a_rack_is_opened(opens: Opens) -> None:
    async with opens(large()) as window:
        await window.shows("#cluster", "More than 4,000 GPUs")
        assert await window.page.locator("[data-cell]").count() == 0
        await window.becomes("document.querySelectorAll('.block').length === 40")

        for number in range(40):
            await window.page.locator(".block h3 button").nth(number).click()

        # 25 nodes of 8 GPUs a rack; what was opened first has closed.
        cells = await window.page.locator("td[data-cell]").count()
        assert 3800 <= cells <= 4000
        assert await window.page.locator(".block.open").last.inner_text() != ""


async def test_the_tree_of_queues_shows_what_each_holds_beside_its_share(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#queues", "research")
        names = await window.page.locator("#queues tbody th .name").all_inner_texts()

        assert names == ["product", "serving", "research", "language", "vision"]
        assert await row_of(window, "language") == "L language , level 2, below research 13 16 16 24 32 1 , 3 pods"
        none = NOT_KNOWN
        assert await row_of(window, "") == f"{none} pods without a queue , level 1 2 {none} {none} 2 {none} 0 , 0 pods"
        bar = window.page.locator('[data-row="queue vision"] .queue-bar')
        assert await bar.get_attribute("aria-label") == ("holds 26, deserves 24, fair share 28, asks for 42, no limit")
        await window.page.get_by_role("button", name="queues below research").click()
        assert "vision" not in await window.text("#queues tbody")
        assert "it was opened at 18:00:00" in await window.text("#queues")


async def test_what_waits_is_listed_in_the_order_of_the_plan_each_with_one_sentence(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#waiting", "vision/train-llm")
        rows = [" ".join(each.split()) for each in await window.page.locator("tr.waits").all_inner_texts()]

        assert rows == [
            f"▸ 1 vision/train-llm V vision 16 GPUs in 16 pods (at least 8) {SENTENCE} 14m",
            f"2 in another namespace L language 3 GPUs in 3 pods {LANGUAGE} 14m",
            f"▸ 3 vision/notebook-2 V vision 0.5 GPU in 1 pod {NOTEBOOK} 14m",
        ]
        await window.page.fill("#filter", "notebook")
        assert await window.page.locator("tr.waits").count() == 1
        await window.page.fill("#filter", "<b>nobody</b>")
        assert "Nothing that waits matches “<b>nobody</b>”." in await window.text("#waiting .empty")


async def test_a_filter_is_part_of_the_address_so_that_it_can_be_linked_and_the_way_back_leads_out_of_it(
    opens: Opens,
) -> None:
    async with opens() as window:

        async def shown(hash_: str, *names: str) -> None:
            await window.becomes(f"location.hash === '{hash_}'")
            await window.becomes(f"document.querySelectorAll('tr.waits').length === {len(names)}")
            for at, name in enumerate(names):
                assert name in await window.page.locator("tr.waits").nth(at).inner_text()

        await window.shows("#waiting", "vision/train-llm")
        await window.page.locator("#filter").press_sequentially("train llm")
        await shown("#/?filter=train+llm", "vision/train-llm")
        await window.page.go_back()
        await shown("", "vision/train-llm", "another namespace", "vision/notebook-2")
        await window.page.go_forward()
        await shown("#/?filter=train+llm", "vision/train-llm")
        await window.page.locator("tr.waits a").click()
        await window.becomes("location.hash.startsWith('#/why/')")
        await window.page.keyboard.press("Escape")
        await shown("#/?filter=train+llm", "vision/train-llm")
        await window.page.locator("h1").click()
        await window.page.keyboard.press("g")
        await window.page.keyboard.press("w")
        await window.becomes("location.hash === '#/waiting'")
    async with opens(path="#/waiting?filter=train") as window:
        await window.shows("tr.waits", "vision/train-llm")
        assert await window.page.locator("#filter").input_value() == "train"


async def test_a_row_opens_to_members_victims_and_decisions(opens: Opens) -> None:
    async with opens() as window:
        await window.page.get_by_role("button", name="more on vision/train-llm").click()
        await window.shows(".more", "Victims: pods that it waits for")
        seen = await window.text(".more")

        assert "language/bert-1 on gpu-a-4, evicted 10m ago" in seen
        assert "train-llm-0 Held on gpu-a-4" in seen
        assert f"17:49:50 Evicted (preempt) {PREEMPTED} For vision/train-llm." in seen
        assert "16 Held; at least 8 start together" in seen


async def test_rows_stand_still_under_the_pointer_until_r_is_pressed(opens: Opens) -> None:
    async with opens() as window:
        await window.page.hover('tr[data-row="hidden"]')
        scene = window.stage.scene
        scene.drop("waiting", "vision/train-llm")
        for position, row in enumerate(list(scene.tables["waiting"].values()), start=1):
            scene.put("waiting", [row[0], position, *row[2:]])
        await window.tick()

        assert "1 vision/train-llm" in await window.text("tr.waits")
        assert await window.text(".chip") == "3 changes, press r"
        await window.page.keyboard.press("r")
        await window.shows("tr.waits", "in another namespace")
        assert await window.page.locator(".chip").is_hidden()


async def test_podgroups_behind_those_that_are_sent_are_counted(opens: Opens) -> None:
    scene = story()
    scene.scalars = {"leftOut": 997}
    scene.put("queues", queue("serving", "product", waiting=5))
    async with opens(scene) as window:
        await window.shows("#waiting h2", "1000 PodGroups, the first 3 in the order of the plan")
        assert "PodGroups wait 1000" in await window.text("header")
        await window.shows("#spoken", "1000 PodGroups waiting")
        await window.page.fill("#filter", "asr")
        await window.shows("#waiting .empty", "None of the first 3 PodGroups that wait matches")
        await window.page.evaluate("location.hash = '#/queue/serving'")
        await window.shows("main", "None of its PodGroups is among the first 3 PodGroups that wait.")
        await window.page.evaluate("location.hash = '#/queue/product'")
        await window.shows("main", "What waits in it Nothing.")


async def test_rows_follow_again_after_a_list_under_the_pointer_has_gone(opens: Opens) -> None:
    async with opens() as window:
        scene = window.stage.scene
        rows = list(scene.tables["waiting"].values())
        await window.page.click("tr.waits a")
        await window.shows("main", "Decisions newest first")
        await window.page.mouse.move(0, 0)
        await window.page.keyboard.press("Escape")
        await window.shows("tr.waits", "vision/train-llm")
        scene.drop("waiting", "vision/train-llm")
        await window.tick()
        await window.shows("tr.waits", "in another namespace")

        await window.page.hover('tr[data-row="hidden"]')
        scene.drop("waiting", *list(scene.tables["waiting"]))
        await window.tick()
        await window.page.keyboard.press("r")
        await window.shows("#waiting .empty", "Nothing waits")
        scene.put("waiting", *rows)
        await window.tick()
        await window.shows("tr.waits", "vision/train-llm")


async def test_a_pod_has_a_page_with_its_history_and_a_queue_one_with_its_holders(opens: Opens) -> None:
    async with opens(path="#/why/vision/train-llm") as window:
        await window.shows("main", "Decisions newest first")
        assert await window.page.title() == "vision/train-llm · Leeboard"
        assert "17:20:00 Refused (GangDoesNotFit)" in await window.text("main")

        await window.page.click('main a[href="#/queue/vision"]')
        await window.shows("main", "Queue vision")
        assert "vision/train-vit: 16 GPUs, for 15m" in await window.text("main")
        assert f"vision/train-llm, 16 GPUs in 16 pods (at least 8): {SENTENCE}" in await window.text("main")


async def test_a_queue_is_plotted_from_what_the_page_has_seen(opens: Opens) -> None:
    async with opens(path="#/queue/vision") as window:
        await window.shows("main", "The plot begins with the second point")
        window.stage.scene.tick += 30
        await window.tick()

        await window.page.wait_for_selector(".plot canvas")
        assert await window.page.locator(".plot .u-legend").inner_text() != ""


async def test_an_unknown_name_and_a_mistyped_hash_say_what_is_wrong(opens: Opens) -> None:
    async with opens(path="#/why/vision/gone") as window:
        await window.shows("main", "no pod and no PodGroup vision/gone is known")
        await window.page.evaluate("location.hash = '#/why/%E0%A4%A/x'")
        await window.shows("main", "Cluster")
        # The browser itself reports the 404.
        window.complaints.clear()


async def test_an_empty_cluster_says_how_to_begin(opens: Opens) -> None:
    async with opens(Scene()) as window:
        await window.shows("#cluster", "No node with GPUs is known.")
        assert "nvidia.com/gpu" in (await window.text("#cluster .empty")).replace("\\", "")
        assert "There is no queue." in await window.text("#queues .empty")
        assert "Nothing waits" in await window.text("#waiting .empty")
        assert await window.text(".fits") == "Largest gang that fits now: none"


async def test_hidden_names_are_no_reason_why_there_is_no_queue(opens: Opens) -> None:
    scene = Scene(scalars={"incomplete": HIDDEN})
    async with opens(scene) as window:
        await window.shows("header .note", HIDDEN)
        said = await window.text("#queues .empty")
        assert "otherwise there is no queue. A queue says how many GPUs a team deserves" in said


async def test_a_cluster_without_agents_says_what_is_not_measured(opens: Opens) -> None:
    scene = story()
    for row in list(scene.tables["nodes"].values()):
        scene.put("nodes", [*row[:6], "none", *row[7:]])
    async with opens(scene) as window:
        await window.shows("#cluster .note", "No agent reports: devices are anonymous")


async def test_what_a_reader_may_not_see_and_a_standby_are_named(opens: Opens) -> None:
    stage = Stage(story())
    stage.scene.scalars = {"incomplete": "You may not list queues.", "active": False}
    stage.scene.tables["queues"].clear()
    async with opens(stage=stage) as window:
        await window.shows("header .note", "You may not list queues.")
        assert "this replica does not decide" in await window.text(".status")
        assert "No queue is shown to you. If queues are hidden, the line at the top" in await window.text(
            "#queues .empty"
        )
        # The names of queues are known from what they hold.
        assert await window.page.locator('[data-cell="gpu-a-1/0"] i').get_attribute("data-tag") == "V"
