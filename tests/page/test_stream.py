"""The page and its server: who is asked, with which token, under which path, and what happens when it is gone."""

import pytest

from tests.page.conftest import Opens
from tests.page.scene import A100, Scene, device, share
from tests.page.stage import HOST, SERVICE_PROXY, Stage, staged
from tests.page.story import story

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_page_says_since_when_it_is_stale_and_goes_on_where_it_was_when_the_server_is_back(
    opens: Opens,
) -> None:
    stage = Stage(story())
    async with opens(stage=stage) as window:
        await window.shows(".status", "live")
        await window.tick()
        await window.page.evaluate("document.querySelector('#cluster').dataset.mark = 'same page'")
        seen = stage.scene.identity
        elsewhere = Stage(stage.scene, ring=stage.ring, port=stage.port)
        await stage.stop()
        await window.shows(".status", "STALE since 18:0")
        assert "10.25" in await window.text("header")
        stage.scene.put("shares", share("gpu-a-4/4", "vision/new", "vision"))
        elsewhere.tell(stage.scene.delta())
        async with staged(elsewhere):
            await window.shows(".status", "live")
            await window.shows("header", "9.25")
            assert elsewhere.resumed_after[-1] == seen
            assert await window.page.locator("[data-mark='same page']").count() == 1
        # The browser reports the connections that failed.
        window.complaints.clear()


async def test_a_server_that_has_begun_anew_sends_the_whole_state_again(opens: Opens) -> None:
    stage = Stage(story())
    async with opens(stage=stage) as window:
        await window.shows(".status", "live")
        other = story()
        other.epoch = "b00c"
        other.drop("nodes", "gpu-b-1")
        for index in range(8):
            other.drop("devices", f"gpu-b-1/{index}")
        other.drop("shares", "gpu-a-1/0 vision/train-vit-a-1-0")
        restarted = Stage(other, port=stage.port)
        await stage.stop()
        async with staged(restarted):
            await window.shows("#cluster h2", "56 GPUs on 8 nodes")
            assert await window.page.locator('[data-cell="gpu-b-1/0"]').count() == 0
            await window.shows("#cluster", "32 GPUs: 21.75 held")
            free = await window.page.locator('[data-cell="gpu-a-1/0"]').get_attribute("aria-label")
            assert free == "GPU 0 of gpu-a-1; free; NVLink clique 0"
            assert len(restarted.resumed_after) == 1
        window.complaints.clear()


async def test_colours_and_plots_take_the_queues_that_a_state_sends(opens: Opens) -> None:
    stage = Stage(story())
    async with opens(stage=stage) as window:
        await window.shows("#queues", "research")
        swatches = window.page.locator('[data-row="queue research"] .swatch, [data-row="queue vision"] .swatch')
        classes = await swatches.evaluate_all("all => all.map(each => each.className)")
        assert classes == ["swatch hue-1 shade-0", "swatch hue-1 shade-2"]
        later = story()
        later.epoch, later.tick = "b00c", 30
        await stage.stop()
        await window.shows(".status", "STALE")
        async with staged(Stage(later, port=stage.port)):
            await window.shows(".status", "live")
            spark = window.page.locator('[data-row="queue vision"] .spark')
            assert await spark.get_attribute("aria-label") == "held between 26 and 26 GPUs"
            assert await spark.locator("polyline").get_attribute("points") == "3600,1.0 3585,1.0"
        window.complaints.clear()


async def test_a_cluster_without_nodes_takes_the_place_of_one_with_a_node(opens: Opens) -> None:
    scene = Scene()
    scene.put("nodes", ["old-1", A100, 1, 1000, "", "ready", "ok", "", "plugin"])
    scene.put("devices", device("old-1", 0))
    stage = Stage(scene)
    async with opens(stage=stage) as window:
        await window.shows("#cluster h2", "1 GPU on 1 node")
        await window.shows("#spoken", "1 GPU free, ")
        await stage.stop()
        async with staged(Stage(Scene(epoch="b00c"), port=stage.port)):
            await window.shows("#cluster h2", "0 GPUs on 0 nodes")
            assert await window.page.locator(".block").count() == 0
        window.complaints.clear()


async def test_a_node_that_disappears_leaves_the_others_on_the_page(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("#cluster h2", "64 GPUs on 9 nodes")
        scene = window.stage.scene
        scene.drop("nodes", "gpu-b-1")
        for table in ("devices", "shares"):
            scene.drop(table, *(key for key in scene.tables[table] if key.startswith("gpu-b-1/")))
        # In the same rack a GPU is taken.
        scene.put("shares", share("gpu-b-2/7", "vision/new", "vision"))
        await window.tick()
        await window.shows("#cluster h2", "56 GPUs on 8 nodes")
        figures = " ".join(await window.page.locator("#cluster h3").all_inner_texts())
        assert "32 GPUs: 22.75 held" in figures
        assert "16 GPUs: " in figures
        assert window.stage.resumed_after == [""]


async def test_a_change_that_the_page_cannot_apply_is_named_and_leads_to_a_whole_state(opens: Opens) -> None:
    async with opens() as window:
        await window.shows(".status", "live")
        window.stage.tell(window.stage.scene.delta() | {"tables": {"nodes": {"set": 5}}})
        await window.shows(".status", "the page cannot read the answer")
        await window.page.click(".status button")
        await window.shows(".status", "live")
        assert window.stage.resumed_after == ["", ""]
        assert "not iterable" in " ".join(window.complaints)
        window.complaints.clear()


async def test_the_server_itself_may_say_that_its_picture_is_old(opens: Opens) -> None:
    async with opens() as window:
        await window.shows(".status", "live")
        sentence = "The deciding replica has not answered since then."
        await window.tick(stale={"since": "2026-11-26T17:59:00Z", "sentence": sentence})
        await window.shows(".status", f"STALE since 17:59:00 {sentence}")
        await window.tick(stale=None)
        await window.shows(".status", "live")


async def test_a_token_is_asked_for_kept_for_the_tab_and_sent_as_bearer(opens: Opens) -> None:
    async with opens(stage=Stage(story(), token="right")) as window:
        await window.shows(".token", "send a token of the cluster")
        await window.page.fill("#token", "wrong")
        await window.page.keyboard.press("Enter")
        await window.shows(".token", "send a token of the cluster")
        await window.page.fill("#token", "right")
        await window.page.keyboard.press("Enter")
        await window.shows("header", "10.25")
        await window.page.reload()
        await window.shows("header", "10.25")
        assert await window.page.locator(".token").count() == 0
        assert await window.page.evaluate("[document.cookie, localStorage.getItem('leeboard-token')]") == ["", None]
        assert [url for url in window.requests if "right" in url] == []
        window.complaints.clear()  # the browser reports the 401s


async def test_a_server_without_room_for_one_more_reader_says_so(opens: Opens) -> None:
    stage = Stage(story(), full="256 readers are connected; try again later")
    async with opens(stage=stage) as window:
        await window.shows("main", "No answer yet: 256 readers are connected; try again later. Trying again.")
        stage.full = ""
        await window.page.keyboard.press("r")
        await window.shows("header", "10.25")
        window.complaints.clear()


async def test_the_page_works_under_a_path_of_the_api_server(opens: Opens) -> None:
    async with opens(path=f"{SERVICE_PROXY[1:]}/#/why/vision/train-llm") as window:
        await window.shows("main", "Decisions newest first")
        asked = [url.removeprefix(window.stage.url[:-1]) for url in window.requests]

        assert [path for path in asked if not path.startswith(f"{SERVICE_PROXY}/")] == []
        assert f"{SERVICE_PROXY}/api/v1/stream" in asked


async def test_the_token_passes_the_proxy_of_the_api_server(opens: Opens) -> None:
    async with opens(stage=Stage(story(), token="right"), path=f"{SERVICE_PROXY[1:]}/") as window:
        await window.page.fill("#token", "right")
        await window.page.keyboard.press("Enter")
        await window.shows("header", "10.25")
        window.complaints.clear()


async def test_nobody_but_the_server_is_asked_on_any_screen(opens: Opens) -> None:
    async with opens() as window:
        await window.shows("header", "10.25")
        window.stage.scene.tick += 60
        await window.tick()
        for path in ("#/queue/vision", "#/why/vision/train-llm", "#/waiting"):
            await window.page.evaluate(f"location.hash = '{path}'")
            await window.shows("main", "vision")

        assert len(window.requests) > 20
        assert {url.split("/")[2] for url in window.requests} == {f"{HOST}:{window.stage.port}"}
        assert {url for url in window.requests if "?" in url} == set()
