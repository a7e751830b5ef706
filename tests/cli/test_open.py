"""`leeboard open`: what its proxy passes on, with which rights, and to whom."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from app.cli import main
from app.cli.asking import view_of
from app.cli.page_proxy import PageProxy
from app.client.kubeconfig import context_of
from app.client.service_ways import DirectWay, Service
from app.service import Endpoints, serve
from app.settings import Settings
from app.simulation.world import furnished
from tests.cli.installation import Replica, answering
from tests.kube.apiserver import kubeconfig, listening, says, status

ROOT = Path(__file__).parents[2]
SERVICES = "/api/v1/namespaces/leeboard/services"
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


# -- the command finds the page


@asynccontextmanager
async def served() -> AsyncIterator[Endpoints]:
    """Run the service with its view."""
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    settings = Settings(webhook_port=0, operations_port=0, view_port=0, anonymous_reads=True)
    running = asyncio.create_task(serve(settings, furnished(), on_ready=ready.set_result))
    try:
        yield await ready
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def behind_an_api_server(folder: Path, services: dict[str, str]) -> AsyncIterator[str]:
    """Lead to these Services, by their names and ports, as the API server does; yield a kubeconfig."""

    async def answer(request: web.Request) -> web.StreamResponse:
        for service, url in services.items():
            before, found, path = request.path.partition(f"{SERVICES}/{service}/proxy")
            if found and not before:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(url + path, headers={"Accept": request.headers.get("Accept", "*/*")}) as reply,
                ):
                    return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)
        return await says(status(404), code=404)(request)

    async with listening(answer) as url:
        yield str(kubeconfig(url, folder))


def page_of_the_command(environment: dict[str, str]) -> tuple[bytes, int]:
    """Run `leeboard open`; return the page at the address that it prints, and the exit code after Ctrl-C."""
    command = [sys.executable, "-m", "app", "open", "--no-browser"]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            where = urlsplit(process.stdout.readline().strip())
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
            connection.request("GET", where.path)
            with connection.getresponse() as response:
                page = response.read()
            process.send_signal(signal.SIGINT)
            return page, process.wait(30)
        finally:
            process.kill()


@pytest.mark.slow
async def test_the_command_opens_the_page_of_the_view_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    async with (
        served() as at,
        behind_an_api_server(
            tmp_path, {"leeboard:operations": at.operations, "leeboard-view:view": at.view}
        ) as through_the_api_server,
    ):
        beside = {"LEEBOARD_VIEW_PORT": at.view.rpartition(":")[2]}
        ways: list[dict[str, str]] = [
            {"LEEBOARD_SERVER": at.view},
            {"LEEBOARD_SERVER": at.operations} | beside,
            beside,
            {"KUBECONFIG": through_the_api_server, "LEEBOARD_VIEW_PORT": "1"},
        ]
        found = [await asyncio.to_thread(page_of_the_command, way) for way in ways]

    assert [(b"<title>Leeboard</title>" in page, code) for page, code in found] == [(True, 0)] * len(ways)


async def refusal(*options: str, **environment: str) -> str:
    runner = CliRunner(env={"LEEBOARD_VIEW_PORT": "1", **environment})
    result = await asyncio.to_thread(runner.invoke, main, ["open", "--no-browser", *options])
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


async def test_an_address_without_the_page_is_said_to_be_so_with_what_to_do(tmp_path: Path) -> None:
    async with (
        answering(Replica()) as operations,
        behind_an_api_server(tmp_path, {"leeboard:operations": operations}) as config,
        behind_an_api_server(tmp_path, {"other:8080": operations}) as other,
    ):
        said = [
            await refusal("--server", operations),
            await refusal("--kubeconfig", config),
            await refusal("--kubeconfig", other, "--service", "leeboard/other:8080"),
        ]

    fix = "set view.enabled in the chart, or name the view with --service NAMESPACE/NAME:PORT or --server URL"
    assert said == [
        f"Error: {operations} has no page of Leeboard; {fix}\n",
        f"Error: there is no Service leeboard/leeboard-view:view; {fix}\n",
        f"Error: Service leeboard/other:8080 has no page of Leeboard; {fix}\n",
    ]


async def test_a_port_in_use_is_one_line_with_what_to_do() -> None:
    async with served() as at:
        taken = at.operations.rpartition(":")[2]
        said = await refusal("--server", at.view, "--port", taken)

    assert said == (
        f"Error: 127.0.0.1:{taken} cannot be used: Address already in use; choose another port with --port, or leave"
        " it out for a free one\n"
    )


@pytest.mark.parametrize(
    ("service", "asked"),
    [
        ("leeboard/leeboard:operations", "leeboard/leeboard-view:view"),
        ("gpus/https:lee:operations", "gpus/https:lee-view:view"),
        ("gpus/page:http", "gpus/page:http"),
    ],
)
def test_the_service_of_the_view_stands_beside_that_of_operations(service: str, asked: str) -> None:
    assert view_of(service) == asked
