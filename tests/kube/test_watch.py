"""Watches against a fake API server: after each failure there is a whole list, or the watch continues."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web

from app.kube.client import KubeCluster
from app.kube.lines import SLICE, SLICE_BYTES
from app.kube.watch import RESTORED_AFTER
from app.model.seam import Changed, Deleted, Listed, Lost, Progress, RawObject, Resource, WatchEvent
from tests.kube.apiserver import (
    BRIEF,
    Answer,
    FakeApiServer,
    Pauses,
    connected,
    kubeconfig,
    line,
    lists,
    pod,
    refuses,
    says,
    silent,
    status,
    streams,
    whole,
)

T = TypeVar("T")
Event = WatchEvent[RawObject]

A = line("ADDED", pod("a", "11"))
B = line("MODIFIED", pod("b", "12"))
CHANGED_A, CHANGED_B = Changed(pod("a", "11")), Changed(pod("b", "12"))
EMPTY: Listed[RawObject] = Listed([])


async def hang(_: web.Request) -> None:
    await asyncio.get_running_loop().create_future()


async def reset(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def first(count: int, events: AsyncGenerator[WatchEvent[T], None]) -> list[WatchEvent[T]]:
    async with asyncio.timeout(5), aclosing(events):
        return [await anext(events) for _ in range(count)]


def asked(server: FakeApiServer) -> list[str]:
    """Return each request as a word: `list`, or the resourceVersion at which a watch began."""
    return [seen.query.get("resourceVersion", "list") for seen in server.seen]


def causes(events: list[Event]) -> list[str]:
    return [event.cause for event in events if isinstance(event, Lost)]


async def test_a_list_is_first_and_then_the_changes(server: FakeApiServer, cluster: KubeCluster) -> None:
    gone = line("DELETED", pod("b", "13"))
    server.will(lists(pod("x")), streams(A + B, gone, then=hang))

    events = await first(4, cluster.watch(Resource.PODS, whole))

    assert events == [Listed([pod("x")]), CHANGED_A, CHANGED_B, Deleted(pod("b", "13"))]
    assert asked(server) == ["list", "10"]


async def test_finished_pods_are_neither_listed_nor_watched(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(A, then=hang))

    await first(2, cluster.watch(Resource.PODS, whole))

    selectors = [seen.query["fieldSelector"] for seen in server.seen]
    assert selectors == ["status.phase!=Succeeded,status.phase!=Failed"] * 2


async def test_a_watch_requests_bookmarks_and_an_end_in_about_five_minutes(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(lists(), streams(A, then=hang))

    await first(2, cluster.watch(Resource.NODES, whole))

    query = server.seen[1].query
    assert query["allowWatchBookmarks"] == "true"
    assert 270 <= int(query["timeoutSeconds"]) <= 330
    assert "fieldSelector" not in query


async def test_a_long_list_is_read_in_pages_of_one_version(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(pod("a"), more="t+1="), lists(pod("b"), version="10"), streams(A, then=hang))

    events = await first(2, cluster.watch(Resource.PODS, whole))

    assert events == [Listed([pod("a"), pod("b")]), CHANGED_A]
    assert [seen.query.get("continue") for seen in server.seen[:2]] == ["", "t+1="]
    assert server.seen[0].query["limit"] == "250"


async def test_only_the_stored_part_of_an_object_is_reported(server: FakeApiServer, cluster: KubeCluster) -> None:
    gone = line("DELETED", pod("b", "13"))
    server.will(lists(pod("x"), more="t"), lists(pod("y")), streams(A + gone, then=hang))

    events = await first(3, cluster.watch(Resource.PODS, keep=lambda raw: str(raw["metadata"]["name"])))

    assert events == [Listed(["x", "y"]), Changed("a"), Deleted("b")]


async def test_a_long_page_is_processed_in_slices_and_nothing_is_lost(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    names = [f"p{number}" for number in range(2 * SLICE + 1)]
    server.will(lists(*map(pod, names)))

    events = await first(1, cluster.watch(Resource.PODS, keep=lambda raw: str(raw["metadata"]["name"])))

    assert events == [Listed(names)]


@pytest.mark.parametrize(("number", "size"), [(60, 39_000), (500, 10), (3, 200_000)])
async def test_other_tasks_run_between_slices_of_a_burst_of_events(
    server: FakeApiServer, cluster: KubeCluster, number: int, size: int
) -> None:
    lines = [line("MODIFIED", pod(f"p{each}", str(each + 20)) | {"x": "x" * size}) for each in range(number)]
    server.will(lists(), streams(b"".join(lines), then=hang))
    turns, kept = 0, Counter[int]()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def keep(raw: RawObject) -> str:
        kept[turns] += 1
        return str(raw["metadata"]["name"])

    others = asyncio.create_task(take_turns())
    events = await first(number + 1, cluster.watch(Resource.PODS, keep))
    others.cancel()

    assert events == [Listed([]), *(Changed(f"p{each}") for each in range(number))]
    # The rest of one read and the beginning of the next may arrive together.
    assert max(kept.values()) <= 2 * max(1, min(SLICE, SLICE_BYTES // len(lines[-1])))


async def test_a_line_may_arrive_in_pieces(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(A[:9], A[9:30], A[30:] + B[:5], B[5:], then=hang))

    assert await first(3, cluster.watch(Resource.PODS, whole)) == [EMPTY, CHANGED_A, CHANGED_B]


async def test_a_bookmark_is_progress_and_moves_the_next_watch(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(line("BOOKMARK", pod("", "99"))), streams(A, then=hang))

    assert await first(3, cluster.watch(Resource.PODS, whole)) == [EMPTY, Progress(), CHANGED_A]

    assert asked(server) == ["list", "10", "99"]


async def test_a_stream_that_ends_normally_continues_silently_and_at_once(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(lists(), streams(A), streams(B, then=hang))

    assert await first(3, cluster.watch(Resource.PODS, whole)) == [EMPTY, CHANGED_A, CHANGED_B]

    assert asked(server) == ["list", "10", "11"]
    assert pauses == []


async def test_streams_that_end_at_once_make_no_hot_loop(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(lists(), *[streams()] * 12, streams(A, then=hang))

    assert await first(2, cluster.watch(Resource.PODS, whole)) == [EMPTY, CHANGED_A]

    assert all(earlier < later for earlier, later in zip(pauses[:5], pauses[2:5], strict=False))
    assert 0.2 <= min(pauses) <= max(pauses) <= 10.0
    assert pauses[-1] >= 5.0


async def test_410_as_an_answer_lists_again_at_once(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(lists(), streams(A), refuses(410, "too old"), lists(pod("x"), version="20"))

    assert await first(3, cluster.watch(Resource.PODS, whole)) == [EMPTY, CHANGED_A, Listed([pod("x")])]

    assert pauses == []


async def test_410_as_an_error_event_lists_again_at_once(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(lists(), streams(line("ERROR", status(410, "too old resource version"))), lists(pod("x")))

    assert await first(2, cluster.watch(Resource.PODS, whole)) == [EMPTY, Listed([pod("x")])]

    assert pauses == []


async def test_410_repeatedly_makes_no_hot_loop(server: FakeApiServer, cluster: KubeCluster, pauses: Pauses) -> None:
    server.will(*[lists(), refuses(410)] * 4, lists())

    assert await first(5, cluster.watch(Resource.PODS, whole)) == [EMPTY] * 5

    assert len(pauses) == 2
    assert pauses == sorted(pauses)


async def test_a_continue_token_that_expires_begins_the_list_again(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(pod("half"), more="t"), refuses(410), lists(pod("a")))

    assert await first(1, cluster.watch(Resource.PODS, whole)) == [Listed([pod("a")])]


async def test_any_other_error_event_is_reported_and_lists_again(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(line("ERROR", status(500, "etcd is unwell"))), lists())

    events = await first(3, cluster.watch(Resource.PODS, whole))

    assert events == [EMPTY, Lost("the watch ended with an error: etcd is unwell"), EMPTY]


async def test_a_silent_stream_is_lost_and_continues_where_it_stopped(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(lists(), streams(A, then=hang), streams(B, then=hang))

    events = await first(5, cluster.watch(Resource.PODS, whole))

    assert events == [EMPTY, CHANGED_A, Lost("silent for 0.1 s"), Progress(), CHANGED_B]
    assert asked(server) == ["list", "10", "11"]


async def test_bytes_without_a_complete_line_are_silence(server: FakeApiServer, tmp_path: Path) -> None:
    async def drip(request: web.Request) -> None:
        assert request.transport is not None
        while True:
            request.transport.write(b"1\r\n \r\n")
            await asyncio.sleep(0)

    server.will(lists(), streams(A[:5], then=drip))
    async with await connected(kubeconfig(server.url, tmp_path)) as cluster:
        assert causes(await first(2, cluster.watch(Resource.PODS, whole))) == ["silent for 0.1 s"]


async def test_a_watch_that_is_never_answered_is_lost(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), silent(), streams(A, then=hang))

    events = await first(4, cluster.watch(Resource.PODS, whole))

    assert [type(event) for event in events] == [Listed, Lost, Progress, Changed]


@pytest.mark.parametrize(
    "fault", [says(b"{", Content_Length="9"), silent(), refuses(500), refuses(403), says(b"{}"), says(b"["), lists(1)]
)
async def test_a_failed_list_is_lost_and_tried_again(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses, fault: Answer
) -> None:
    server.will(fault, lists())

    events = await first(2, cluster.watch(Resource.PODS, whole))

    assert [type(event) for event in events] == [Lost, Listed]
    assert all(0.2 <= pause <= 0.4 for pause in pauses)


async def test_a_reset_in_mid_stream_continues_from_the_last_complete_line(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(lists(), streams(A, B[:20], then=reset), streams(B, then=hang))

    events = await first(5, cluster.watch(Resource.PODS, whole))

    assert [type(event) for event in events] == [Listed, Changed, Lost, Progress, Changed]
    assert asked(server) == ["list", "10", "11"]


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"type":"ADDED","object":\n',
        b"\xff\xfe\n",
        b"[]\n",
        b"null\n",
        b'{"type":"ERROR","object":null}\n',
        line("ADDED", {"metadata": {}}),
        line("RENAMED", pod("x")),
    ],
)
async def test_garbage_restarts_the_stream_and_applies_nothing_of_its_batch(
    server: FakeApiServer, cluster: KubeCluster, garbage: bytes
) -> None:
    server.will(lists(), streams(A + garbage + B, then=hang), streams(A, then=hang))

    events = await first(4, cluster.watch(Resource.PODS, whole))

    assert [type(event) for event in events] == [Listed, Lost, Progress, Changed]
    assert asked(server) == ["list", "10", "10"]


async def test_a_stream_that_ends_within_a_line_is_lost(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(A[:-5]), streams(A, then=hang))

    assert causes(await first(2, cluster.watch(Resource.PODS, whole))) == ["the stream ended in the middle of a line"]


async def test_an_endless_line_is_not_stored(server: FakeApiServer, tmp_path: Path) -> None:
    server.will(lists(), streams(b"x" * 3000, b"x" * 3000, then=hang))
    limits = replace(BRIEF, line_bytes=2000)
    async with await connected(kubeconfig(server.url, tmp_path), limits=limits) as cluster:
        events = await first(2, cluster.watch(Resource.PODS, whole))

    assert causes(events) == ["a line is longer than 2000 bytes"]


async def test_an_endless_page_is_not_stored(server: FakeApiServer, tmp_path: Path) -> None:
    server.will(says(b" " * 300_000))
    limits = replace(BRIEF, line_bytes=2000, page_objects=1)
    async with await connected(kubeconfig(server.url, tmp_path), limits=limits) as cluster:
        (event,) = await first(1, cluster.watch(Resource.PODS, whole))

    assert isinstance(event, Lost)
    assert "longer than 2000 bytes" in event.cause


async def test_a_list_from_the_past_is_refused_until_the_api_server_has_caught_up(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(lists(version="10"), streams(A), refuses(410), lists(version="9"), lists(version="12"))

    events = await first(4, cluster.watch(Resource.PODS, whole))

    cause = "a list of resourceVersion 9 is older than 11, seen before"
    assert events == [EMPTY, CHANGED_A, Lost(cause), EMPTY]


async def test_a_store_restored_from_a_backup_is_believed_after_several_lists(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    past = [lists(pod("a"), version=str(version)) for version in range(3, 3 + RESTORED_AFTER)]
    server.will(lists(version="10"), streams(A), refuses(410), *past, streams(line("ADDED", pod("b", "9")), then=hang))

    events = await first(3 + RESTORED_AFTER, cluster.watch(Resource.PODS, whole))

    assert len(causes(events)) == RESTORED_AFTER - 1
    assert events[-2:] == [Listed([pod("a")], restored=True), Changed(pod("b", "9"))]
    assert len(pauses) >= RESTORED_AFTER - 1


async def test_api_servers_that_lag_behind_each_other_are_not_taken_for_a_restored_store(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    past = [lists(version=version) for version in "987543"]
    server.will(lists(version="10"), streams(A), refuses(410), *past, lists(version="12"))

    events = await first(3 + len(past), cluster.watch(Resource.PODS, whole))

    assert len(causes(events)) == len(past)
    assert events[-1] == EMPTY


async def test_a_watch_that_stays_silent_lists_again(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(A, then=hang), streams(then=hang), lists(version="5"), lists(pod("x"), version="20"))

    events = await first(7, cluster.watch(Resource.PODS, whole))

    assert asked(server)[:4] == ["list", "10", "11", "list"]
    assert events[-1] == Listed([pod("x")])


async def test_a_line_that_can_never_be_read_is_skipped_by_a_list(server: FakeApiServer, cluster: KubeCluster) -> None:
    poisoned = [streams(b"{]\n", then=hang)] * 2
    server.will(lists(), *poisoned, lists(pod("x"), version="20"), streams(A, then=hang))

    events = await first(5, cluster.watch(Resource.PODS, whole))

    assert asked(server)[:4] == ["list", "10", "10", "list"]
    assert Listed([pod("x")]) in events


async def test_versions_that_are_no_numbers_are_not_compared(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(version="10"), refuses(410), lists(version="epoch-1"), refuses(410), lists(version="٣"))

    assert await first(3, cluster.watch(Resource.PODS, whole)) == [EMPTY] * 3


async def test_a_kind_that_is_not_installed_is_requested_periodically(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(*[says(b"404 page not found\n", code=404)] * 2, lists())

    events = await first(3, cluster.watch(Resource.POD_GROUPS, whole))

    assert events == [Lost("podgroups.scheduling.run.ai is not installed", denied=True, absent=True)] * 2 + [EMPTY]
    assert all(10 <= pause <= 30 for pause in pauses)


async def test_older_versions_of_a_kind_are_tried_at_once(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    missing = says(b"404 page not found\n", code=404)
    server.will(missing, missing, lists(), streams(A))

    events = await first(2, cluster.watch(Resource.RESOURCE_CLAIMS, whole))

    assert events == [EMPTY, CHANGED_A]
    versions = ["v1", "v1beta2", "v1beta1", "v1beta1"]
    assert [request.path for request in server.seen] == [
        f"/apis/resource.k8s.io/{version}/resourceclaims" for version in versions
    ]
    assert list(pauses) == []


async def test_a_kind_that_is_served_in_no_version_is_requested_periodically(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(*[says(b"404 page not found\n", code=404)] * 3, lists())

    events = await first(2, cluster.watch(Resource.RESOURCE_CLAIMS, whole))

    assert events == [Lost("resourceclaims.resource.k8s.io is not installed", denied=True, absent=True), EMPTY]
    assert all(10 <= pause <= 30 for pause in pauses)


async def test_a_kind_that_is_uninstalled_is_listed_when_it_is_installed_again(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(lists(), streams(A), refuses(404), lists())

    await first(4, cluster.watch(Resource.QUEUES, whole))

    assert asked(server) == ["list", "10", "11", "list"]
    assert max(pauses) < 1  # as when an API server has just started, and does not serve custom kinds yet


async def test_429_waits_for_the_retry_after_time(server: FakeApiServer, cluster: KubeCluster, pauses: Pauses) -> None:
    server.will(refuses(429, Retry_After="42"), lists())

    await first(2, cluster.watch(Resource.PODS, whole))

    assert pauses == [42.0]


async def test_a_rotated_token_is_read_again_by_a_watch(
    server: FakeApiServer, cluster: KubeCluster, tmp_path: Path
) -> None:
    server.will(lists(), refuses(401), streams(A, then=hang))
    (tmp_path / "token").write_text("second")

    assert await first(2, cluster.watch(Resource.PODS, whole)) == [EMPTY, CHANGED_A]

    assert server.seen[-1].headers["Authorization"] == "Bearer second"


async def test_a_cancelled_watch_closes_its_connection(server: FakeApiServer, cluster: KubeCluster) -> None:
    closed = asyncio.Event()

    async def hang_until_closed(request: web.Request) -> None:
        try:
            await hang(request)
        finally:
            closed.set()

    server.will(lists(), streams(A, then=hang_until_closed))
    watching = cluster.watch(Resource.PODS, whole)
    async with asyncio.timeout(5):
        await anext(watching)
        await anext(watching)
        waiting = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)

        waiting.cancel()

        await closed.wait()
    assert (await asyncio.gather(waiting, return_exceptions=True))[0].__class__ is asyncio.CancelledError
