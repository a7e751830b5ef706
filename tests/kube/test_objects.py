"""Objects of any kind against a fake API server: their paths, the requested form, and the writes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from app.kube.access import Credentials
from app.kube.client import KubeCluster
from app.kube.discovery import ASK_AGAIN_S, Discovery
from app.kube.errors import BrokenStreamError
from app.kube.transport import Transport
from app.model.seam import Changed, Depth, ForbiddenError, KubeError, Listed, Lost, RawObject, WatchEvent
from tests.kube.apiserver import (
    BRIEF,
    FakeApiServer,
    Pauses,
    kubeconfig,
    line,
    lists,
    pod,
    refuses,
    says,
    streams,
    whole,
)
from tests.kube.test_watch import hang

JOBS = "apis/batch/v1/jobs"
PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
A = line("ADDED", pod("a", "11"))


def serves(*names: str, verbs: tuple[str, ...] = ("get", "list", "watch")) -> object:
    """Build the discovery answer about an API version: a kind is its plural's first letters, capitalised."""
    return {"resources": [{"name": name, "kind": name.removesuffix("s").title(), "verbs": verbs} for name in names]}


async def first(count: int, events: AsyncGenerator[WatchEvent[RawObject], None]) -> list[WatchEvent[RawObject]]:
    async with asyncio.timeout(5), aclosing(events):
        return [await anext(events) for _ in range(count)]


def denials(events: list[WatchEvent[RawObject]]) -> list[bool]:
    return [event.denied for event in events if isinstance(event, Lost)]


# -- where a kind is served


async def test_all_kinds_of_an_api_version_are_found_by_one_request(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(says(serves("jobs", "jobs/status", "cronjobs")), says(serves("nodes")))

    found = [await cluster.path_of("batch/v1", kind) for kind in ("Job", "Cronjob")]
    found.append(await cluster.path_of("v1", "Node"))

    assert found == [JOBS, "apis/batch/v1/cronjobs", "api/v1/nodes"]
    assert [seen.path for seen in server.seen] == ["/apis/batch/v1", "/api/v1"]


async def test_a_subresource_does_not_make_a_kind_served(server: FakeApiServer, cluster: KubeCluster) -> None:
    scale = {"name": "jobs/scale", "kind": "Job", "verbs": ["get", "list", "watch"]}
    server.will(says({"resources": [*serves("jobs")["resources"], scale]}))  # type: ignore[index] # a mapping

    assert await cluster.path_of("batch/v1", "Job") == JOBS


async def test_a_kind_that_cannot_be_watched_is_not_served(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(says(serves("bindings", verbs=("create",))))

    assert await cluster.path_of("v1", "Binding") is None


@pytest.mark.parametrize("version", ["", "/", "../v1", "a/b/v1", "batch/v1?x", "Batch/v1", "batch/", "v1/pods/../x"])
async def test_a_reference_without_a_kind_is_not_followed(
    server: FakeApiServer, cluster: KubeCluster, version: str
) -> None:
    server.will(says(serves("jobs")))

    assert await cluster.path_of(version, "Job") is None
    assert server.seen == []


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"resources": 5}', b'{"resources": [{"name": "jobs"}]}'])
async def test_a_discovery_answer_without_kinds_is_no_answer(
    server: FakeApiServer, cluster: KubeCluster, answer: bytes
) -> None:
    server.will(says(answer), says(serves("jobs")))

    with pytest.raises(BrokenStreamError, match="does not say what batch/v1 serves"):
        await cluster.path_of("batch/v1", "Job")
    assert await cluster.path_of("batch/v1", "Job") == JOBS


async def test_a_kind_that_is_not_served_is_requested_again_after_a_time(server: FakeApiServer, tmp_path: Path) -> None:
    times = [0.0]
    async with discovering(server, tmp_path, lambda: times[0]) as discovery:
        server.will(refuses(404), says(serves("rayjobs")))
        found = [await discovery.path_of("ray.io/v1", "Rayjob")]
        times[0] = ASK_AGAIN_S - 1
        found.append(await discovery.path_of("ray.io/v1", "Rayjob"))
        times[0] = ASK_AGAIN_S
        found.append(await discovery.path_of("ray.io/v1", "Rayjob"))
        times[0] = ASK_AGAIN_S * 9
        found.append(await discovery.path_of("ray.io/v1", "Rayjob"))

    assert found == [None, None, "apis/ray.io/v1/rayjobs", "apis/ray.io/v1/rayjobs"]
    assert len(server.seen) == 2


async def test_many_callers_at_once_make_one_request(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(says(serves("jobs")))

    found = await asyncio.gather(*(cluster.path_of("batch/v1", "Job") for _ in range(20)))

    assert (set(found), len(server.seen)) == ({JOBS}, 1)


@asynccontextmanager
async def discovering(server: FakeApiServer, folder: Path, clock: Callable[[], float]) -> AsyncIterator[Discovery]:
    """Discover over connections of its own."""
    credentials = Credentials(kubeconfig=str(kubeconfig(server.url, folder)))
    transport = Transport(credentials, await credentials.read(), BRIEF)
    yield Discovery(transport, clock=clock)
    await transport.close()


# -- following


async def test_only_metadata_is_requested_in_lists_and_watches(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(pod("x")), streams(A, then=hang))

    events = await first(2, cluster.follow(JOBS, whole, depth=Depth.METADATA))

    assert events == [Listed([pod("x")]), Changed(pod("a", "11"))]
    assert [seen.headers["Accept"] for seen in server.seen] == [PARTIAL.format("List"), PARTIAL.format("")]
    assert {seen.path for seen in server.seen} == {f"/{JOBS}"}


async def test_whole_objects_are_requested_like_any_others(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), streams(A, then=hang))

    await first(2, cluster.follow(JOBS, whole, depth=Depth.WHOLE))

    assert {seen.headers["Accept"] for seen in server.seen} == {"application/json"}


async def test_a_kind_that_is_not_installed_is_denied_at_once_and_found_later(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    server.will(refuses(404), lists())

    events = await first(2, cluster.follow(JOBS, whole, depth=Depth.METADATA))

    assert events == [Lost("jobs.batch is not installed", denied=True, absent=True), Listed([])]
    assert all(10 <= pause <= 30 for pause in pauses)


async def test_a_kind_that_may_not_be_read_is_denied_when_that_is_sure(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses
) -> None:
    # For a moment a new API server knows neither roles nor custom kinds.
    server.will(*[refuses(403, "jobs is forbidden")] * 4, lists())

    events = await first(5, cluster.follow(JOBS, whole, depth=Depth.METADATA))

    assert denials(events) == [False, False, True, True]
    assert events[-1] == Listed([])
    assert max(pauses[:2]) < 1
    assert all(10 <= pause <= 30 for pause in pauses[2:])


@pytest.mark.parametrize("code", [403, 404])
async def test_a_kind_that_is_uninstalled_is_denied_when_that_is_sure(
    server: FakeApiServer, cluster: KubeCluster, pauses: Pauses, code: int
) -> None:
    server.will(lists(), streams(A), *[refuses(code)] * 3)

    events = await first(5, cluster.follow(JOBS, whole, depth=Depth.METADATA))

    assert denials(events) == [False, False, True]
    assert max(pauses) < 10


async def test_a_kind_that_may_be_listed_and_not_watched_is_denied_when_that_is_sure(
    server: FakeApiServer, cluster: KubeCluster
) -> None:
    server.will(lists(), *[refuses(403)] * 3)

    assert denials(await first(4, cluster.follow(JOBS, whole, depth=Depth.WHOLE))) == [False, False, True]


async def test_an_unavailable_api_server_denies_nothing(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(lists(), *[refuses(503)] * 4, refuses(403), refuses(503), refuses(403), refuses(403))

    assert denials(await first(9, cluster.follow(JOBS, whole, depth=Depth.METADATA))) == [False] * 8


async def test_an_expired_token_denies_nothing(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(*[refuses(401)] * 8)

    assert denials(await first(4, cluster.follow(JOBS, whole, depth=Depth.METADATA))) == [False] * 4


async def test_unreadable_owners_do_not_count_as_a_missing_right(server: FakeApiServer, cluster: KubeCluster) -> None:
    forbidden = cluster.reviews().forbidden
    server.will(refuses(403), refuses(403), refuses(403), refuses(403), refuses(403))

    await first(1, cluster.follow(JOBS, whole, depth=Depth.METADATA))
    for depth in Depth:
        with pytest.raises(ForbiddenError):
            await cluster.read_object(JOBS, "ns", "j", depth=depth)
    with pytest.raises(ForbiddenError):
        await cluster.path_of("batch/v1", "Job")
    assert not forbidden.is_set()

    with pytest.raises(ForbiddenError):
        await cluster.create_object(JOBS, "ns", {})
    assert forbidden.is_set()


# -- one object


async def test_one_object_is_read_in_the_requested_form(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(says(pod("j")), says(pod("n")), refuses(404))

    found = [
        await cluster.read_object(JOBS, "ns", "j", depth=Depth.METADATA),
        await cluster.read_object("api/v1/nodes", "", "n", depth=Depth.WHOLE),
        await cluster.read_object(JOBS, "ns", "../j", depth=Depth.WHOLE),
    ]

    assert found == [pod("j"), pod("n"), None]
    assert [seen.headers["Accept"] for seen in server.seen[:2]] == [PARTIAL.format(""), "application/json"]
    assert [seen.path for seen in server.seen[:2]] == ["/apis/batch/v1/namespaces/ns/jobs/j", "/api/v1/nodes/n"]


@pytest.mark.parametrize("answer", [b"{", b"[]", b"null"])
async def test_an_answer_that_is_no_object_is_an_error(
    server: FakeApiServer, cluster: KubeCluster, answer: bytes
) -> None:
    server.will(says(answer))

    with pytest.raises(BrokenStreamError, match="no object"):
        await cluster.read_object(JOBS, "ns", "j", depth=Depth.WHOLE)


async def test_objects_are_created_patched_and_deleted(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(*[says({})] * 3)
    change = {"metadata": {"uid": "u"}, "spec": {"minMember": 2}}

    await cluster.create_object(JOBS, "ns", pod("j"))
    await cluster.amend_object(JOBS, "ns", "j", change)
    await cluster.remove_object(JOBS, "ns", "j", uid="u")

    place = "/apis/batch/v1/namespaces/ns/jobs"
    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("POST", place),
        ("PATCH", f"{place}/j"),
        ("DELETE", f"{place}/j"),
    ]
    assert server.seen[1].headers["Content-Type"] == "application/merge-patch+json"
    assert [seen.body for seen in server.seen] == [
        pod("j"),
        change,
        {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": "u"},
        },
    ]


async def test_a_refused_write_raises_an_error_of_the_protocol(server: FakeApiServer, cluster: KubeCluster) -> None:
    server.will(refuses(409), refuses(404), refuses(409, "Precondition failed: UID in precondition: u"))
    errors = []

    for write in (
        cluster.create_object(JOBS, "ns", {}),
        cluster.amend_object(JOBS, "ns", "j", {}),
        cluster.remove_object(JOBS, "ns", "j", uid="u"),
    ):
        with pytest.raises(KubeError) as raised:
            await write
        errors.append(type(raised.value).__name__)

    assert errors == ["ConflictError", "NotFoundError", "NotFoundError"]
