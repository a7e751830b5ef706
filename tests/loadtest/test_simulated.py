"""The service on the cluster of the load test knows the pods of its calls, and answers as expected."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import orjson
import pytest

from app.model.seam import RawObject, Resource
from app.service import Endpoints, serve
from app.settings import Settings
from app.simulation.cluster import SimulatedCluster
from loadtest import questions
from loadtest.questions import Shape
from loadtest.simulated import Door, used_in_part

NODES = 16
WITHIN_S = 30.0
HELD_S = 0.02


class Asked:
    """The webhooks and the port of the cluster, over one client."""

    def __init__(self, client: aiohttp.ClientSession, webhooks: str, cluster: str) -> None:
        self.client = client
        self.webhooks = webhooks
        self.cluster = cluster

    async def created(self, name: str, shape: Shape) -> RawObject:
        stored = await self.of_cluster("POST", "/pods", [questions.pod(name, shape)])
        return dict(questions.as_sent(stored[0]))

    async def of_cluster(self, method: str, path: str, value: object = None) -> Any:
        async with self.client.request(method, f"{self.cluster}{path}", data=orjson.dumps(value)) as reply:
            return await reply.json() if reply.status == 200 else (reply.status, await reply.text())

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Any:
        return await self.ask("filter", questions.pod_body(pod, orjson.dumps(names)))

    async def ask(self, verb: str, body: bytes) -> Any:
        async with self.client.post(f"{self.webhooks}/{verb}", data=body) as reply:
            return await reply.json()


@pytest.fixture
def cluster() -> SimulatedCluster:
    return used_in_part(NODES)


@pytest.fixture
async def asked(cluster: SimulatedCluster) -> AsyncIterator[Asked]:
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    settings = Settings(webhook_port=0, operations_port=0)
    service = asyncio.create_task(serve(settings, cluster, on_ready=ready.set_result))
    async with Door(cluster, 0) as url, aiohttp.ClientSession() as client:
        where = await ready
        async with asyncio.timeout(WITHIN_S):
            while (await client.get(f"{where.operations}/readyz")).status != 200:
                pass
        yield Asked(client, where.webhooks, url)
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)


async def names_of(asked: Asked) -> list[str]:
    names: list[str] = await asked.of_cluster("GET", "/nodes")
    return names


@pytest.mark.parametrize("shape", [Shape.LONE, Shape.HUGE, Shape.FOREIGN])
async def test_filter_answers_every_shape_of_pod_as_expected(asked: Asked, shape: Shape) -> None:
    pod, names = await asked.created("p", shape), await names_of(asked)

    answers = [await asked.filter(pod, names) for _ in range(2)]

    assert [questions.fault_of_filter(shape, answer, names) for answer in answers] == ["", ""]


async def test_reserved_pod_is_bound_for_good(asked: Asked, cluster: SimulatedCluster) -> None:
    pod, names = await asked.created("p", Shape.LONE), await names_of(asked)
    node = questions.node_of(await asked.filter(pod, names))

    answer = await asked.ask("bind", questions.bind_body(pod, node))

    bound = next(each for each in cluster.objects(Resource.PODS) if each["metadata"]["name"] == "p")
    assert (questions.fault_of_bind(answer), bound["spec"]["nodeName"]) == ("", node)


async def test_what_if_question_finds_nodes_and_scores(asked: Asked) -> None:
    pod, names = questions.as_what_if(questions.pod("p", Shape.LONE)), await names_of(asked)

    filtered = await asked.filter(pod, names)
    scored = await asked.ask("prioritize", questions.pod_body(pod, orjson.dumps(names)))

    assert (questions.fault_of_what_if(filtered, names), questions.fault_of_scores(scored, names)) == ("", "")


@pytest.mark.parametrize("shape", [Shape.LONE, Shape.FOREIGN])
async def test_preempt_answers_as_expected(asked: Asked, shape: Shape) -> None:
    victims = questions.candidates((await names_of(asked))[:3])
    body = questions.preempt_body(questions.as_sent(questions.pod("p", shape)), victims)

    assert questions.fault_of_preempt(shape, await asked.ask("preempt", body), victims) == ""


async def test_backlog_starts_when_its_limit_is_raised(asked: Asked) -> None:
    pod, names = await asked.created("p", Shape.HELD), await names_of(asked)
    before = await asked.filter(pod, names)

    await asked.of_cluster("PATCH", "/queues/later", {"spec": {"resources": {"gpu": {"limit": -1}}}})
    async with asyncio.timeout(WITHIN_S):
        while questions.fault_of_filter(Shape.HELD, answer := await asked.filter(pod, names), names):
            pass

    assert (before["NodeNames"], len(answer["NodeNames"])) == ([], 1)


async def test_deleted_pod_is_gone(asked: Asked, cluster: SimulatedCluster) -> None:
    await asked.created("p", Shape.LONE)

    await asked.of_cluster("DELETE", "/pods", [(questions.NAMESPACE, "p")])

    assert "p" not in [pod["metadata"]["name"] for pod in cluster.objects(Resource.PODS)]


async def test_impossible_write_is_reported(asked: Asked) -> None:
    await asked.created("p", Shape.LONE)

    again = await asked.of_cluster("POST", "/pods", [questions.pod("p", Shape.LONE)])
    absent = await asked.of_cluster("DELETE", "/pods", [(questions.NAMESPACE, "q")])

    assert (again, absent) == ((409, "p already exists"), (409, "load/q does not exist"))


async def test_loop_is_watched_from_the_first_question_about_it_on(asked: Asked) -> None:
    before = _watching()

    first = await asked.of_cluster("GET", "/longest-hold")
    until = time.thread_time() + HELD_S
    while time.thread_time() < until:
        pass
    second = await asked.of_cluster("GET", "/longest-hold")

    assert (before, _watching(), first, second >= HELD_S) == (0, 1, 0.0, True)


def test_nodes_of_the_cluster_have_from_one_to_all_gpus_free() -> None:
    running = used_in_part(NODES).objects(Resource.PODS)
    used = [int(pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"]) for pod in running]

    assert used == [1, 2, 3, 4, 5, 6, 7] * 2


def _watching() -> int:
    return sum("Holds.watch" in repr(task) for task in asyncio.all_tasks())
