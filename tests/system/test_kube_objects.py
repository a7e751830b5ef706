"""`app.kube` on a real kube-apiserver: it follows, reads and writes kinds that were not known beforehand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from random import Random

import pytest

from app.kube.access import Credentials
from app.kube.client import KubeCluster
from app.kube.transport import Transport, TransportLimits
from app.model.seam import (
    Changed,
    ConflictError,
    Deleted,
    Depth,
    ForbiddenError,
    Listed,
    Lost,
    NotFoundError,
    RawObject,
    WatchEvent,
)
from tests.kube.apiserver import whole
from tests.system.api import Api, Object
from tests.system.bed import Bed
from tests.system.cluster import apply_all
from tests.system.identities import User
from tests.system.tenants import allow, revoke, subject

GROUP = "owners.example.com"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TRAININGS = f"apis/{GROUP}/v1/trainings"
FOUND_WITHIN_S = 60.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""


def crd(plural: str, kind: str, *, scope: str = "Namespaced") -> Object:
    """Build a kind whose objects may contain anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def training(name: str, **spec: object) -> RawObject:
    metadata = {"name": name, "labels": {"kai.scheduler/queue": "q"}}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Training", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def installed(session_api: Api) -> Iterator[Api]:
    """Install a namespaced kind: a name that is installed again is sometimes refused for a while."""
    apply_all(session_api, [crd("trainings", "Training")])
    yield session_api
    session_api.delete(f"{CRDS}/trainings.{GROUP}")


@pytest.fixture
def trainings(installed: Api) -> Iterator[Api]:
    """Yield it to one test."""
    yield installed
    installed.empty(f"/{TRAININGS}")


@asynccontextmanager
async def connected(bed: Bed, user: User = User.ADMIN) -> AsyncIterator[KubeCluster]:
    """Connect as this user; retries happen at once instead of after half a minute."""
    credentials = Credentials(kubeconfig=str(bed.kubeconfig(user)))
    transport = Transport(credentials, await credentials.read(), TransportLimits())
    async with KubeCluster(transport, sleep=lambda _: asyncio.sleep(0.05), chance=Random(1)) as cluster:
        yield cluster


async def until(
    wanted: Callable[[WatchEvent[RawObject]], bool], events: AsyncGenerator[WatchEvent[RawObject], None]
) -> WatchEvent[RawObject]:
    async with asyncio.timeout(FOUND_WITHIN_S):
        async for event in events:
            if wanted(event):
                return event
    raise AssertionError("a watch does not end")


def is_listed(event: WatchEvent[RawObject]) -> bool:
    return isinstance(event, Listed)


def is_denied(event: WatchEvent[RawObject]) -> bool:
    return isinstance(event, Lost) and event.denied


def is_news(event: WatchEvent[RawObject]) -> bool:
    return isinstance(event, Changed | Deleted)


async def test_kinds_are_found_where_they_are_served(bed: Bed, trainings: Api) -> None:
    assert trainings.find(f"{CRDS}/trainings.{GROUP}")
    wanted = [("apps/v1", "Deployment"), ("v1", "Node"), (f"{GROUP}/v1", "Training"), ("v1", "Binding"), ("x/v1", "X")]

    async with connected(bed) as cluster:
        found = [await cluster.path_of(*kind) for kind in wanted]

    assert found == ["apis/apps/v1/deployments", "api/v1/nodes", TRAININGS, None, None]


async def test_a_client_that_requests_metadata_gets_nothing_else(bed: Bed, trainings: Api) -> None:
    async with (
        connected(bed) as cluster,
        aclosing(cluster.follow(TRAININGS, whole, depth=Depth.METADATA)) as events,
    ):
        await cluster.create_object(TRAININGS, "default", training("early", secret="listed"))
        listed = await until(is_listed, events)
        await cluster.create_object(TRAININGS, "default", training("late", secret="watched"))
        seen = [await until(is_news, events)]
        trainings.delete(f"/apis/{GROUP}/v1/namespaces/default/trainings/late")
        seen.append(await until(is_news, events))
        read = await cluster.read_object(TRAININGS, "default", "early", depth=Depth.METADATA)
        in_full = await cluster.read_object(TRAININGS, "default", "early", depth=Depth.WHOLE)

    assert isinstance(listed, Listed)
    shown = [*listed.objects, *(event.object for event in seen if isinstance(event, Changed | Deleted)), read]
    assert [each["metadata"]["name"] for each in shown if each] == ["early", "late", "late", "early"]
    assert [each for each in shown if each and "spec" in each] == []
    assert shown[0]["metadata"]["labels"] == {"kai.scheduler/queue": "q"}  # type: ignore[index] # it is there
    assert in_full is not None
    assert in_full["spec"] == {"secret": "listed"}


async def test_a_kind_that_is_installed_later_is_watched_from_then_on(bed: Bed, api: Api) -> None:
    path = f"apis/{GROUP}/v1/sites"
    async with connected(bed) as cluster, aclosing(cluster.follow(path, whole, depth=Depth.METADATA)) as events:
        denied = await until(is_denied, events)

        await asyncio.to_thread(apply_all, api, [crd("sites", "Site", scope="Cluster")])
        try:
            listed = await until(is_listed, events)
            site = {"apiVersion": f"{GROUP}/v1", "kind": "Site", "metadata": {"name": "north"}}
            await cluster.create_object(path, "", site)
            news = await until(is_news, events)
        finally:
            api.delete(f"{CRDS}/sites.{GROUP}")
        gone = await until(is_denied, events)

    assert denied == gone == Lost(f"sites.{GROUP} is not installed", denied=True, absent=True)
    assert listed == Listed([])
    assert isinstance(news, Changed)
    assert news.object["metadata"]["name"] == "north"


async def test_a_kind_that_may_not_be_read_is_denied_until_it_may(bed: Bed, trainings: Api) -> None:
    name = "tenant-reads-trainings"
    async with (
        connected(bed, User.TENANT) as tenant,
        aclosing(tenant.follow(TRAININGS, whole, depth=Depth.METADATA)) as events,
    ):
        denied = await until(is_denied, events)
        with pytest.raises(ForbiddenError):
            await tenant.read_object(TRAININGS, "default", "t", depth=Depth.METADATA)

        allow(trainings, name, subject(User.TENANT), group=GROUP, resource="trainings", verbs=["list", "watch"])
        try:
            listed = await until(is_listed, events)
        finally:
            revoke(trainings, name)

    assert isinstance(denied, Lost)
    assert 'cannot list resource "trainings"' in denied.cause
    assert listed == Listed([])


async def test_writes_apply_only_to_the_object_that_was_meant(bed: Bed, trainings: Api) -> None:
    place = f"/apis/{GROUP}/v1/namespaces/default/trainings"
    async with connected(bed) as cluster:
        await cluster.create_object(TRAININGS, "default", training("t", workers=1))
        uid = trainings.get(f"{place}/t")["metadata"]["uid"]

        with pytest.raises(ConflictError):
            await cluster.create_object(TRAININGS, "default", training("t"))
        for write in (
            cluster.amend_object(TRAININGS, "default", "t", {"metadata": {"uid": "earlier"}, "spec": {"workers": 9}}),
            cluster.remove_object(TRAININGS, "default", "t", uid="earlier"),
            cluster.amend_object(TRAININGS, "default", "absent", {"spec": {}}),
        ):
            with pytest.raises(NotFoundError):
                await write
        await cluster.amend_object(TRAININGS, "default", "t", {"metadata": {"uid": uid}, "spec": {"workers": 2}})
        amended = trainings.get(f"{place}/t")
        await cluster.remove_object(TRAININGS, "default", "t", uid=uid)

    assert amended["spec"] == {"workers": 2}
    assert trainings.find(f"{place}/t") is None
