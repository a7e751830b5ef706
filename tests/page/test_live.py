"""The page on a real service with its view, which schedules a simulated cluster."""

import asyncio
from typing import Any

import pytest

from app.model.seam import Resource
from app.simulation import manifests
from app.simulation.world import live
from tests.page.stage import looked_at
from tests.view.pair import paired
from tests.view.test_view_process import viewed

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEE_STALE = """new MutationObserver(() => { window.sawStale ||= document.querySelector(".status.stale") !== null; })
  .observe(document.body, {subtree: true, childList: true, attributes: true})"""


async def test_the_page_shows_a_service_at_work_and_follows_it(browser: Any) -> None:
    async with viewed(anonymous_reads=True) as running, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(live(running.cluster, running.endpoints.webhooks, speed=20, seed=219))
        async with looked_at(browser, f"{running.endpoints.view}/") as window:
            await window.shows("#cluster h2", "152 GPUs on 19 nodes")
            titles = await window.page.locator(".block h3 .name").all_inner_texts()
            assert titles == ["no topology", *(f"rack-{rack}/nvlink-{rack}{part}" for rack in "ab" for part in (1, 2))]
            await window.shows("#queues", "research")
            await window.shows("#waiting", "No node could hold the pod even when empty: 16 GPUs requested")
            assert await window.page.locator("[data-tag='·']").count() >= 8
            await window.page.locator("tr.waits button").first.click()
            await window.shows(".more", "Decisions")
            await window.page.locator(".more a[href*='why']").last.click()
            await window.shows("main h2", "/")
            await window.shows("main .explanation", "State")
        work.cancel()


async def test_the_page_follows_the_lead_from_one_replica_to_the_other(browser: Any) -> None:
    async with paired() as pair, looked_at(browser, f"{pair.url}/") as window:
        await window.shows(".status", "live")
        await window.shows("#cluster h2", "152 GPUs on 19 nodes")
        await window.page.evaluate(SEE_STALE)
        pair.cluster.leader = "two"
        await window.becomes("window.sawStale")
        assert "152" in await window.text("header")
        pair.cluster.create(Resource.NODES, manifests.node("new", gpus=4, cpu=8, labels={}))
        await window.shows("#cluster h2", "156 GPUs on 20 nodes")
        await window.shows(".status", "live")
        # The browser reports the answers of the replica on standby.
        window.complaints.clear()
