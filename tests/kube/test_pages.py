"""Lists of the largest objects: no page is larger than the limit of one read, and none is left out."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from app.model.seam import KubeError, Listed, RawObject, Resource
from tests.kube.apiserver import BRIEF, connected, kubeconfig, listening, lists, whole

LARGE, SMALL = 20_000, 10
LIMITS = replace(BRIEF, page_objects=16, page_bytes=50_000, line_bytes=30_000, page_within_s=5.0)


class Stock:
    """Pods of some sizes, and how many were requested at a time."""

    def __init__(self, *sizes: int) -> None:
        self._pods = [
            {"metadata": {"name": f"p{at}", "annotations": {"a": "x" * size}}} for at, size in enumerate(sizes)
        ]
        self.asked: list[int] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        start, number = int(request.query["continue"] or 0), int(request.query["limit"])
        self.asked.append(number)
        end = min(start + number, len(self._pods))
        return await lists(*self._pods[start:end], more=str(end) if end < len(self._pods) else "")(request)


def name_of(raw: RawObject) -> str:
    return str(raw["metadata"]["name"])


async def listed(stock: Stock, path: Path) -> list[str]:
    async with listening(stock.answer) as url, await connected(kubeconfig(url, path), limits=LIMITS) as cluster:
        return await cluster.pods_in("n", name_of)


async def test_a_page_of_large_objects_is_requested_again_with_fewer(tmp_path: Path) -> None:
    stock = Stock(*[LARGE] * 10, *[SMALL] * 30)

    names = await listed(stock, tmp_path)

    assert names == [f"p{at}" for at in range(40)]
    assert stock.asked == [16, 2, 2, 2, 2, 2, 2, 4, 8, 16]


async def test_the_watch_lists_all_large_objects_too(tmp_path: Path) -> None:
    stock = Stock(*[LARGE] * 40)

    async with listening(stock.answer) as url, await connected(kubeconfig(url, tmp_path), limits=LIMITS) as cluster:
        event = await anext(cluster.watch(Resource.PODS, whole))

    assert isinstance(event, Listed)
    assert [name_of(raw) for raw in event.objects] == [f"p{at}" for at in range(40)]


async def test_other_tasks_run_between_large_objects(tmp_path: Path) -> None:
    stock, runs, together = Stock(*[LARGE] * 16), 0, Counter[int]()

    def count_run() -> None:
        nonlocal runs
        runs += 1
        asyncio.get_running_loop().call_soon(count_run)

    def note(raw: RawObject) -> str:
        together[runs] += 1
        return name_of(raw)

    limits = replace(LIMITS, page_bytes=1_000_000)
    async with listening(stock.answer) as url, await connected(kubeconfig(url, tmp_path), limits=limits) as cluster:
        count_run()
        event = await anext(cluster.watch(Resource.PODS, note))

    assert isinstance(event, Listed)
    assert (len(event.objects), max(together.values())) == (16, 3)


async def test_one_object_that_is_too_large_ends_the_list(tmp_path: Path) -> None:
    stock = Stock(SMALL, 3 * LARGE)

    with pytest.raises(KubeError, match="longer than 30000 bytes"):
        await listed(stock, tmp_path)
    assert stock.asked == [16, 2, 1, 2, 1]
