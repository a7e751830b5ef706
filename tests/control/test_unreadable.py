import asyncio
from contextlib import suppress

import pytest

from app.cluster.cache import ClusterCache
from app.control.feed import Feed
from app.model.seam import RawObject, Resource
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import SimulatedCluster
from app.simulation.manifests import Job
from app.telemetry import Metrics
from tests.control.grouped import grouper
from tests.control.wired import passes


async def names_shown(cluster: SimulatedCluster, poison: str) -> set[str]:
    """Follow the cluster while every look at the object called `poison` fails; return the pods that arrive."""
    cache = ClusterCache()

    def look(_: Resource, raw: RawObject) -> None:
        if raw["metadata"]["name"] == poison:
            raise ZeroDivisionError

    feed = Feed(
        cache,
        cluster,
        Metrics(),
        Settings(),
        clock=asyncio.get_running_loop().time,
        on_change=lambda: None,
        on_parked=lambda _: None,
        on_unready=lambda _: None,
        on_object=look,
        grouper=grouper(cache, cluster),
    )
    following = asyncio.create_task(feed.run())
    await feed.synced()
    add_pod(cluster, "late")
    await passes(1)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return {pod.name for pod in cache.pods()}


def add_pod(cluster: SimulatedCluster, name: str) -> None:
    cluster.create(Resource.PODS, manifests.pod(Job(name=name, queue="q")))


@pytest.mark.parametrize("poison", ["first-0", "second-0", "late-0"])
async def test_an_object_that_nobody_can_take_costs_only_itself(poison: str) -> None:
    cluster = SimulatedCluster()
    add_pod(cluster, "first")
    add_pod(cluster, "second")

    assert await names_shown(cluster, poison) == {"first-0", "second-0", "late-0"} - {poison}


async def test_a_pod_without_a_uid_costs_only_itself() -> None:
    cluster = SimulatedCluster()
    add_pod(cluster, "first")
    nameless = manifests.pod(Job(name="nameless", queue="q"))
    nameless["metadata"]["uid"] = None
    cluster.create(Resource.PODS, nameless)

    assert await names_shown(cluster, poison="") == {"first-0", "late-0"}
