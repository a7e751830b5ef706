"""Asks filter over HTTP on loopback from a process of its own, while the service decides and while it rests."""

import asyncio
import http.client
import multiprocessing
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import orjson

from app.model.names import PodUid
from app.model.seam import Resource
from app.service import Components
from app.service.doors import extender_door
from app.settings import Settings
from loadtest.scale_cluster import Wire
from loadtest.scale_pods import ALONE, BLOCK, LARGE, SMALL, SMALL_GANGS, Size, node_name, pod, written

CALLS = 300
NAMES = (500, 5000)

Asked = dict[str, list[float]]


async def latencies(parts: Components, wire: Wire, size: Size) -> dict[str, float]:
    """Return p50 and p99 in ms of each question, at rest and beside a plan."""
    door = extender_door(Settings(webhook_port=0), parts.extender, parts.metrics)
    serving = asyncio.create_task(door.listener.run())
    try:
        questions = _questions(parts, size)
        resting = await _asked(door.listener.port, questions)
        planning = asyncio.create_task(_plan_for_ever(parts, wire))
        busy = await _asked(door.listener.port, questions)
        planning.cancel()
        with suppress(asyncio.CancelledError):
            await planning
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        door.listener.close()
    return {**_told(resting, ""), **_told(busy, "_beside_plan")}


def _questions(parts: Components, size: Size) -> dict[str, bytes]:
    """Write what kube-scheduler asks about a pod that is promised a node, and about one of another scheduler."""
    cache = parts.inspect._cache  # noqa: SLF001 # only this benchmark needs it from outside
    raw, on = next(
        (raw, held.node)
        for number in _numbers_of_lone_pods(size)
        for raw in [orjson.loads(pod(size, number))]
        if (held := cache.reservations.get(PodUid(raw["metadata"]["uid"]))) is not None
    )
    other = orjson.loads(written("foreign-0-0-0", team="team-0", kind="foreign", gpus=0))
    names = {count: [on, *(node_name(number) for number in range(count - 1))] for count in NAMES}
    return {
        f"{kind}_{count}": orjson.dumps({"Pod": body, "Nodes": None, "NodeNames": names[count]})
        for kind, body in (("promised", raw), ("unmanaged", other))
        for count in NAMES
        if size.nodes >= count
    }


def _numbers_of_lone_pods(size: Size) -> list[int]:
    before = LARGE + SMALL * SMALL_GANGS
    blocks = range(size.running, size.running + size.pending)
    return [block * BLOCK + before + index for block in blocks for index in range(ALONE)]


async def _plan_for_ever(parts: Components, wire: Wire) -> None:
    for number in range(1_000_000):
        raw = written(f"busy-{number}", team="team-3", node=number % 100)
        await wire.send(Resource.PODS, "ADDED", raw)
        await wire.send(Resource.PODS, "DELETED", raw)
        await parts.planning.settle()
        await asyncio.sleep(0)


async def _asked(port: int, questions: dict[str, bytes]) -> Asked:
    here, there = multiprocessing.Pipe()
    asker = multiprocessing.get_context("spawn").Process(target=_ask, args=(there, port, questions), daemon=True)
    asker.start()
    # Only its own end is left open, so that one that fails is noticed.
    there.close()
    try:
        answer: Asked = await asyncio.to_thread(here.recv)
    except EOFError:
        raise RuntimeError("the program that asks the webhooks has failed; see above") from None
    finally:
        asker.join()
    return answer


def _ask(pipe: Connection, port: int, questions: dict[str, bytes]) -> None:
    took: Asked = {}
    for name, body in questions.items():
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(CALLS):
            began = time.perf_counter()
            connection.request("POST", "/filter", body)
            answer = orjson.loads(connection.getresponse().read())
            took.setdefault(name, []).append(time.perf_counter() - began)
            if answer.get("Error"):
                raise RuntimeError(answer["Error"])
        connection.close()
    pipe.send(took)


def _told(asked: Asked, suffix: str) -> dict[str, float]:
    told: dict[str, float] = {}
    for name, times in asked.items():
        told[f"filter_{name}{suffix}_p50_ms"] = statistics.median(times) * 1e3
        told[f"filter_{name}{suffix}_p99_ms"] = statistics.quantiles(times, n=100)[98] * 1e3
    return told
