"""Measures a filter call over HTTP with a trivial extender: `python -m tests.web.bench_filter [calls]`.

Server and client are two processes, one keep-alive connection; the budget is p50 < 1 ms at 500 names, < 3 ms at 5,000.
"""

import asyncio
import http.client
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection

import orjson
import uvloop

from app.model.question import FilterAnswer, Fits, PodQuestion, Refused
from app.model.reason import Reason
from app.telemetry import Metrics
from app.web import webhooks
from app.web.connection import EXTENDER_CONNECTIONS
from app.web.listener import listener
from tests.web.fakes import FakeExtender

HOST = "127.0.0.1"


class Bench(FakeExtender):
    """Answers without keeping what it was asked, so that a long run measures no garbage."""

    async def filter(self, question: PodQuestion) -> FilterAnswer:
        return Refused(Reason.OVER_LIMIT) if question.uid == "refused" else Fits(question.offered[:1])


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        bound = listener(webhooks.application(Bench(), Metrics()), HOST, 0, limits=EXTENDER_CONNECTIONS)
        pipe.send(bound.port)
        await bound.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _arguments(names: int, uid: str) -> bytes:
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": uid}, "spec": {"containers": [{"name": "c"}] * 3}}
    node_names = [f"gpu-node-{index:05d}.cluster.local" for index in range(names)]
    return orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": node_names})


def _measure(port: int, body: bytes, calls: int) -> tuple[float, float]:
    connection = http.client.HTTPConnection(HOST, port)
    took: list[float] = []
    for _ in range(calls):
        started = time.perf_counter()
        connection.request("POST", "/filter", body)
        connection.getresponse().read()
        took.append((time.perf_counter() - started) * 1000)
    connection.close()
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def _main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    port = here.recv()
    for uid in ("promised", "refused"):
        for names in (1, 500, 5000):
            p50, p99 = _measure(port, _arguments(names, uid), calls)
            print(f"filter {uid:9} {names:5} names  p50 {p50:.2f} ms  p99 {p99:.2f} ms")
    server.terminate()
    server.join()


if __name__ == "__main__":
    _main()
