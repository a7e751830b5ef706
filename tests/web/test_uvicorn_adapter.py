"""The assumptions of the adapter about uvicorn: after a failure, read the changes there before raising the version."""

import ast
import asyncio
import hashlib
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.web.asgi import WHOLE
from app.web.connection import ConnectionLimits
from app.web.uvicorn_adapter import GuardedConnection, OpenConnections
from tests.web.served import get, post
from tests.web.test_connection import Recorded

ROOT = Path(__file__).parents[2]
READ = {
    FlowControl: "126debcdaa894c83",
    HttpToolsProtocol: "18fdf324b11bf160",
    RequestResponseCycle: "e67d470d435dcc1c",
    ServerState: "f2260fbf10154746",
}
"""The classes that were read for the adapter, as they were then."""


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_only_the_adapter_uses_internals_of_uvicorn() -> None:
    knowing = [path.name for path in (ROOT / "app").rglob("*.py") if "uvicorn" in imported(path)]

    assert knowing == ["uvicorn_adapter.py"]


def test_only_the_reviewed_version_of_uvicorn_is_installed() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    major, minor, _ = version("uvicorn").split(".", 2)

    assert f"uvicorn>={major}.{minor},<{major}.{int(minor) + 1}" in needed


def test_the_parts_of_uvicorn_that_the_adapter_extends_have_not_changed() -> None:
    assert {each: hashlib.sha256(inspect.getsource(each).encode()).hexdigest()[:16] for each in READ} == READ


class Line(Recorded):
    """A connection that can be delayed."""

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def held(connection: GuardedConnection) -> tuple[int, int, int]:
    """Return the number of connections, of running requests, and of requests that wait behind them."""
    return len(connection.connections), len(connection.tasks), len(connection.pipeline)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_connection_has_the_states_that_the_adapter_reads() -> None:
    wholes, may_answer = list[bool](), asyncio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        wholes.append(WHOLE in scope["state"])
        await may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    connections = OpenConnections(app, ConnectionLimits(connections=8))
    line, made = Line(), connections.connection()
    assert isinstance(made, GuardedConnection)
    made.connection_made(line)
    assert (made.app is app, made.cycle is None, held(made)) == (True, True, (1, 0, 0))

    made.data_received(post("/", b"x")[:-1])
    await turns()
    assert (made.cycle.response_complete, held(made)) == (False, (1, 1, 0))

    made.data_received(b"x" + get("/") + get("/"))
    assert (made.headers, held(made)) == ([(b"host", b"x")], (1, 1, 2))

    connections.close()
    may_answer.set()
    await turns()
    assert (wholes, line.closed) == ([False, True, True], True)

    made.connection_lost(None)
    assert (made.cycle is None, held(made)) == (True, (0, 0, 0))


async def test_the_request_of_a_lost_client_ends() -> None:
    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    connections = OpenConnections(app, ConnectionLimits(connections=8))
    line, made = Line(), connections.connection()
    assert isinstance(made, GuardedConnection)
    made.connection_made(line)
    made.data_received(get("/"))
    await turns()

    line.close()
    made.connection_lost(ConnectionResetError())
    await turns()

    assert held(made) == (0, 0, 0)
    await connections.end(grace_s=0.0)
