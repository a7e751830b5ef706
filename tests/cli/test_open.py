"""`leeboard open`: what its proxy passes on, with which rights, and to whom."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from app.cli.page_proxy import PageProxy
from app.client.kubeconfig import context_of
from app.client.service_ways import DirectWay, Service
from tests.cli.installation import Replica, answering
from tests.kube.apiserver import kubeconfig, listening

ROOT = Path(__file__).parents[2]
PAGE = b"<!doctype html><title>Leeboard</title>"


class Page:
    """The service: a page, a list that may be unchanged, and a stream whose second event waits for the first."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.first_was_read = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.headers.get("If-None-Match") == '"7"':
            return web.Response(status=304, headers={"ETag": '"7"'})
        if request.path != "/api/v1/stream":
            headers = {"ETag": '"7"', "Set-Cookie": "a=b", "Content-Type": "text/html", "Content-Security-Policy": "x"}
            return web.Response(body=PAGE, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: state\n\n")
        await self.first_was_read.wait()
        await response.write(b"event: delta\n\n")
        return response


@contextmanager
def proxying(url: str, folder: Path) -> Iterator[PageProxy]:
    """Run the proxy in a thread, with the token of a kubeconfig."""
    config = str(kubeconfig("https://127.0.0.1:1", folder, token="jane"))  # of the test
    way = DirectWay(url, token=None, context=lambda: context_of(config), timeout_s=5.0)
    with PageProxy(Service(way)) as proxy:
        thread = threading.Thread(target=proxy.serve)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.close()
            thread.join()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Page, PageProxy]]:
    page = Page()
    async with listening(page.answer) as url:
        with proxying(url, folder) as proxy:
            yield page, proxy


def ask(proxy: PageProxy, path: str = "", *, whole: str = "", method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Ask for a path below the address of the proxy, or for a whole path; return status and body."""
    where = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, whole or where.path + path, headers=named)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


async def test_the_page_is_passed_on_with_the_rights_of_the_caller(tmp_path: Path) -> None:
    async with opened(tmp_path) as (page, proxy):
        found = await asyncio.to_thread(ask, proxy, "api/v1/queues?limit=1", Authorization="Bearer evil", Cookie="a=b")

    (request,) = page.seen
    assert found == (200, PAGE)
    assert (request.path_qs, request.headers["Authorization"]) == ("/api/v1/queues?limit=1", "Bearer jane")
    assert "Cookie" not in request.headers


async def test_an_unchanged_answer_stays_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, proxy):
        assert await asyncio.to_thread(ask, proxy, If_None_Match='"7"') == (304, b"")


@pytest.mark.parametrize("host", ["evil.example.com", "127.0.0.1", "localhost:1", ""])
async def test_a_name_that_leads_to_loopback_reads_nothing(tmp_path: Path, host: str) -> None:
    async with opened(tmp_path) as (page, proxy):
        status, body = await asyncio.to_thread(ask, proxy, Host=host)

    assert (status, page.seen) == (403, [])
    assert PAGE not in body


@pytest.mark.parametrize("path", ["/", "/api/v1/queues", "/0123456789/", "//"])
async def test_another_user_of_the_machine_reads_nothing(tmp_path: Path, path: str) -> None:
    async with opened(tmp_path) as (page, proxy):
        status, _ = await asyncio.to_thread(ask, proxy, whole=path)
        without_slash, _ = await asyncio.to_thread(ask, proxy, whole=urlsplit(proxy.url).path.rstrip("/") + "x/")

    assert (status, without_slash, page.seen) == (403, 403, [])


async def test_nothing_can_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (page, proxy):
        status, _ = await asyncio.to_thread(ask, proxy, method="POST")

    assert (status, page.seen) == (501, [])


async def test_headers_of_the_page_stay_and_cookies_and_the_address_do_not_leave(tmp_path: Path) -> None:
    def headers(proxy: PageProxy) -> dict[str, str]:
        where = urlsplit(proxy.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
        connection.request("GET", where.path)
        with connection.getresponse() as response:
            return {name.lower(): value for name, value in response.getheaders()}

    async with opened(tmp_path) as (_, proxy):
        found = await asyncio.to_thread(headers, proxy)

    assert (found["content-type"], found["content-security-policy"], found["etag"]) == ("text/html", "x", '"7"')
    assert (found["referrer-policy"], "set-cookie" in found) == ("no-referrer", False)


async def test_an_event_is_passed_on_before_the_next_one_exists(tmp_path: Path) -> None:
    def read(proxy: PageProxy, page: Page, loop: asyncio.AbstractEventLoop) -> list[bytes]:
        where = urlsplit(proxy.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
        connection.request("GET", f"{where.path}api/v1/stream")
        with connection.getresponse() as response:
            first = response.read1()
            loop.call_soon_threadsafe(page.first_was_read.set)
            return [first, response.read()]

    async with opened(tmp_path) as (page, proxy):
        parts = await asyncio.to_thread(read, proxy, page, asyncio.get_running_loop())

    assert parts == [b"event: state\n\n", b"event: delta\n\n"]


async def test_a_service_that_is_gone_is_said_to_be_so(tmp_path: Path) -> None:
    with proxying("http://127.0.0.1:1", tmp_path) as proxy:
        status, body = await asyncio.to_thread(ask, proxy)

    assert (status, b"http://127.0.0.1:1 does not answer" in body) == (502, True)


@pytest.mark.slow
async def test_the_command_prints_the_address_and_ends_at_ctrl_c() -> None:
    def opened_and_ended(url: str) -> tuple[int, int]:
        command = [sys.executable, "-m", "app", "open", "--no-browser"]
        environment = os.environ | {"LEEBOARD_URL": url}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            where = urlsplit(process.stdout.readline().strip())
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
            connection.request("GET", f"{where.path}livez")
            with connection.getresponse() as response:
                status = response.status
            process.send_signal(signal.SIGINT)
            try:
                return status, process.wait(30)
            finally:
                process.kill()

    async with answering(Replica()) as url:
        assert await asyncio.to_thread(opened_and_ended, url) == (200, 0)
