import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from app.model.names import NodeName
from app.simulation.scheduler import Scheduler
from app.simulation.webhooks import ExtenderError, ExtenderWebhooks, Filtered
from tests.simulation.play import ManualClock, cluster_with_node, create_pod, playing, ref, stored

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": {}}


class FakeService:
    """Gives the answers of the test to each verb, and records the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.questions: list[tuple[str, str, Any]] = []
        self.bound = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        self.questions.append((verb, request.headers["Content-Type"], json.loads(await request.read())))
        if verb == "bind":
            self.bound.set()
        answer = self.answers[verb]
        return answer if isinstance(answer, web.Response) else web.json_response(answer)


@pytest.fixture
async def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def webhooks(service: FakeService) -> AsyncIterator[ExtenderWebhooks]:
    application = web.Application()
    application.router.add_post("/{verb}", service.answer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        yield ExtenderWebhooks(session, str(server.make_url("/")))


async def test_filter_calls_have_the_wire_format_of_kube_scheduler(
    service: FakeService, webhooks: ExtenderWebhooks
) -> None:
    service.answers["filter"] = {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n2": "Leeboard(OverLimit): no"},
        "Error": "",
    }

    answer = await webhooks.filter(POD, ["n1", "n2"])

    bare = {"metadata": POD["metadata"], "spec": {}}
    question = {"Pod": bare, "Nodes": None, "NodeNames": ["n1", "n2"]}
    assert service.questions == [("filter", "application/json", question)]
    assert answer == Filtered(names=("n1",), reasons={"n2": "Leeboard(OverLimit): no"})


async def test_bind_calls_have_four_strings(service: FakeService, webhooks: ExtenderWebhooks) -> None:
    service.answers["bind"] = {"Error": ""}

    await webhooks.bind(POD, "n1")

    question = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"}
    assert service.questions == [("bind", "application/json", question)]


async def test_an_answer_without_names_means_no_nodes(service: FakeService, webhooks: ExtenderWebhooks) -> None:
    service.answers["filter"] = {}

    assert await webhooks.filter(POD, ["n1"]) == Filtered(names=())


@pytest.mark.parametrize(
    "answer",
    [{"Error": "not synced"}, {"NodeNames": ["invented"]}, [], web.Response(status=500), web.Response(text="{")],
    ids=["error", "invented node", "no object", "status 500", "no JSON"],
)
async def test_answers_that_kube_scheduler_treats_as_errors_are_errors(
    service: FakeService, webhooks: ExtenderWebhooks, answer: object
) -> None:
    service.answers["filter"] = answer

    with pytest.raises(ExtenderError):
        await webhooks.filter(POD, ["n1"])


async def test_scores_are_integers_and_a_failure_gives_none(service: FakeService, webhooks: ExtenderWebhooks) -> None:
    service.answers["prioritize"] = [{"Host": "n1", "Score": 7}, {"Host": "n2", "Score": 7.5}]
    scores = await webhooks.prioritize(POD, ["n1", "n2"])
    service.answers["prioritize"] = {"Error": "no"}

    assert (scores, await webhooks.prioritize(POD, ["n1"])) == ({"n1": 7}, {})


async def test_the_driver_places_a_pod_over_http(service: FakeService, webhooks: ExtenderWebhooks) -> None:
    cluster = cluster_with_node("n1", "n2", "n3")
    pod = create_pod(cluster)
    service.answers = {
        "filter": {"NodeNames": ["n1", "n2"], "Error": ""},
        "prioritize": [{"Host": "n1", "Score": 1}, {"Host": "n2", "Score": 9}],
        "bind": {"Error": ""},
    }

    with playing(Scheduler(cluster, webhooks, ManualClock()).run()):
        await asyncio.wait_for(service.bound.wait(), 5)

    assert [verb for verb, _, _ in service.questions] == ["filter", "prioritize", "bind"]
    assert service.questions[-1][2]["Node"] == "n2"
    await cluster.bind(ref(pod), NodeName("n2"), {})
    assert stored(cluster, pod)["spec"]["nodeName"] == "n2"
