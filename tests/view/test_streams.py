"""The view over real sockets: rights, limits, slow clients, and what it passes on. The test plays the API server."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import Request, Response

from app.model.rights import Right
from app.view import application, streams
from app.view.kept_state import KeptState
from app.view.packing import Piece
from app.view.page import Page
from app.web import callers
from app.web.callers import PODS, QUEUES, Reviewed
from app.web.connection import ConnectionLimits
from app.web.service_version import COMMIT
from app.web.visits import OnTheSpot
from tests.view.frames import Client, frame, through
from tests.web.served import Served, Wire, get, serving
from tests.web.test_callers import Authority, may_list

ADMIN, TENANT = "admin", "tenant"
PAGE = Page({"index.html": b"<title>x</title>", "vendor/a.mjs": b"export {}"})
RIGHTS: dict[str, set[Right]] = {ADMIN: {PODS, QUEUES}, TENANT: {may_list("mine")}, "nobody": set()}


@dataclass
class AlwaysFresh:
    """A source whose frames the test sends."""

    wanted: int = 0

    def want(self) -> None:
        self.wanted += 1

    async def fresh(self) -> bool:
        return True


@dataclass
class Elsewhere:
    """A deciding process that answers with what it was asked."""

    asked: list[str] = field(default_factory=list)

    async def answer(self, request: Request, user: str) -> Response:
        assert user
        self.asked.append(request.url.path)
        return Response(b"{}", media_type="application/json")


@dataclass
class Bench:
    """A served view and the parts around it."""

    served: Served
    kept: KeptState
    authority: Authority
    elsewhere: Elsewhere
    reviewed: Reviewed

    def tell(self, *rows: list[Any], full: bool = False, gone: tuple[str, ...] = ()) -> None:
        self.kept.add_part(through({"shares": (list(rows), list(gone))}))
        self.kept.take(through(frame(full=full)))

    @contextlib.asynccontextmanager
    async def stream(self, token: str = ADMIN, *headers: str) -> AsyncIterator["Reading"]:
        async with self.served.connection() as wire:
            await wire.send(get("/api/v1/stream", f"Authorization: Bearer {token}", *headers))
            yield Reading(wire)


class Reading:
    """A client of the stream on a connection."""

    def __init__(self, wire: Wire) -> None:
        self._reader = wire._reader
        self.client = Client()
        self.head = ""

    async def status(self) -> int:
        async with asyncio.timeout(10):
            self.head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        return int(self.head.split()[1])

    async def until(self, tick: int) -> Client:
        async with asyncio.timeout(10):
            if not self.head:
                assert await self.status() == 200
            waiting = b""
            while self.client.state.get("tick") != tick:
                size = int(await self._reader.readline(), 16)
                waiting += (await self._reader.readexactly(size + 2))[:-2]
                *whole, waiting = waiting.split(b"\n\n")
                for event in whole:
                    self.client.hear(event + b"\n\n")
        return self.client


def share(key: str, namespace: str) -> list[Any]:
    return [key, "n/0", 500, "bound", "q", namespace, f"pod-of-{namespace}", f"gang-of-{namespace}", None]


@contextlib.asynccontextmanager
async def viewing(page: Page | None = None, **more: Any) -> AsyncIterator[Bench]:
    kept, authority, elsewhere = KeptState(), Authority(RIGHTS), Elsewhere()
    reviewed = Reviewed(authority, OnTheSpot(), clock=asyncio.get_running_loop().time)
    app = application.application(kept, reviewed, AlwaysFresh(), elsewhere, page or PAGE)
    async with serving(app, ConnectionLimits(connections=1024), **more) as served:
        bench = Bench(served, kept, authority, elsewhere, reviewed)
        bench.tell(share("1", "mine"), share("2", "theirs"), full=True)
        yield bench


@pytest.fixture(autouse=True)
def _without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is seen does not depend on it.
    monkeypatch.setattr(callers, "REST_S", 0.0)


# -- rights


@pytest.mark.parametrize("path", ["/api/v1/state", "/api/v1/stream", "/api/v1/queues", "/openapi.json"])
async def test_no_reader_is_answered_without_a_token_even_from_loopback(path: str) -> None:
    async with viewing() as bench:
        nothing = await bench.served.ask(get(path))
        unknown = await bench.served.ask(get(path, "X-Leeboard-Token: guess"))
    assert (nothing.status, unknown.status, nothing.headers["www-authenticate"]) == (401, 401, "Bearer")
    assert bench.elsewhere.asked == []


async def test_the_page_and_the_version_are_open_and_safe() -> None:
    async with viewing() as bench:
        page, module = (
            await bench.served.ask(get("/")),
            await bench.served.ask(get(f"/static/{PAGE.version}/vendor/a.mjs")),
        )
        version = await bench.served.ask(get("/version"))
        missing = await bench.served.ask(get("/static/..%2f..%2fsettings.py"))
        again = await bench.served.ask(get("/", f"If-None-Match: {page.headers['etag']}"))
    assert page.body == b"<title>x</title>"
    assert module.headers["content-type"].startswith("text/javascript")
    for reply in (page, module, version, missing):
        assert "default-src 'self'" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in reply.headers
    assert (missing.status, again.status) == (404, 304)
    assert set(version.json) == {"version", "gitCommit", "apiVersions"}  # type: ignore[call-overload]


@pytest.mark.parametrize(("given", "said"), [("0a1b2c", "0a1b2c"), ("", None)])
async def test_the_version_names_the_commit_of_the_image_and_none_elsewhere(
    monkeypatch: pytest.MonkeyPatch, given: str, said: str | None
) -> None:
    monkeypatch.setenv(COMMIT, given)
    async with viewing() as bench:
        reply: Any = (await bench.served.ask(get("/version"))).json
    assert reply["gitCommit"] == said


async def test_a_user_with_rights_in_one_namespace_sees_the_others_without_names() -> None:
    async with viewing() as bench:
        tenant = await bench.served.ask(get("/api/v1/state", "X-Leeboard-Token: tenant"))
        admin = await bench.served.ask(get("/api/v1/state", "Authorization: Bearer admin"))
    rows: Any = tenant.json
    assert [row[4:8] for row in rows["tables"]["shares"]["rows"]] == [
        ["q", "mine", "pod-of-mine", "gang-of-mine"],
        ["", "", "", ""],
    ]
    assert b"theirs" not in tenant.body
    assert rows["incomplete"].startswith("Names of other namespaces are hidden")
    assert b"pod-of-theirs" in admin.body
    assert tenant.headers["etag"] != admin.headers["etag"]


async def test_a_right_that_ends_ends_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RIGHTS_EVERY_S", 0.0)
    async with viewing() as bench, bench.stream(TENANT) as reading:
        bench.authority.rights = {**RIGHTS, TENANT: {may_list("mine")}}
        before = dict((await reading.until(1)).tables["shares"])
        bench.authority.rights = {**RIGHTS, TENANT: set()}
        # Cached rights are no older than half a minute.
        _forget_rights(bench)
        bench.tell(share("3", "mine"))
        async with asyncio.timeout(10):
            while reading.client.states < 2:
                bench.tell(share("3", "mine"))
                await reading.until(bench.kept.tick)
    assert before["1"][5] == "mine"
    assert {row[5] for row in reading.client.tables["shares"].values()} == {""}


def _forget_rights(bench: Bench) -> None:
    bench.reviewed._rights.clear()
    bench.reviewed._users.clear()


# -- the stream


async def test_a_client_follows_and_comes_back_where_it_was() -> None:
    async with viewing() as bench:
        async with bench.stream() as reading:
            await reading.until(1)
            bench.tell(share("3", "mine"), gone=("1",))
            first = await reading.until(2)
        bench.tell(share("4", "mine"))
        async with bench.stream(ADMIN, f"Last-Event-ID: {first.id}") as reading:
            reading.client.state, reading.client.tables = first.state, first.tables
            back = await reading.until(3)
        async with bench.stream(ADMIN, "Last-Event-ID: other-2") as reading:
            newcomer = await reading.until(3)
    assert (first.states, first.deltas, back.states, back.deltas, newcomer.states) == (1, 1, 0, 1, 1)
    assert back.whole == newcomer.whole
    assert sorted(back.tables["shares"]) == ["2", "3", "4"]


async def test_a_slow_client_gets_the_whole_state_and_no_backlog() -> None:
    async with viewing() as bench, bench.stream() as reading:
        await reading.until(1)
        text = "x" * 50_000
        for number in range(400):
            bench.tell(
                [f"{number}", text, 1, "bound", "q", "mine", "p", "g", None], gone=(f"{number - 1}",) * (number > 0)
            )
            await asyncio.sleep(0)
        client = await reading.until(401)
        deltas, states = client.deltas, client.states
    assert states >= 2
    assert deltas < 400
    assert "399" in client.tables["shares"]


async def test_the_257th_client_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_STREAMS", 3)
    async with viewing() as bench:
        async with _reading_at_once(bench, 3):
            refused = await bench.served.ask(get("/api/v1/stream", "Authorization: Bearer admin"))
        assert await _status_once_they_have_left(bench) == 200
    assert (refused.status, refused.headers["retry-after"]) == (503, "10")
    assert b"/api/v1/state" in refused.body


async def test_one_user_leaves_streams_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_OF_ONE", 2)
    async with viewing() as bench:
        async with _reading_at_once(bench, 2):
            refused = await bench.served.ask(get("/api/v1/stream", "Authorization: Bearer admin"))
            async with bench.stream("nobody") as other:
                status = await other.status()
        assert await _status_once_they_have_left(bench) == 200
    assert (refused.status, refused.headers["retry-after"], status) == (429, "10", 200)
    assert b"close a page" in refused.body


@contextlib.asynccontextmanager
async def _reading_at_once(bench: Bench, number: int) -> AsyncIterator[None]:
    """Let the admin read so many streams."""
    async with contextlib.AsyncExitStack() as opened:
        for _ in range(number):
            reading = await opened.enter_async_context(bench.stream())
            await reading.until(1)
        yield


async def _status_once_they_have_left(bench: Bench) -> int:
    async with asyncio.timeout(10):
        while (status := await _status_of_a_stream(bench)) != 200:  # noqa: ASYNC110 - the server notices it
            await asyncio.sleep(0.01)
    return status


async def _status_of_a_stream(bench: Bench) -> int:
    async with bench.stream() as reading:
        return await reading.status()


async def test_a_client_that_leaves_is_forgotten_and_an_idle_one_hears_a_comment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "COMMENT_EVERY_S", 0.01)
    async with viewing() as bench, bench.served.connection() as wire:
        await wire.send(get("/api/v1/stream", "Authorization: Bearer admin"))
        async with asyncio.timeout(10):
            await wire._reader.readuntil(b": still here\n\n")


# -- everything else


async def test_an_unknown_parameter_is_refused_and_not_ignored() -> None:
    async with viewing() as bench:
        for path in ("/api/v1/state?namespace=x", "/api/v1/stream?since=3", "/version?x"):
            reply = await bench.served.ask(get(path, "Authorization: Bearer admin"))
            assert reply.status == 400, path
            assert b"unknown parameter" in reply.body


async def test_other_questions_go_to_the_deciding_process_with_a_known_token_only() -> None:
    async with viewing() as bench:
        passed = await bench.served.ask(get("/api/v1/why/a/b?kind=pod", "Authorization: Bearer nobody"))
        refused = await bench.served.ask(get("/api/v1/why/a/b", "Authorization: Bearer guess"))
    assert (passed.status, refused.status, bench.elsewhere.asked) == (200, 401, ["/api/v1/why/a/b"])


async def test_an_unchanged_state_is_not_sent_again_and_is_compressed_when_asked() -> None:
    async with viewing() as bench:
        ask = "Authorization: Bearer admin"
        first = await bench.served.ask(get("/api/v1/state", ask, "Accept-Encoding: gzip"))
        again = await bench.served.ask(get("/api/v1/state", ask, f"If-None-Match: {first.headers['etag']}"))
        bench.tell(share("9", "mine"))
        changed = await bench.served.ask(get("/api/v1/state", ask, f"If-None-Match: {first.headers['etag']}"))
    assert (first.headers["content-encoding"], again.status, changed.status) == ("gzip", 304, 200)


async def test_a_compressed_stream_is_one_valid_gzip_body_whose_changes_are_packed_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = list[bytes]()
    monkeypatch.setattr(Piece, "__init__", _noting(packed))
    async with viewing() as bench:
        ask = get("/api/v1/stream", "Authorization: Bearer admin", "Accept-Encoding: gzip")
        async with bench.served.connection() as one, bench.served.connection() as two:
            texts = [_Unpacking(one), _Unpacking(two)]
            for wire in (one, two):
                await wire.send(ask)
            for each in texts:
                await each.until(b"-1\n")
            bench.tell(share("3", "mine"))
            for each in texts:
                await each.until(b"-2\n")
            bench.kept.take({"standby": "the other leads"})
            for each in texts:
                await each.end()
    assert texts[0].text == texts[1].text
    assert (texts[0].text.count(b"event: state"), texts[0].text.count(b"event: delta")) == (1, 1)
    assert [text.count(b"event: delta") for text in packed if b"event: delta" in text] == [1]
    assert sum(b'"kind":"State"' in text for text in packed) == 1


def _noting(made: list[bytes]) -> Any:
    init = Piece.__init__

    def noted(self: Piece, plain: bytes, **more: Any) -> None:
        made.append(plain)
        init(self, plain, **more)

    return noted


class _Unpacking:
    """A client that unpacks its body as it comes, and checks its end."""

    def __init__(self, wire: Wire) -> None:
        self._reader = wire._reader
        self._gzip = zlib.decompressobj(31)
        self.text = b""
        self._has_head = False

    async def until(self, text: bytes) -> None:
        while text not in self.text:
            await self._read()

    async def end(self) -> None:
        while await self._read():
            pass
        assert (self._gzip.eof, self._gzip.unused_data) == (True, b"")

    async def _read(self) -> int:
        async with asyncio.timeout(10):
            if not self._has_head:
                head = await self._reader.readuntil(b"\r\n\r\n")
                self._has_head = b"content-encoding: gzip" in head
                assert self._has_head
            size = int(await self._reader.readline(), 16)
            self.text += self._gzip.decompress((await self._reader.readexactly(size + 2))[:-2])
            return size
