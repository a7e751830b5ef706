"""The page in chromium, on a Leeboard that runs on a real control plane: who sees what, live, over a restart."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.page.conftest import browser  # noqa: F401 # a fixture
from tests.page.stage import Window, looked_at
from tests.system import tenants
from tests.system.api import DEFAULT_PODS, Api, gang, gpu_node, pod, queue
from tests.system.bed import HOST, PLAIN_SCHEDULER, Bed, free_ports
from tests.system.forms import Deployed, Form, deployed
from tests.system.identities import User

GIGANTIC = "Even empty, all nodes together hold at most 1 of 2 pods that start together."
SECRET = "their-secret-plan"

Sees = Callable[[User | None], AbstractAsyncContextManager[Window]]

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def leeboard(session_bed: Bed, session_api: Api) -> Iterator[Deployed]:
    """Leeboard as shipped, with the view."""
    (view,) = free_ports(1)
    with deployed(session_bed, session_api, Form.HELD, PLAIN_SCHEDULER, view_port=str(view)) as running:
        yield running


@pytest.fixture
def cluster(leeboard: Deployed, bed: Bed, api: Api) -> Api:
    """A node of 8 GPUs, a pod that runs on it, and a gang that it cannot hold; a tenant who sees one namespace."""
    assert leeboard.bed is bed
    tenants.settle(api)
    tenants.allow(
        api, "sees-queues", tenants.subject(User.TENANT), group="scheduling.run.ai", resource="queues", verbs=["list"]
    )
    api.create(gpu_node("page-node", gpus=8))
    api.create(queue("vision", deserved=8))
    api.create(pod("runs", gpus=3, queue="vision"))
    api.create_all(gang("train", size=2, gpus=8, queue="vision"))
    api.create(pod(SECRET, gpus=99, queue="vision"))
    api.create(pod("mine", gpus=9, queue="vision", namespace=tenants.TEAM))
    api.wait_for_bound(1, within_s=30.0)
    return api


@asynccontextmanager
async def seen_by(browser: Any, leeboard: Deployed, user: User | None) -> AsyncIterator[Window]:  # noqa: F811
    """Open the page as a user, who gives their token; None gives none."""
    async with looked_at(browser, f"http://{HOST}:{leeboard.settings['view_port']}/") as window:
        await window.shows(".token", "send a token of the cluster")
        if user is not None:
            await window.page.fill("#token", leeboard.bed.token(user))
            await window.page.keyboard.press("Enter")
            await window.shows(".status", "live")
        window.complaints.clear()  # the browser reports the 401 of the first question
        yield window


@pytest.fixture
def sees(browser: Any, leeboard: Deployed) -> Sees:  # noqa: F811
    """Open the page as a user."""
    return partial(seen_by, browser, leeboard)


async def row(window: Window, text: str) -> str:
    """Return the row of the waiting list with this text."""
    await window.shows(f"tr.waits:has-text('{text}')", text)
    return await window.text(f"tr.waits:has-text('{text}')")


async def test_an_administrator_sees_who_has_the_gpus_and_why_the_others_wait(sees: Sees, cluster: Api) -> None:
    async with sees(User.ADMIN) as window:
        await window.shows("#cluster h2", "8 GPUs on 1 node")
        await window.shows("#cluster", "page-node")
        await window.becomes("document.querySelectorAll('[aria-label*=\"default/runs\"]').length == 3")

        assert GIGANTIC in await row(window, "default/train")
        assert "99 GPUs" in await row(window, SECRET)
        assert "vision" in await window.text("#queues")

        cluster.delete(f"{DEFAULT_PODS}/runs")
        await window.becomes("document.querySelectorAll('[aria-label*=\"default/runs\"]').length == 0")

        await window.page.get_by_role("link", name="default/train").first.click()
        await window.shows("main .explanation", GIGANTIC)


async def test_a_tenant_sees_the_names_of_their_own_namespace_only(sees: Sees, cluster: Api) -> None:
    assert cluster.find(f"{DEFAULT_PODS}/{SECRET}") is not None
    async with sees(User.TENANT) as window:
        await window.shows("#waiting", f"{tenants.TEAM}/mine")
        await window.shows("#waiting", "in another namespace")

        assert SECRET not in await window.page.content()
        assert "default/" not in await window.page.content()


async def test_without_a_token_nothing_is_shown(sees: Sees, cluster: Api) -> None:
    assert cluster.find(f"{DEFAULT_PODS}/{SECRET}") is not None
    async with sees(None) as window:
        content = await window.page.content()

        assert SECRET not in content
        assert "page-node" not in content
        assert "vision" not in content


async def test_the_page_goes_on_when_leeboard_is_killed_and_started_again(
    sees: Sees, leeboard: Deployed, cluster: Api
) -> None:
    async with sees(User.ADMIN) as window:
        await row(window, "default/train")
        leeboard.bed.kill("leeboard")
        await window.shows(".status", "STALE since")
        leeboard.start_leeboard()
        leeboard.wait_until_ready()
        cluster.create(pod("later", gpus=9, queue="vision"))

        assert "9 GPUs" in await row(window, "default/later")
        await window.shows(".status", "live")
        window.complaints.clear()  # the browser reports each connection that was refused
