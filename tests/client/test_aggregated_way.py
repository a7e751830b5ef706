"""The way through the aggregated API: it is found where it is, and its absence is said in one line."""

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from app.cli import main
from app.client.aggregated_paths import ROOT
from app.client.aggregated_way import AggregatedWay
from app.client.api_server import ApiServer
from app.client.kubeconfig import context_of
from app.client.reach_errors import NoReplyError, NoSuchObjectError, NotAllowedError, ReachError
from app.client.service_ways import SERVICE, ProxiedWay, Service
from tests.kube.apiserver import kubeconfig, listening, status

PATH = "/api/v1/why/team/train"


def problem(code: int, detail: str) -> web.Response:
    return web.Response(status=code, text=json.dumps({"status": code, "detail": detail}))


async def asked(folder: Path, path: str, *answers: web.Response) -> tuple[list[str], bytes | ReachError]:
    """Ask by the service proxy, then by the aggregated API; return the paths that were asked, and the answer."""
    paths, script = [], [*answers]

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path_qs)
        return script.pop(0)

    async with listening(answer) as url:
        context = context_of(str(kubeconfig(url, folder)))
        assert context is not None
        server = ApiServer(context, timeout_s=5.0)
        service = Service(ProxiedWay(server, service=SERVICE, token=None), AggregatedWay(server))
        try:
            return paths, await asyncio.to_thread(service.ask, path)
        except ReachError as error:
            return paths, error
        finally:
            service.close()


def refused(code: int = 403) -> web.Response:
    return web.json_response(status(code), status=code)


async def test_it_is_asked_where_the_service_proxy_is_not_allowed(tmp_path: Path) -> None:
    paths, answer = await asked(tmp_path, PATH, refused(), web.json_response({"kind": "Explanation"}))

    assert answer == b'{"kind": "Explanation"}'
    assert paths[1:] == [f"{ROOT}/namespaces/team/why/train"]


@pytest.mark.parametrize(
    ("reply", "kind", "says_what"),
    [
        (problem(404, "nothing is known of team/train"), NoSuchObjectError, "nothing is known of team/train"),
        (problem(403, "you may not list pods in namespace team"), NotAllowedError, "you may not list pods"),
    ],
)
async def test_what_the_service_says_is_the_answer(
    tmp_path: Path, reply: web.Response, kind: type[ReachError], says_what: str
) -> None:
    _, answer = await asked(tmp_path, PATH, refused(), reply)

    assert isinstance(answer, kind)
    assert says_what in str(answer)


@pytest.mark.parametrize(
    ("reply", "says_what"),
    [
        (web.Response(status=404, text="404 page not found\n"), "aggregatedApi.enabled makes one"),
        (refused(404), "aggregatedApi.enabled makes one"),
        (web.Response(status=503, text="service unavailable\n"), "kubectl describe apiservice v1.view.leeboard.dev"),
        (refused(), "no"),
    ],
)
async def test_an_api_server_that_does_not_lead_to_it_says_so(
    tmp_path: Path, reply: web.Response, says_what: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return reply

    async with listening(answer) as url:
        context = context_of(str(kubeconfig(url, tmp_path)))
        assert context is not None
        way = AggregatedWay(ApiServer(context, timeout_s=5.0))
        with closing(way), pytest.raises((NoReplyError, NotAllowedError), match=says_what):
            await asyncio.to_thread(way.ask, PATH, {})


async def test_without_any_way_the_first_one_is_named(tmp_path: Path) -> None:
    _, answer = await asked(tmp_path, PATH, refused(), web.Response(status=404, text="404 page not found\n"))

    assert isinstance(answer, NotAllowedError)
    assert "services/proxy" in str(answer)


async def test_a_token_that_is_given_is_not_replaced_by_the_user_of_the_context(tmp_path: Path) -> None:
    paths = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return refused()

    async with listening(answer) as url:
        arguments = ["queues", f"--kubeconfig={kubeconfig(url, tmp_path)}", "--token=given"]
        environment = {"LEEBOARD_OPERATIONS_PORT": "1"}
        result = await asyncio.to_thread(CliRunner(env=environment).invoke, main, arguments)

    assert result.exit_code == 1
    assert not [path for path in paths if path.startswith(ROOT)]
