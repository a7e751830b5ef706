"""Kinds that are installed in the simulated cluster while it runs."""

import asyncio

import pytest

from app.model.seam import Changed, ConflictError, Deleted, Depth, Listed, Lost, NotFoundError, RawObject, Resource
from app.simulation.cluster import Ref, SimulatedCluster
from tests.simulation.play import cluster_with_node, create_pod

JOBS = "apis/batch/v1/jobs"


def job(name: str, **spec: object) -> RawObject:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def with_jobs() -> SimulatedCluster:
    cluster = SimulatedCluster(now=lambda: 0.0)
    cluster.serve("batch/v1", "Job", JOBS)
    return cluster


def name_of(raw: RawObject) -> str:
    return str(raw["metadata"]["name"])


async def test_a_kind_is_served_once_it_is_installed() -> None:
    cluster = SimulatedCluster()
    before = await cluster.path_of("batch/v1", "Job")

    cluster.serve("batch/v1", "Job", JOBS)

    assert (before, await cluster.path_of("batch/v1", "Job")) == (None, JOBS)


async def test_kinds_that_are_always_there_need_no_installation() -> None:
    cluster = SimulatedCluster()

    assert await cluster.path_of("v1", "Pod") == Resource.PODS.value
    assert await cluster.path_of("scheduling.run.ai/v2alpha2", "PodGroup") == Resource.POD_GROUPS.value


async def test_a_kind_is_watched_from_its_list_on() -> None:
    cluster = with_jobs()
    cluster.create(JOBS, job("early"))
    watch = cluster.follow(JOBS, name_of, depth=Depth.WHOLE)

    events = [await anext(watch)]
    late = cluster.create(JOBS, job("late"))
    cluster.delete(Ref.of(JOBS, late))
    events += [await anext(watch), await anext(watch)]

    assert events == [Listed(["early"]), Changed("late"), Deleted("late")]


async def test_a_kind_that_is_not_installed_is_denied_until_it_is() -> None:
    cluster = SimulatedCluster()
    watch = cluster.follow(JOBS, name_of, depth=Depth.METADATA)
    denied = await anext(watch)

    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    cluster.serve("batch/v1", "Job", JOBS)

    assert denied == Lost("jobs.batch is not installed", denied=True, absent=True)
    assert await waiting == Listed([])


async def test_a_finished_object_is_still_watched() -> None:
    cluster = with_jobs()
    made = cluster.create(JOBS, job("j"))
    watch = cluster.follow(JOBS, name_of, depth=Depth.METADATA)
    await anext(watch)

    cluster.patch(Ref.of(JOBS, made), {"status": {"phase": "Succeeded"}})

    assert await anext(watch) == Changed("j")


async def test_a_client_that_requests_metadata_gets_only_that() -> None:
    cluster = with_jobs()
    made = cluster.create(JOBS, job("j", parallelism=2))

    shallow = await anext(cluster.follow(JOBS, lambda raw: raw, depth=Depth.METADATA))
    read = [await cluster.read_object(JOBS, "ns", "j", depth=depth) for depth in (Depth.METADATA, Depth.WHOLE)]

    assert shallow == Listed([{"metadata": made["metadata"]}])
    assert read == [{"metadata": made["metadata"]}, made]


async def test_a_missing_object_is_read_as_none() -> None:
    assert await with_jobs().read_object(JOBS, "ns", "j", depth=Depth.WHOLE) is None
    assert await SimulatedCluster().read_object(JOBS, "ns", "j", depth=Depth.WHOLE) is None


async def test_objects_are_created_patched_and_deleted() -> None:
    cluster = with_jobs()

    await cluster.create_object(JOBS, "ns", {"metadata": {"name": "j"}, "spec": {"parallelism": 1}})
    (made,) = cluster.objects(JOBS)
    with pytest.raises(ConflictError):
        await cluster.create_object(JOBS, "ns", {"metadata": {"name": "j"}})
    await cluster.amend_object(
        JOBS, "ns", "j", {"metadata": {"uid": made["metadata"]["uid"]}, "spec": {"suspend": True}}
    )
    (amended,) = cluster.objects(JOBS)
    await cluster.remove_object(JOBS, "ns", "j", uid=made["metadata"]["uid"])

    assert (made["metadata"]["namespace"], amended["spec"]) == ("ns", {"parallelism": 1, "suspend": True})
    assert cluster.objects(JOBS) == []


async def test_another_object_of_the_same_name_is_neither_patched_nor_deleted() -> None:
    cluster = with_jobs()
    made = cluster.create(JOBS, job("j"))

    with pytest.raises(NotFoundError):
        await cluster.amend_object(JOBS, "ns", "j", {"metadata": {"uid": "earlier"}, "spec": {"suspend": True}})
    with pytest.raises(NotFoundError):
        await cluster.remove_object(JOBS, "ns", "j", uid="earlier")

    assert cluster.objects(JOBS) == [made]


async def test_pods_may_be_watched_like_any_kind() -> None:
    cluster = cluster_with_node()
    pod = create_pod(cluster)

    assert await anext(cluster.follow("api/v1/pods", name_of, depth=Depth.METADATA)) == Listed([name_of(pod)])
