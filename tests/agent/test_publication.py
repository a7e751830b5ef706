"""When a report is sent, its contents, and the retries after a refusal."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from app.agent.publication import Publication, Rhythm
from app.agent.report import status_of
from app.model.seam import ConflictError, ForbiddenError, KubeError, NotFoundError, UnavailableError
from tests.agent.seen import device, sight, using

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
RHYTHM = Rhythm(memory_s=10.0, heartbeat_s=60.0)


class FakeGpuNodes:
    """The API server's GpuNodes, which merges patches as it does."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.refusals: list[KubeError] = []
        self.writes = 0

    async def create(self, body: Mapping[str, Any]) -> None:
        name = body["metadata"]["name"]
        if name in self.stored:
            raise ConflictError("there is one")
        self.stored[name] = {}

    async def patch_status(self, name: str, body: Mapping[str, Any]) -> None:
        self.writes += 1
        if self.refusals:
            raise self.refusals.pop()
        if name not in self.stored:
            raise NotFoundError("there is none")
        merge(self.stored[name], body)


def merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@pytest.fixture
def gpu_nodes() -> FakeGpuNodes:
    return FakeGpuNodes()


@pytest.fixture
def publication(gpu_nodes: FakeGpuNodes) -> Publication:
    return Publication("n", gpu_nodes, RHYTHM, chance=Random(1), now=lambda: NOON)


async def test_the_first_report_creates_the_gpunode(publication: Publication, gpu_nodes: FakeGpuNodes) -> None:
    assert publication.due_in_s(using(5), 100.0) == 0

    await publication.publish(using(5), 100.0)

    assert gpu_nodes.stored == {"n": {"status": {**using(5), "observedAt": "2026-01-02T12:00:00Z"}}}


async def test_outdated_fields_are_removed(publication: Publication, gpu_nodes: FakeGpuNodes) -> None:
    await publication.publish(status_of(sight(message="no driver")), 0.0)
    await publication.publish(status_of(sight(device())), 1.0)

    assert gpu_nodes.stored["n"]["status"] == {
        **status_of(sight(device())),
        "observedAt": "2026-01-02T12:00:00Z",
    }


async def test_a_driver_that_is_gone_leaves_no_healthy_summary(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    await publication.publish(status_of(sight(replace(device(), product="A"))), 0.0)
    assert gpu_nodes.stored["n"]["status"]["summary"] == {"health": "Healthy", "products": "A"}

    await publication.publish(status_of(sight(device())), 1.0)
    assert gpu_nodes.stored["n"]["status"]["summary"] == {"health": "Healthy"}

    await publication.publish(status_of(sight(message="no driver")), 2.0)
    assert "summary" not in gpu_nodes.stored["n"]["status"]


async def test_an_unchanged_report_waits_for_the_heartbeat_whose_interval_varies(
    publication: Publication,
) -> None:
    waits = []
    for number in range(20):
        await publication.publish(using(5), 1000.0 * number)
        waits.append(publication.due_in_s(using(5), 1000.0 * number))

    assert all(54.0 <= wait_s <= 66.0 for wait_s in waits)
    assert max(waits) - min(waits) > 5.0


async def test_changes_of_memory_are_delayed_and_all_others_are_not(publication: Publication) -> None:
    await publication.publish(using(0), 100.0)

    assert publication.due_in_s(using(500), 103.0) == 7.0
    assert publication.due_in_s(using(500), 110.0) == 0
    assert publication.due_in_s(using(0, a=1), 100.0) == 0


async def test_a_deleted_gpunode_is_created_again(publication: Publication, gpu_nodes: FakeGpuNodes) -> None:
    await publication.publish(using(0), 0.0)
    gpu_nodes.stored.clear()

    await publication.publish(using(0), 60.0)

    assert list(gpu_nodes.stored) == ["n"]


async def test_a_gpunode_that_another_client_created_first_is_no_failure(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    gpu_nodes.stored["n"] = {}
    gpu_nodes.refusals = [NotFoundError("not yet")]

    await publication.publish(using(0), 0.0)

    assert gpu_nodes.stored["n"]["status"]["devices"] == using(0)["devices"]


async def test_a_refused_write_is_retried_less_and_less_often(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    waits = []
    for _ in range(8):
        gpu_nodes.refusals = [ForbiddenError("no")]
        with pytest.raises(ForbiddenError):
            await publication.publish(using(0), 0.0)
        waits.append(publication.due_in_s(using(0), 0.0))

    for wait_s, expected_s in zip(waits, (1, 2, 4, 8, 16, 32, 60, 60), strict=True):
        assert expected_s / 2 <= wait_s <= expected_s * 1.5


async def test_after_a_success_retries_start_again_from_the_shortest_pause(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    for refusals in ([ForbiddenError("no")], [ForbiddenError("no")], [], [ForbiddenError("no")]):
        gpu_nodes.refusals = [*refusals]
        gpu_nodes.stored["n"] = {}
        try:
            await publication.publish(using(0), 0.0)
        except ForbiddenError:
            continue

    assert publication.due_in_s(using(0, a=1), 0.0) <= 1.5


async def test_an_api_server_that_answers_retry_after_gets_no_write_until_then(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    gpu_nodes.refusals = [UnavailableError("busy", retry_after_s=30.0)]

    with pytest.raises(UnavailableError):
        await publication.publish(using(0), 0.0)

    assert 30.0 <= publication.due_in_s(using(0), 0.0) <= 45.0


async def test_agents_that_were_refused_together_do_not_retry_together(gpu_nodes: FakeGpuNodes) -> None:
    waits = []
    for seed in range(200):
        publication = Publication("n", gpu_nodes, RHYTHM, chance=Random(seed), now=lambda: NOON)
        gpu_nodes.refusals = [UnavailableError("busy", retry_after_s=1.0)]
        with pytest.raises(UnavailableError):
            await publication.publish(using(0), 0.0)
        waits.append(publication.due_in_s(using(0), 0.0))

    assert min(waits) >= 1.0
    assert max(len([wait_s for wait_s in waits if start <= 10 * wait_s < start + 1]) for start in range(10, 15)) < 100


async def written_in_an_hour(publication: Publication, gpu_nodes: FakeGpuNodes, *, every_s: int, **pods: int) -> int:
    """Give it another status at this interval."""
    for at_s in range(0, 3600, every_s):
        turn = at_s // every_s
        status = using(1024 * (turn % 13), **(pods if turn % 2 else {}))
        if publication.due_in_s(status, float(at_s)) == 0:
            await publication.publish(status, float(at_s))
    return gpu_nodes.writes


async def test_memory_that_changes_all_the_time_costs_hardly_more_than_a_heartbeat(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    assert await written_in_an_hour(publication, gpu_nodes, every_s=1) <= 70


async def test_memory_that_was_stable_is_reported_soon_when_it_changes_again(publication: Publication) -> None:
    for at_s in (0.0, 10.0, 30.0, 70.0):
        await publication.publish(using(int(at_s) * 10), at_s)
    await publication.publish(using(700), 136.0)

    assert publication.due_in_s(using(5000), 140.0) == 6.0


async def test_a_value_that_alternates_is_reported_at_once_some_times_and_then_less_often(
    publication: Publication, gpu_nodes: FakeGpuNodes
) -> None:
    assert await written_in_an_hour(publication, gpu_nodes, every_s=1, a=1) <= 20 + 3600 // 10 + 2
