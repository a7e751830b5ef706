"""Reviews of rights, versions and kinds, against a fake API server."""

import base64
import json
from pathlib import Path

import pytest

from app.control.leadership.rights import AccessReviews as Asked
from app.kube.client import KubeCluster
from app.kube.errors import BrokenStreamError
from app.kube.reviews import KubeReviews, Version
from app.model.names import NodeName
from app.model.rights import Right, User
from app.model.seam import KubeError
from tests.kube.apiserver import POD, FakeApiServer, kubeconfig, lists, refuses, running, says

EVICT = Right(group="", resource="pods/eviction", verb="create", without="nobody is evicted")
LEASE = Right(
    group="coordination.k8s.io", resource="leases", verb="get", without="x", namespace="leeboard", name="lease"
)


@pytest.fixture
def reviews(cluster: KubeCluster) -> KubeReviews:
    return cluster.reviews()


def test_the_client_implements_the_protocol_of_rights() -> None:
    _: type[Asked] = KubeReviews


@pytest.mark.parametrize("allowed", [True, False])
async def test_one_review_answers_whether_an_action_is_allowed(
    server: FakeApiServer, reviews: KubeReviews, *, allowed: bool
) -> None:
    server.will(says({"status": {"allowed": allowed}}, code=201))

    assert await reviews.allows(LEASE) is allowed

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
    assert seen.body["spec"] == {
        "resourceAttributes": {
            "group": "coordination.k8s.io",
            "resource": "leases",
            "subresource": "",
            "verb": "get",
            "namespace": "leeboard",
            "name": "lease",
        }
    }


async def test_a_subresource_is_reviewed_separately(server: FakeApiServer, reviews: KubeReviews) -> None:
    server.will(says({"status": {"allowed": True}}))

    await reviews.allows(EVICT)

    attributes = server.seen[0].body["spec"]["resourceAttributes"]
    assert (attributes["resource"], attributes["subresource"]) == ("pods", "eviction")


async def test_a_service_account_is_reviewed_with_its_groups(server: FakeApiServer, reviews: KubeReviews) -> None:
    server.will(says({"status": {"allowed": True}}))

    await reviews.allows_account(EVICT, "ns/name")

    (seen,) = server.seen
    assert seen.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert seen.body["spec"]["user"] == "system:serviceaccount:ns:name"
    assert seen.body["spec"]["groups"] == [
        "system:serviceaccounts",
        "system:serviceaccounts:ns",
        "system:authenticated",
    ]


async def test_versions_are_ordered_and_may_have_a_plus(server: FakeApiServer, reviews: KubeReviews) -> None:
    server.will(says({"major": "1", "minor": "9"}), says({"major": "1", "minor": "30+"}))

    older, newer = await reviews.version(), await reviews.version()

    assert (older < newer, str(newer)) == (True, "1.30")
    assert newer == Version(1, 30)


async def test_a_kind_that_is_not_served_has_no_resources_and_no_objects(
    server: FakeApiServer, reviews: KubeReviews
) -> None:
    server.will(refuses(404), refuses(404), refuses(404))

    assert await reviews.served("g/v1") == frozenset()
    assert await reviews.objects("apis/g/v1/things") == []
    assert await reviews.find("apis/g/v1/things/one") is None


async def test_a_collection_is_read_to_its_last_page(server: FakeApiServer, reviews: KubeReviews) -> None:
    first, second = {"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}
    server.will(lists(first, more="tok/en"), lists(second))

    assert await reviews.objects("apis/g/v1/things") == [first, second]
    assert [seen.query["continue"] for seen in server.seen] == ["", "tok/en"]


@pytest.mark.parametrize("nonsense", [b"<html>", [], {}, {"status": None}])
async def test_an_invalid_answer_is_reported_as_such(
    server: FakeApiServer, reviews: KubeReviews, nonsense: object
) -> None:
    server.will(says(nonsense))

    with pytest.raises(BrokenStreamError):
        await reviews.allows(EVICT)


async def test_every_refusal_on_the_connections_of_the_cluster_is_reported(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    told, forbidden = list[bool](), cluster.reviews().forbidden
    server.will(refuses(409), refuses(403), refuses(403))

    for _ in range(3):
        forbidden.clear()
        with pytest.raises(KubeError):
            await cluster.bind(POD, NodeName("n"), {})
        told.append(forbidden.is_set())

    assert told == [False, True, True]


async def test_the_connections_are_closed_with_those_of_the_cluster(tmp_path: Path) -> None:
    async with running() as server:
        server.will(says({"major": "1", "minor": "36"}))
        async with await KubeCluster.connect(str(kubeconfig(server.url, tmp_path))) as cluster:
            own = cluster.reviews()
            assert await own.version() == Version(1, 36)

    with pytest.raises(RuntimeError, match="closed"):
        await own.version()


async def test_every_version_of_every_api_group_is_listed(server: FakeApiServer, reviews: KubeReviews) -> None:
    versions = [{"groupVersion": "g/v1"}, {"groupVersion": "g/v2"}]
    server.will(says({"groups": [{"name": "g", "versions": versions}]}))

    assert await reviews.versions() == {"g": ["g/v1", "g/v2"]}
    assert server.seen[0].path == "/apis"


@pytest.mark.parametrize("nonsense", [{}, {"groups": 5}, {"groups": [{"name": "g"}]}, {"groups": ["g"]}])
async def test_an_answer_without_api_groups_is_an_error(
    server: FakeApiServer, reviews: KubeReviews, nonsense: object
) -> None:
    server.will(says(nonsense))

    with pytest.raises(BrokenStreamError, match="no list of API groups"):
        await reviews.versions()


USER = {"username": "jane", "uid": "7", "groups": ["team"], "extra": {"scope": ["a", "b"]}}


async def test_one_review_answers_to_which_user_a_token_belongs(server: FakeApiServer, reviews: KubeReviews) -> None:
    server.will(says({"status": {"authenticated": True, "user": USER}}, code=201))

    assert await reviews.user_of("secret") == User(
        name="jane", uid="7", groups=("team",), extra=(("scope", ("a", "b")),)
    )

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert seen.body["spec"] == {"token": "secret"}


@pytest.mark.parametrize(
    "status", [{"authenticated": False}, {"error": "expired"}, {"authenticated": "yes", "user": USER}]
)
async def test_a_token_that_the_api_server_does_not_confirm_belongs_to_no_user(
    server: FakeApiServer, reviews: KubeReviews, status: dict[str, object]
) -> None:
    server.will(says({"status": status}, code=201))

    assert await reviews.user_of("secret") is None


def token_for(*audiences: str) -> str:
    said = base64.urlsafe_b64encode(json.dumps({"aud": audiences}).encode()).decode().rstrip("=")
    return f"head.{said}.signature"


@pytest.mark.parametrize(
    ("confirmed", "name"), [(["leeboard.dev"], "jane"), ([], None), (None, None), (["https://api"], None)]
)
async def test_a_token_for_leeboard_alone_needs_an_api_server_that_confirms_this_audience(
    server: FakeApiServer, reviews: KubeReviews, confirmed: list[str] | None, name: str | None
) -> None:
    server.will(says({"status": {"authenticated": True, "user": USER, "audiences": confirmed}}, code=201))

    found = await reviews.user_of(token_for("leeboard.dev", "other"))

    assert (found and found.name) == name
    assert server.seen[0].body["spec"]["audiences"] == ["leeboard.dev"]


@pytest.mark.parametrize(
    "token",
    [
        token_for("https://api"),
        "a.b.c",
        "a.bm90aGluZw.c",
        "a.W10.c",
        "a.eyJhdWQiOiAibGVlYm9hcmQuZGV2In0.c",
        "é.é",
        f"a.{'W1tb' * 4000}.c",
    ],
)
async def test_any_other_token_is_reviewed_for_the_audience_of_the_api_server(
    server: FakeApiServer, reviews: KubeReviews, token: str
) -> None:
    server.will(says({"status": {"authenticated": True, "user": USER}}, code=201))

    assert await reviews.user_of(token) is not None
    assert server.seen[0].body["spec"] == {"token": token}


@pytest.mark.parametrize("answer", [{}, {"status": None}, {"status": {"authenticated": True}}, []])
async def test_an_answer_that_is_no_token_review_confirms_no_user(
    server: FakeApiServer, reviews: KubeReviews, answer: object
) -> None:
    server.will(says(answer, code=201))

    with pytest.raises(BrokenStreamError):
        await reviews.user_of("secret")


async def test_the_rights_of_a_user_are_reviewed_with_all_that_is_known_about_the_user(
    server: FakeApiServer, reviews: KubeReviews
) -> None:
    server.will(says({"status": {"allowed": True}}, code=201))
    user = User(name="jane", uid="7", groups=("team",), extra=(("scope", ("a",)),))

    assert await reviews.allows_user(Right(group="", resource="", verb="get", path="/metrics", without=""), user)

    (seen,) = server.seen
    assert seen.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert seen.body["spec"] == {
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        "user": "jane",
        "uid": "7",
        "groups": ["team"],
        "extra": {"scope": ["a"]},
    }
