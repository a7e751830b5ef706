"""The aggregated API over real TLS: only the front proxy is believed, and only about the user of each request."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from app.certificates.authority import CertificateAuthority, Clients
from app.certificates.front_proxy import FrontProxyFollower, FrontProxyTls
from app.client.aggregated_paths import ROOT, aggregated, of_read_api
from app.model.rights import User
from app.model.seam import ForbiddenError, KubeError
from app.telemetry import Metrics
from app.web import operations
from app.web.aggregated import AGGREGATED_CONNECTIONS, AggregatedApi
from app.web.callers import Anybody, Caller, Nobody
from app.web.listener import listener
from app.web.tls import LiveTls
from tests.pem import CLIENT, SERVER, issued
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import HOST, HttpReply, Wire, get
from tests.web.test_tls import authority, connected, signed, trusting

NAME = "front-proxy-client"
HEADERS = {
    "requestheader-username-headers": ["X-Remote-User"],
    "requestheader-uid-headers": ["X-Remote-Uid"],
    "requestheader-group-headers": ["X-Remote-Group"],
    "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
}
JANE = "X-Remote-User: jane"
REFUSED = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


@dataclass
class Published:
    """The ConfigMap of an API server."""

    contents: Mapping[str, str] = field(default_factory=dict)
    error: KubeError | None = None

    async def read_settings(self, namespace: str, name: str) -> Mapping[str, str]:
        assert (namespace, name) == ("kube-system", "extension-apiserver-authentication")
        if self.error:
            raise self.error
        return self.contents

    def publish(self, *authorities: CertificateAuthority, names: Sequence[str] = (NAME,), **other: Any) -> None:
        """Publish the CAs and the names of the front proxy; `other` replaces contents, with `_` for `-`."""
        lists = HEADERS | {"requestheader-allowed-names": [*names]}
        texts = {key: json.dumps(value) for key, value in lists.items()}
        texts["requestheader-client-ca-file"] = b"".join(each.certificate for each in authorities).decode()
        replaced = {key.replace("_", "-"): value for key, value in other.items()}
        self.contents = texts | {key: one if isinstance(one, str) else json.dumps(one) for key, one in replaced.items()}


class Known(Anybody):
    """Records the users that are named, and shows them everything."""

    def __init__(self) -> None:
        self.users: list[User] = []

    def of_user(self, user: User) -> Caller:
        self.users.append(user)
        return self


@dataclass
class Fronted:
    """A listener of the aggregated API, and its front proxy."""

    folder: Path
    port: int
    published: Published
    follower: FrontProxyFollower
    servers: CertificateAuthority
    proxies: CertificateAuthority
    known: Known

    def client(
        self, by: CertificateAuthority | None, name: str = NAME, purpose: x509.ObjectIdentifier = CLIENT
    ) -> ssl.SSLContext:
        """Return a client whose certificate `by` has signed."""
        context = trusting(self.servers)
        if by:
            pair, path = issued(by, name, purpose=purpose), self.folder / "client.pem"
            path.write_bytes(pair.chain + pair.key)
            context.load_cert_chain(path)
        return context

    @asynccontextmanager
    async def connection(self, client: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
        async with connected(self.port, client or self.client(self.proxies)) as (wire, _):
            yield wire

    async def ask(self, *headers: str, path: str = "pending", client: ssl.SSLContext | None = None) -> HttpReply:
        async with self.connection(client) as wire:
            return await asked(wire, *headers, path=path)


async def asked(wire: Wire, *headers: str, path: str = "pending") -> HttpReply:
    await wire.send(get(f"{ROOT}/{path}" if path else ROOT, *headers))
    return await wire.reply()


@pytest.fixture
async def fronted(tmp_path: Path) -> AsyncIterator[Fronted]:
    servers, proxies, published, known = authority(), authority(), Published(), Known()
    published.publish(proxies)
    tls = LiveTls(Clients.CERTIFIED)
    joined = FrontProxyTls(tls)
    joined.use(signed(servers))
    follower = FrontProxyFollower(published, joined)
    await follower.look()
    # Its own callers refuse everybody: whoever is answered has come through the front proxy.
    inner = operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Nobody())
    bound = listener(AggregatedApi(inner, follower, known), HOST, 0, limits=AGGREGATED_CONNECTIONS, tls=tls)
    running = asyncio.create_task(bound.run())
    try:
        yield Fronted(tmp_path, bound.port, published, follower, servers, proxies, known)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


# -- the connection


async def test_the_front_proxy_is_answered(fronted: Fronted) -> None:
    reply = await fronted.ask(JANE)

    assert (reply.status, b"PodGroupList" in reply.body) == (200, True)


async def test_other_clients_cannot_connect(fronted: Fronted) -> None:
    strangers = [
        fronted.client(None),
        fronted.client(authority()),
        fronted.client(fronted.servers),
        fronted.client(fronted.proxies, purpose=SERVER),
    ]
    for stranger in strangers:
        with pytest.raises(REFUSED):
            await fronted.ask(JANE, client=stranger)
    assert fronted.known.users == []


async def test_a_certificate_of_the_same_ca_needs_an_allowed_name(fronted: Fronted) -> None:
    reply = await fronted.ask(JANE, client=fronted.client(fronted.proxies, name="metrics-server"))

    assert (reply.status, fronted.known.users) == (403, [])
    assert b"only the API server may connect here" in reply.body


async def test_any_name_is_allowed_where_none_is_published(fronted: Fronted) -> None:
    fronted.published.publish(fronted.proxies, names=())
    await fronted.follower.look()

    assert (await fronted.ask(JANE, client=fronted.client(fronted.proxies, name="other"))).status == 200


async def test_a_connection_is_believed_as_long_as_its_ca_is_published(fronted: Fronted) -> None:
    next_ones = authority()
    async with fronted.connection() as wire:
        statuses = [(await asked(wire, JANE)).status]
        for published in ((fronted.proxies, next_ones), (next_ones,)):
            fronted.published.publish(*published)
            await fronted.follower.look()
            statuses.append((await asked(wire, JANE)).status)

    assert statuses == [200, 200, 403]
    assert (await fronted.ask(JANE, client=fronted.client(next_ones))).status == 200
    with pytest.raises(REFUSED):
        await fronted.ask(JANE)


async def test_an_allowed_name_that_is_withdrawn_ends_at_once(fronted: Fronted) -> None:
    async with fronted.connection() as wire:
        assert (await asked(wire, JANE)).status == 200
        fronted.published.publish(fronted.proxies, names=("another",))
        await fronted.follower.look()

        assert (await asked(wire, JANE)).status == 403


# -- the user


async def test_the_user_has_the_groups_and_more_that_the_front_proxy_names(fronted: Fronted) -> None:
    groups = [f"team-{number}" for number in range(3000)]
    said = [f"X-Remote-Group: {group}" for group in groups]
    extra = ["X-Remote-Extra-scopes: b", "X-Remote-Extra-Scopes: a", "X-Remote-Extra-example.com%2fkey: Zoë"]

    assert (await fronted.ask(JANE, "X-Remote-Uid: 7", *said, *extra)).status == 200

    more = (("example.com/key", ("Zoë",)), ("scopes", ("b", "a")))
    assert fronted.known.users == [User(name="jane", uid="7", groups=tuple(groups), extra=more)]


async def test_each_request_of_a_connection_has_its_own_user(fronted: Fronted) -> None:
    async with fronted.connection() as wire:
        statuses = [(await asked(wire, *said)).status for said in ((JANE,), ("X-Remote-User: joe",), (), (JANE,))]

    assert statuses == [200, 200, 401, 200]
    assert [user.name for user in fronted.known.users] == ["jane", "joe", "jane"]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("X-Remote-User:",),
        (JANE, "X-Remote-User: admin"),
        ("X-Remote-User: system:anonymous",),
        (JANE, "X-Remote-Group: system:unauthenticated"),
        (JANE, "X-Remote-Uid: 1", "X-Remote-Uid: 2"),
        ("X_Remote_User: admin",),
        ("X-Forwarded-User: admin",),
        ("Authorization: Bearer x", "X-Leeboard-Token: x"),
    ],
    ids=str,
)
async def test_nobody_is_answered_whom_the_front_proxy_does_not_name(
    fronted: Fronted, headers: tuple[str, ...]
) -> None:
    assert ((await fronted.ask(*headers)).status, fronted.known.users) == (401, [])


async def test_headers_that_clients_of_the_api_server_may_set_are_ignored_even_if_published(fronted: Fronted) -> None:
    fronted.published.publish(
        fronted.proxies,
        requestheader_username_headers=["X-Forwarded-User", "x-remote-user"],
        requestheader_group_headers=["X-Forwarded-Group"],
        requestheader_extra_headers_prefix=["X-"],
    )
    await fronted.follower.look()
    smuggled = ["X-Forwarded-User: admin", "X-Forwarded-Group: system:masters", "X-Scopes: all"]

    await fronted.ask(JANE, *smuggled, "X-Remote-Group: unpublished", "X-Remote-Extra-scopes: unpublished")

    assert fronted.known.users == [User(name="jane")]


# -- what the API server publishes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requestheader_client_ca_file": ""}, "it names no CA"),
        ({"requestheader_client_ca_file": "-----BEGIN CERTIFICATE-----"}, "holds a certificate that cannot be read"),
        ({"requestheader_allowed_names": {"a": 1}}, "requestheader-allowed-names is no list of texts"),
        ({"requestheader_allowed_names": "[" * 100_000}, "requestheader-allowed-names is no list of texts"),
        ({"requestheader_username_headers": ["X-User"]}, "does not list x-remote-user"),
    ],
)
async def test_nobody_is_believed_while_no_front_proxy_is_published(
    fronted: Fronted, change: dict[str, Any], says: str
) -> None:
    fronted.published.publish(fronted.proxies, **change)
    await fronted.follower.look()

    assert (await fronted.ask(JANE)).status == 503
    (check,) = fronted.follower.checks()
    assert (check.passed, says in check.degraded) == (True, True)


async def test_a_ca_that_also_signs_users_needs_allowed_names(fronted: Fronted) -> None:
    both = {"client_ca_file": fronted.proxies.certificate.decode()}
    statuses = []
    for names in ((), (NAME,)):
        fronted.published.publish(fronted.proxies, names=names, **both)
        await fronted.follower.look()
        statuses.append((await fronted.ask(JANE)).status)

    assert statuses == [503, 200]


async def test_what_cannot_be_read_at_present_stays_as_it_was(fronted: Fronted) -> None:
    fronted.published.error = ForbiddenError("no right")
    await fronted.follower.look()

    assert (await fronted.ask(JANE)).status == 200
    assert fronted.follower.checks()[0].degraded == ""


async def test_a_missing_right_is_named(tmp_path: Path) -> None:
    del tmp_path
    follower = FrontProxyFollower(Published(error=ForbiddenError("no right")), FrontProxyTls(LiveTls()))
    await follower.look()

    assert follower.checks()[0].degraded.endswith("extension-apiserver-authentication: no right")


# -- the paths


READS = [
    *("/api/v1/queues", "/api/v1/podgroups", "/api/v1/why/a/b", "/api/v1/pods/a/b", "/api/v1/gpus", "/api/v1/gpus/n"),
    *("/api/v1/state", "/api/v1/stream", "/version", "/openapi.json", "/", "/static/main.js"),
]


@pytest.mark.parametrize("path", READS)
def test_every_path_of_the_read_api_is_found_again(path: str) -> None:
    assert of_read_api(aggregated(path).partition("?")[0]) == path
    assert aggregated(f"{path}?a=b").partition("?")[2].endswith("a=b")


def test_namespaces_are_where_rbac_looks_for_them() -> None:
    assert aggregated("/api/v1/why/team/train?kind=pod") == f"{ROOT}/namespaces/team/why/train?kind=pod"


@pytest.mark.parametrize("path", ["metrics", "readyz", "namespaces/a/secrets/b", "why/a/b", "../../../api/v1/queues"])
async def test_nothing_else_can_be_asked(fronted: Fronted, path: str) -> None:
    assert (await fronted.ask(JANE, path=path)).status == 404


async def test_what_only_the_view_answers_says_so_where_there_is_none(fronted: Fronted) -> None:
    for path in ("state", "stream?watch=true", "page", "static/main.js"):
        reply = await fronted.ask(JANE, path=path)
        assert (reply.status, b"view.enabled" in reply.body) == (404, True)


async def test_discovery_lists_no_resources(fronted: Fronted) -> None:
    reply = await fronted.ask("X-Remote-User: system:kube-aggregator", path="")

    assert reply.json == {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "view.leeboard.dev/v1",
        "resources": [],
    }
