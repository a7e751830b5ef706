"""The page on a real service with its view, which schedules a simulated cluster."""

import asyncio
from typing import Any

import pytest

from app.simulation.world import live
from tests.page.stage import looked_at
from tests.view.test_view_process import viewed

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_page_shows_a_service_at_work_and_follows_it(browser: Any) -> None:
    async with viewed(anonymous_reads=True) as running, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(live(running.cluster, running.endpoints.webhooks, speed=20, seed=219))
        async with looked_at(browser, f"{running.endpoints.view}/") as window:
            await window.shows("#cluster h2", "152 GPUs on 19 nodes")
            await window.shows("#queues", "research")
            await window.shows("#waiting", "No node could hold the pod even when empty: 16 GPUs requested")
            assert await window.page.locator("[data-tag='·']").count() >= 8
            await window.page.locator("tr.waits button").first.click()
            await window.shows(".more", "Decisions")
            await window.page.locator(".more a[href*='why']").last.click()
            await window.shows("main h2", "/")
            await window.shows("main .explanation", "State")
        work.cancel()
