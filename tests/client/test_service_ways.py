"""The ways to the service: which token is sent where, and what is said when a way leads nowhere."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from app.client.api_server import ApiServer
from app.client.default_tokens import account_of, default_token, may_be_told
from app.client.http_connection import Connection, Reply
from app.client.kubeconfig import Context, context_of
from app.client.reach_errors import NoReplyError, NotAllowedError, NotAuthenticatedError, ReachError, UnansweredError
from app.client.service_ways import SERVICE, DirectWay, ProxiedWay, Service
from app.model.rights import Right, User
from app.telemetry import Metrics
from app.web import operations
from app.web.callers import Anybody, Callers, Reviewed
from app.web.visits import OnTheSpot
from tests.kube.apiserver import kubeconfig, listening, says, status
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import serving

PATH = "/api/v1/podgroups"
TOKEN = "of-kubeconfig"  # of the tests
PROXY = "/api/v1/namespaces/leeboard/services/leeboard:operations/proxy"


class Vouching:
    """An API server that knows one token."""

    async def user_of(self, token: str) -> User | None:
        return User(name="jane") if token == TOKEN else None

    async def allows_user(self, right: Right, user: User) -> bool:
        del right, user
        return True


@asynccontextmanager
async def answering(callers: Callers) -> AsyncIterator[str]:
    async with serving(operations.application(FakeInspect(), Metrics(), FakePulse(), callers=callers)) as served:
        yield served.url


def reviewed() -> Callers:
    return Reviewed(Vouching(), OnTheSpot(), clock=lambda: 0.0)


def context(folder: Path, url: str = "https://127.0.0.1:1", token: str = TOKEN) -> Context:
    found = context_of(str(kubeconfig(url, folder, token=token)))
    assert found is not None
    return found


def direct(url: str, *, of: Context | None = None, token: str | None = None) -> DirectWay:
    return DirectWay(url, token=token, context=lambda: of, timeout_s=5.0)


async def asked(*ways: DirectWay | ProxiedWay) -> bytes:
    return await asyncio.to_thread(Service(*ways).ask, PATH)


# -- the address of the service


async def test_the_token_of_the_kubeconfig_is_sent_over_a_forwarded_port(tmp_path: Path) -> None:
    async with answering(reviewed()) as url:
        assert b"PodGroupList" in await asked(direct(url, of=context(tmp_path)))


async def test_an_explicit_token_has_precedence(tmp_path: Path) -> None:
    async with answering(reviewed()) as url:
        with pytest.raises(NotAuthenticatedError, match=r"does not know this token.*send another one"):
            await asked(direct(url, of=context(tmp_path), token="other"))  # of the test


async def test_a_token_that_has_expired_is_read_again(tmp_path: Path) -> None:
    of = context(tmp_path, token="expired")  # of the test
    async with answering(reviewed()) as url:
        way = direct(url, of=of)
        with pytest.raises(NotAuthenticatedError):
            await asked(way)
        (tmp_path / "token").write_text(TOKEN)

        assert b"PodGroupList" in await asked(way)


async def test_a_caller_without_a_token_gets_advice_how_to_get_one() -> None:
    async with answering(reviewed()) as url:
        with pytest.raises(NotAuthenticatedError, match=r"create token leeboard-reader.*which has none"):
            await asked(direct(url))


async def test_no_token_is_needed_where_everything_is_public() -> None:
    async with answering(Anybody()) as url:
        assert await asked(direct(url))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://[::1]:8080", True),
        ("https://leeboard.example.com", True),
        ("http://leeboard.example.com", False),
        ("http://192.0.2.1:8080", False),
        ("http://127.0.0.1.example.com", False),
    ],
)
def test_our_own_token_is_sent_only_where_no_other_process_reads_it(tmp_path: Path, url: str, *, told: bool) -> None:
    assert may_be_told(url) is told
    assert default_token(url, lambda: context(tmp_path)) == (TOKEN if told else "")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"detail"', b"[]"])
async def test_a_port_of_something_else_is_said_to_be_so(body: bytes) -> None:
    async with listening(says(body, code=404)) as url:
        with pytest.raises(NoReplyError, match=f"{url} is not Leeboard's operations port"):
            await asked(direct(url))


@pytest.mark.parametrize(
    ("code", "kind", "says_what"),
    [
        (403, NotAllowedError, r"cannot tell: so it is$"),
        (400, UnansweredError, r"gave no answer \(400 Bad Request\): so it is$"),
        (429, UnansweredError, r"gave no answer \(429 Too Many Requests\): so it is; try again in some seconds$"),
        (502, UnansweredError, r"gave no answer \(502 Bad Gateway\): so it is; try again in some seconds$"),
        (503, UnansweredError, r"gave no answer \(503 Service Unavailable\): so it is; try again in some seconds$"),
    ],
)
async def test_what_the_service_refuses_is_said_as_what_it_is_and_no_other_way_is_asked(
    code: int, kind: type[ReachError], says_what: str
) -> None:
    async with listening(says({"detail": "so it is"}, code=code)) as url, answering(Anybody()) as other:
        with pytest.raises(kind, match=says_what):
            await asked(direct(url), direct(other))


async def test_a_gateway_before_the_service_that_reaches_nobody_is_said_to_be_so() -> None:
    async with listening(says(b"<html>no upstream</html>", code=502)) as url:
        with pytest.raises(NoReplyError, match=f"^{url} gave no answer: 502 Bad Gateway; try again in some seconds$"):
            await asked(direct(url))


# -- the proxy of the API server


class ProxyingServer:
    """An API server that proxies to the service, as a real one does: without the Authorization header."""

    def __init__(self, *, accepts: str, may_create_tokens: bool = False) -> None:
        self.accepts = accepts
        self.may_create_tokens = may_create_tokens
        self.tokens: list[str] = []
        self.audiences: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            if not self.may_create_tokens:
                return await says(status(403), code=403)(request)
            self.audiences = (await request.json())["spec"]["audiences"]
            return await says({"status": {"token": f"for-{request.path.rpartition('/serviceaccounts/')[2]}"}})(request)
        assert request.path == PROXY + PATH
        self.tokens.append(request.headers.get("X-Leeboard-Token", ""))
        if self.tokens[-1] == self.accepts:
            return await says({"kind": "PodGroupList"})(request)
        return await says({"detail": "who are you?"}, code=401)(request)


def token_of(account: str) -> str:
    """Build a token as the API server gives it to a service account."""
    parts = ({"alg": "none"}, {"sub": f"system:serviceaccount:{account}"})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts), ""])


def proxied(of: Context, *, token: str | None = None) -> ProxiedWay:
    return ProxiedWay(ApiServer(of, timeout_s=5.0), service=SERVICE, token=token)


async def test_through_the_api_server_the_token_travels_in_a_header_of_ours(tmp_path: Path) -> None:
    server = ProxyingServer(accepts=TOKEN)
    async with listening(server.answer) as url:
        assert b"PodGroupList" in await asked(proxied(context(tmp_path, url)))
        assert b"PodGroupList" in await asked(proxied(context(tmp_path, url, token=""), token=f" {TOKEN}\n"))

    assert server.tokens == [TOKEN, TOKEN]


async def test_a_service_account_sends_a_token_for_the_service_alone_if_it_may_make_one(tmp_path: Path) -> None:
    server = ProxyingServer(accepts="for-robot/token", may_create_tokens=True)
    async with listening(server.answer) as url:
        way = proxied(context(tmp_path, url, token=token_of("team:robot")))
        assert [b"PodGroupList" in await asked(way) for _ in range(2)] == [True, True]

    assert (server.tokens, server.audiences) == (["for-robot/token"] * 2, ["leeboard.dev"])


@pytest.mark.parametrize(
    ("may_create_tokens", "sent"),
    [(True, ["for-robot/token", token_of("team:robot")]), (False, [token_of("team:robot")])],
)
async def test_a_service_account_sends_its_own_token_where_no_other_is_accepted(
    tmp_path: Path, sent: list[str], *, may_create_tokens: bool
) -> None:
    own = token_of("team:robot")
    server = ProxyingServer(accepts=own, may_create_tokens=may_create_tokens)
    async with listening(server.answer) as url:
        way = proxied(context(tmp_path, url, token=own))
        assert [b"PodGroupList" in await asked(way) for _ in range(2)] == [True, True]

    assert server.tokens == [*sent, own]


async def test_a_user_with_a_certificate_is_told_how_to_get_a_token(tmp_path: Path) -> None:
    async with listening(ProxyingServer(accepts=TOKEN).answer) as url:
        with pytest.raises(NotAuthenticatedError, match=r"your context has no token; send one .*create token"):
            await asked(proxied(context(tmp_path, url, token="")))


@pytest.mark.parametrize(
    ("code", "kind", "says_what"),
    [
        (
            403,
            NotAllowedError,
            r"you have no right to ask Leeboard .*services/proxy of leeboard:operations in namespace leeboard\); ask",
        ),
        (404, NoReplyError, "there is no Service .*--service NAMESPACE/NAME:PORT"),
        (503, NoReplyError, r"does not answer: no; do its pods run\? kubectl -n leeboard get pods"),
        (401, NotAuthenticatedError, "the API server does not know you: no; log in again"),
    ],
)
async def test_what_the_api_server_refuses_is_said_with_what_to_do(
    tmp_path: Path, code: int, kind: type[ReachError], says_what: str
) -> None:
    async with listening(says(status(code), code=code)) as url:
        with pytest.raises(kind, match=says_what):
            await asked(proxied(context(tmp_path, url)))


async def test_a_dead_api_server_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def ask(_connection: Connection, _method: str, path: str, *_: object) -> Reply:
        tried.append(path)
        raise TimeoutError("timed out")

    monkeypatch.setattr(Connection, "ask", ask)
    server = ApiServer(context(tmp_path), timeout_s=5.0)

    for path in ("/first", "/second"):
        with pytest.raises(NoReplyError, match="does not answer: timed out"):
            server.get(path)
    assert tried == ["/first"]


async def test_where_the_first_way_leads_nowhere_the_next_is_taken(tmp_path: Path) -> None:
    nowhere = proxied(context(tmp_path))
    async with answering(Anybody()) as url:
        assert b"PodGroupList" in await asked(nowhere, direct(url))
    with pytest.raises(NoReplyError, match=r"^the API server https://127.0.0.1:1 does not answer: .*--context"):
        await asked(nowhere, direct("http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("token", "account"),
    [
        (token_of("team:robot"), ("team", "robot")),
        (token_of("robot"), None),
        ("opaque", None),
        ("a.b.c", None),
        ("", None),
        (f"a.{base64.urlsafe_b64encode(b'7').decode()}.c", None),
    ],
)
def test_only_the_token_of_a_service_account_names_one(token: str, account: tuple[str, str] | None) -> None:
    assert account_of(token) == account
