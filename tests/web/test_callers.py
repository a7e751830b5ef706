"""The rights to read metrics and the read API: over a real socket, with an API server that the test plays."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest

from app.model.explanation import DecidedPod, Decision, Explanation, Leaver, Outcome, Position, Subject, Why
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.occupancy import NodeUse
from app.model.pod import Pod
from app.model.reason import Reason, Refusal
from app.model.rights import Right, User
from app.model.seam import UnavailableError
from app.model.sentence import Name, say
from app.telemetry import Metrics
from app.web import callers, lists, operations
from app.web.callers import METRICS, PODS, QUEUES, Nobody, Reviewed
from app.web.visits import OnTheSpot
from tests.given import group
from tests.given import pod as given_pod
from tests.occupied import device, node_use, occupant, on
from tests.web.fakes import FakeInspect, FakePulse, Known
from tests.web.served import HttpReply, Served, get, serving

SECRET = "secret"
"""The prefix of every name of the other tenant."""
MINE, THEIRS = "mine", f"{SECRET}-team"


def may_list(namespace: str) -> Right:
    return replace(PODS, namespace=namespace)


@dataclass
class Authority:
    """Knows these tokens and these rights, and counts its calls."""

    rights: Mapping[str, Collection[Right]] = field(default_factory=dict)
    """By the name of the user, which is also their token."""
    down: bool = False
    fails_after: int = 1_000_000
    """The number of reviews of rights that it answers."""
    tokens: list[str] = field(default_factory=list)
    reviews: list[tuple[str, Right]] = field(default_factory=list)

    async def user_of(self, token: str) -> User | None:
        self.tokens.append(token)
        if self.down:
            raise UnavailableError("no API server")
        return User(name=token) if token in self.rights else None

    async def allows_user(self, right: Right, user: User) -> bool:
        if len(self.reviews) == self.fails_after:
            raise UnavailableError("no API server")
        self.reviews.append((user.name, right))
        return right in self.rights[user.name]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


TENANT = {"tenant": {may_list(MINE)}}


@asynccontextmanager
async def answering(
    authority: Authority, inspect: FakeInspect | None = None, clock: Clock | None = None
) -> AsyncIterator[Served]:
    reviewed = Reviewed(authority, OnTheSpot(), clock=clock or Clock())
    app = operations.application(inspect or FakeInspect(), Metrics(), FakePulse(), callers=reviewed)
    async with serving(app) as served:
        yield served


async def asked(served: Served, path: str, token: str = "tenant") -> HttpReply:  # no password
    return await served.ask(get(path, f"Authorization: Bearer {token}"))


@pytest.fixture(autouse=True)
def _without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    # The counts here do not depend on it.
    monkeypatch.setattr(callers, "REST_S", 0.0)


# -- authentication


PATHS = ["/metrics", "/api/v1/queues", "/api/v1/podgroups", "/api/v1/gpus", "/api/v1/pods/a/b", "/api/v1/why/a/b"]


@pytest.mark.parametrize("path", [*PATHS, "/openapi.json", "/nowhere"])
async def test_no_caller_is_answered_without_a_token_even_from_loopback(path: str) -> None:
    async with answering(Authority()) as served:
        reply = await served.ask(get(path))
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert b"kubectl -n leeboard create token" in reply.body


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/readyz/event-loop"])
async def test_health_is_open_to_every_caller(path: str) -> None:
    authority = Authority()
    async with answering(authority) as served:
        assert (await served.ask(get(path))).status == 200
    assert authority.tokens == []


@pytest.mark.parametrize("path", PATHS)
async def test_no_caller_is_answered_where_tokens_cannot_be_reviewed(path: str) -> None:
    app = operations.application(FakeInspect(), Metrics(), FakePulse(), callers=Nobody())
    async with serving(app) as served:
        assert (await asked(served, path)).status == 401


@pytest.mark.parametrize("header", ["Basic eDp5", "Bearer", "Bearer " + "x" * 20_000, "tenant"])
async def test_a_text_that_is_no_token_is_not_sent_for_review(header: str) -> None:
    authority = Authority(TENANT)
    async with answering(authority) as served:
        assert (await served.ask(get("/api/v1/gpus", f"Authorization: {header}"))).status == 401
    assert authority.tokens == []


async def test_a_token_is_reviewed_once_a_minute() -> None:
    authority, clock = Authority(TENANT), Clock()
    async with answering(authority, clock=clock) as served:
        for _ in range(5):
            assert (await asked(served, "/api/v1/podgroups")).status == 200
        assert (authority.tokens, authority.reviews) == (["tenant"], [("tenant", PODS)])
        clock.now = 61.0
        await asked(served, "/api/v1/podgroups")
    assert authority.tokens == ["tenant"] * 2


async def test_many_unknown_tokens_cost_few_reviews_and_block_no_known_caller() -> None:
    authority = Authority(TENANT)
    async with answering(authority) as served:
        await asked(served, "/api/v1/podgroups")
        said = [(await asked(served, "/api/v1/podgroups", f"guess-{number % 50}")).status for number in range(100)]
        assert (await asked(served, "/api/v1/podgroups")).status == 200
    assert set(said) == {401, 429}
    assert len(authority.tokens) == 1 + callers.FAILURES


async def test_unknown_tokens_from_the_same_address_keep_no_known_caller_out_later() -> None:
    authority, clock = Authority(TENANT), Clock()
    async with answering(authority, clock=clock) as served:
        await asked(served, "/api/v1/podgroups")
        clock.now = callers.KNOWN_S + 1
        for number in range(callers.FAILURES + 1):
            flooded = await asked(served, "/api/v1/podgroups", f"guess-{number}")
        assert flooded.status == 429
        assert (await asked(served, "/api/v1/podgroups")).status == 200
        authority.rights = {}
        clock.now += callers.KNOWN_S + 1
        said = [(await asked(served, "/api/v1/podgroups")).status for _ in range(2)]
    assert said == [401, 401]
    assert authority.tokens.count("tenant") == 3


async def test_an_api_server_that_does_not_answer_is_reported() -> None:
    async with answering(Authority(TENANT, down=True)) as served:
        reply = await asked(served, "/api/v1/podgroups")
    assert reply.status == 503
    assert b"no API server" in reply.body


# -- authorization


def pod(name: str, *, namespace: str, gpus: int = 1) -> Pod:
    return replace(given_pod(name, gpus=gpus), namespace=namespace, group=GroupKey(namespace, name))


REFUSAL = Refusal(
    reason=Reason.WAITING_FOR_VICTIMS,
    sentence=say("It waits for {other}.", other=Name(THEIRS, f"{SECRET}-pod")),
    details={"for": say("{other}", other=Name(THEIRS, f"{SECRET}-pod"))},
)
TOLD = Explanation(
    subject=Subject.POD,
    namespace=MINE,
    name="one",
    state="Awaiting",
    why=Why(reason=REFUSAL.reason, sentence=REFUSAL.sentence, details=REFUSAL.details),
    position=Position(ahead_in_queue=1, first=(Name(THEIRS, f"{SECRET}-group"),), ahead=1),
    waits_for=(Leaver(namespace=THEIRS, name=f"{SECRET}-pod", node=NodeName("n1")),),
    decisions=(
        Decision(
            outcome=Outcome.EVICTED,
            group=GroupKey(MINE, "one"),
            generation=1,
            sentence=REFUSAL.sentence,
            pods=(DecidedPod(PodUid("u"), "one"),),
            beneficiary=Name(THEIRS, f"{SECRET}-group"),
        ),
    ),
)
INSPECT = FakeInspect(
    groups=(
        (group(pod("one", namespace=MINE, gpus=1)), REFUSAL),
        (replace(group(pod(f"{SECRET}-pod", namespace=THEIRS, gpus=4)), queue=QueueName(f"{SECRET}-queue")), REFUSAL),
    ),
    known=Known(pod("one", namespace=MINE), refusal=REFUSAL),
    told=TOLD,
    gpus=(
        node_use(
            "a",
            on(device(0), whole=[replace(occupant("one"), namespace=MINE)]),
            on(device(1), replace(occupant(f"{SECRET}-pod", portion=0.5), namespace=THEIRS)),
        ),
    ),
)
READ = [
    "/api/v1/podgroups",
    "/api/v1/gpus",
    "/api/v1/gpus/a",
    f"/api/v1/why/{MINE}/one",
    f"/api/v1/pods/{MINE}/one",
]


@pytest.mark.parametrize("path", READ)
async def test_a_tenant_reads_no_name_of_another_tenant(path: str) -> None:
    async with answering(Authority(TENANT), INSPECT) as served:
        reply = await asked(served, path)
    assert reply.status == 200
    assert SECRET not in reply.body.decode()
    assert "one" in reply.body.decode()


@pytest.mark.parametrize("path", READ)
async def test_a_caller_that_may_list_all_pods_reads_every_name(path: str) -> None:
    async with answering(Authority({"admin": {PODS}}), INSPECT) as served:
        reply = await asked(served, path, "admin")
    assert reply.status == 200
    assert SECRET in reply.body.decode()


async def test_a_podgroup_of_another_tenant_is_shown_as_an_amount() -> None:
    async with answering(Authority(TENANT), INSPECT) as served:
        listed = (await asked(served, "/api/v1/podgroups")).json
    assert isinstance(listed, dict)
    mine, other = listed["items"]
    assert (mine["namespace"], mine["name"]) == (MINE, "one")
    assert (other["namespace"], other["name"], other["queue"]) == ("", "another namespace, 4 GPUs", None)
    assert other["why"] == {
        "reason": "WaitingForVictims",
        "sentence": "Other pods still have to leave the room that is reserved for it.",
        "details": {},
    }


@pytest.mark.parametrize("name", ["one", "nobody"])
@pytest.mark.parametrize("kind", ["why", "pods"])
async def test_the_existence_of_an_object_in_another_namespace_is_not_revealed(kind: str, name: str) -> None:
    async with answering(Authority(TENANT), INSPECT) as served:
        reply = await asked(served, f"/api/v1/{kind}/{THEIRS}/{name}")
    assert reply.status == 403
    assert f"you may not list pods in namespace {THEIRS}" in reply.body.decode()


@pytest.mark.parametrize(
    ("path", "rights", "status"),
    [
        ("/api/v1/queues", {QUEUES}, 200),
        ("/api/v1/queues", {PODS}, 403),
        ("/metrics", {METRICS}, 200),
        ("/metrics", {PODS, QUEUES}, 200),
        ("/metrics", {QUEUES}, 403),
        ("/metrics", {may_list(MINE)}, 403),
    ],
)
async def test_answers_that_name_queues_need_a_right_to_queues(
    path: str, rights: Collection[Right], status: int
) -> None:
    async with answering(Authority({"somebody": rights})) as served:
        assert (await asked(served, path, "somebody")).status == status


async def test_an_answer_with_very_many_namespaces_costs_a_bounded_number_of_reviews() -> None:
    authority = Authority(TENANT)
    many = tuple((group(pod("p", namespace=f"n-{number:04}")), None) for number in range(1000))
    async with answering(authority, FakeInspect(groups=many)) as served:
        reply = await asked(served, "/api/v1/podgroups")
    assert (reply.status, said(reply)) == (200, callers.MORE_NAMESPACES)
    assert len(authority.reviews) == 1 + callers.MOST_NAMESPACES


@pytest.mark.parametrize("path", ["why/{}/x", "pods/{}/x", "podgroups?namespace={}"])
async def test_a_name_that_no_namespace_can_have_is_refused_without_a_review(path: str) -> None:
    authority = Authority(TENANT)
    async with answering(authority) as served:
        reply = await asked(served, f"/api/v1/{path.format('n' * 20_000)}")
    assert isinstance(reply.json, dict)
    assert reply.status == 400
    assert reply.json["detail"].endswith(": no namespace has a name of more than 63 letters")
    assert authority.reviews == []


async def test_an_answer_in_which_all_namespaces_were_reviewed_is_complete() -> None:
    async with answering(Authority(TENANT), INSPECT) as served:
        assert [said(await asked(served, path)) for path in ("/api/v1/podgroups", "/api/v1/gpus")] == [None, None]


def said(reply: HttpReply) -> object:
    assert isinstance(reply.json, dict)
    return reply.json.get("incomplete")


def nodes(count: int, *, namespaces: int = 1) -> FakeInspect:
    def use(number: int) -> NodeUse:
        names = (f"n-{number}-{each}" for each in range(namespaces))
        whole = [replace(occupant("p"), namespace=name) for name in names]
        return node_use(f"a{number:02}", on(device(0), whole=whole))

    return FakeInspect(gpus=tuple(map(use, range(count))))


async def test_a_list_of_gpus_says_that_names_of_some_namespaces_are_not_shown() -> None:
    async with answering(Authority(TENANT), nodes(1, namespaces=300)) as served:
        assert said(await asked(served, "/api/v1/gpus")) == callers.MORE_NAMESPACES


@pytest.mark.parametrize("answered", [0, 1, 5])
async def test_a_list_of_gpus_fails_with_a_message_before_anything_was_sent(answered: int) -> None:
    async with answering(Authority(TENANT, fails_after=answered), nodes(20)) as served:
        reply = await asked(served, "/api/v1/gpus")
    assert reply.status == 503
    assert b"no API server" in reply.body


async def test_a_list_of_gpus_ends_with_a_message_when_the_api_server_fails_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "PART_BYTES", 1)
    async with answering(Authority(TENANT, fails_after=10), nodes(20)) as served, httpx.AsyncClient() as client:
        address = f"http://127.0.0.1:{served.port}/api/v1/gpus"
        reply = await client.get(address, headers={"Authorization": "Bearer tenant"})
    assert reply.status_code == 200
    assert [each["name"] for each in reply.json()["items"]] == [f"a{number:02}" for number in range(8)]
    assert reply.json()["incomplete"].startswith("There are more nodes than this answer can show: the API server")
