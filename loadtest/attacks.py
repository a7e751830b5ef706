"""What hostile clients send, bounded in time and to loopback: `python -m loadtest.attacks NAME URL SECONDS`."""

import asyncio
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import orjson

MANY, SOME = 300, 32
"""Connections: to fill a listener, and to keep it busy."""
MOST_SECONDS = 120.0
AGAIN_S = 0.05
"""After a connection is lost."""
HELD_S = 0.5
LOOPBACK = "127.0.0.1"
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /%b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
LABEL_KEYS = 10_000
MOST_LISTED = 256
"""Items that a list of a pod may have."""


class Port(StrEnum):
    """Where an attack goes."""

    NOWHERE = ""
    OPERATIONS = "operations"
    ADMISSION = "admission"
    PROBES = "probes"


@dataclass(frozen=True, slots=True)
class Line:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send it, as fast as it is read."""
        self.writer.write(data)
        await self.writer.drain()

    async def read(self) -> None:
        """Read what is there, and notice the end."""
        if not await self.reader.read(1 << 20):
            raise ConnectionError

    async def drain(self) -> None:
        """Read whatever comes, for a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_S):
                while True:
                    await self.read()


Act = Callable[[Line], Awaitable[None]]
"""What one connection does again and again until it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One kind of client."""

    name: str
    port: Port
    act: Act
    connections: int = SOME
    shakes_hands: bool = True
    """Whether it speaks TLS where the port does."""


async def _nothing(line: Line) -> None:
    del line


async def _half_sent(line: Line) -> None:
    await line.send(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
    await line.drain()


async def _half_a_head(line: Line) -> None:
    await line.send(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Part: ")
    await line.drain()


async def _pipelined(line: Line) -> None:
    await line.send(PROBE * 100)
    await line.read()


async def _one_by_one(line: Line) -> None:
    await line.send(PROBE)
    await line.read()


async def _byte_chunks(line: Line) -> None:
    await line.send(CHUNKED % b"mutate" + b"1\r\nx\r\n" * 10_000)
    await line.read()


async def _byte_reads(line: Line) -> None:
    await line.send(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
    for _ in range(1_000):
        await line.send(b"x")
        await asyncio.sleep(0)
    await line.read()


async def _headers(line: Line) -> None:
    await line.send(b"GET /livez HTTP/1.1\r\n" + b"a:b\r\n" * 10_000 + b"\r\n")
    await line.read()


async def _metrics(line: Line) -> None:
    await line.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guessed\r\n\r\n")
    await line.read()


async def _queues(line: Line) -> None:
    await line.send(b"GET /api/v1/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guessed\r\n\r\n")
    await line.read()


async def _hang_up(line: Line) -> None:
    # Each handshake costs a signature, so it is made again and again.
    del line
    raise ConnectionError


async def _say_nothing(line: Line) -> None:
    await line.drain()


def _asking(review: bytes) -> Act:
    async def ask(line: Line) -> None:
        await line.send(review)
        await line.read()

    return ask


def _review(pod: Mapping[str, Any]) -> bytes:
    """Write a pod as /mutate gets it; it is never created."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "1", "kind": kind, "namespace": "load", "operation": "CREATE", "object": pod, "dryRun": False}
    body = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    return b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _greedy(affinity: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    more = {"affinity": affinity} if affinity else {}
    named = {"name": "greedy", "namespace": "load"}
    return {
        "metadata": named,
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}], **more, **spec},
    }


def _node_affinity(expressions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}


def _apart() -> dict[str, Any]:
    labels = {f"label-{number}": "x" for number in range(8)}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {REQUIRED: [term] * 4}}


def _amounts() -> list[dict[str, Any]]:
    amounts = {f"kubernetes.io/{number}": "1" for number in range(MOST_LISTED)}
    return [{"name": f"c{number}", "resources": {"requests": amounts}} for number in range(MOST_LISTED)]


def _values() -> list[dict[str, Any]]:
    """Return as many requirements, with as many values, as a pod may have."""
    values = [f"value-{number}" for number in range(16)]
    return [{"key": f"label-{number % 16}", "operator": "NotIn", "values": values} for number in range(MOST_LISTED)]


def _said() -> dict[str, Any]:
    message = "Leeboard(NoRoom): 0/1 nodes are available: " + ", " * 240_000
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"status": {"conditions": [condition]}}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

REVIEWS: Mapping[str, dict[str, Any]] = {
    "label-keys": _greedy(_node_affinity([{"key": f"k{n}", "operator": "Exists"} for n in range(LABEL_KEYS)])),
    "label-values": _greedy(_node_affinity(_values())),
    "amounts": _greedy(containers=_amounts()),
    "pods-apart": _greedy(_apart()),
    "long-condition": _greedy() | _said(),
    "never-created": _greedy(),
}
"""Pods that cost much to judge, or are never created after it."""

ATTACKS: tuple[Attack, ...] = (
    Attack(name="nobody", port=Port.NOWHERE, act=_nothing),
    *(
        Attack(name=f"{name} to {port}", port=port, act=act, connections=connections)
        for name, act, connections, ports in (
            ("half-sent-posts", _half_sent, MANY, (Port.OPERATIONS, Port.ADMISSION, Port.PROBES)),
            ("half-sent-heads", _half_a_head, MANY, (Port.OPERATIONS, Port.ADMISSION, Port.PROBES)),
            ("pipelined-probes", _pipelined, SOME, (Port.OPERATIONS, Port.ADMISSION, Port.PROBES)),
            ("probes", _one_by_one, SOME, (Port.OPERATIONS, Port.ADMISSION, Port.PROBES)),
            ("one-byte-chunks", _byte_chunks, SOME, (Port.OPERATIONS, Port.ADMISSION)),
            ("one-byte-reads", _byte_reads, SOME, (Port.OPERATIONS, Port.ADMISSION)),
            ("many-headers", _headers, SOME, (Port.OPERATIONS, Port.ADMISSION)),
            ("metrics", _metrics, SOME, (Port.OPERATIONS,)),
            ("queues", _queues, SOME, (Port.OPERATIONS,)),
            *((name, _asking(_review(pod)), SOME, (Port.ADMISSION,)) for name, pod in REVIEWS.items()),
            ("handshakes", _hang_up, SOME, (Port.ADMISSION,)),
        )
        for port in ports
    ),
    Attack(
        name="stalled-handshakes to admission",
        port=Port.ADMISSION,
        act=_say_nothing,
        connections=MANY,
        shakes_hands=False,
    ),
)


async def attack(chosen: Attack, url: str, seconds: float) -> None:
    """Make one attack for so many seconds, on nothing but loopback."""
    where = urlsplit(url)
    if where.hostname != LOOPBACK or where.port is None:
        raise ValueError(f"{url} is not a port of {LOOPBACK}")
    with suppress(TimeoutError):
        async with asyncio.timeout(min(seconds, MOST_SECONDS)), asyncio.TaskGroup() as tasks:
            for _ in range(chosen.connections):
                tls = _trusting() if where.scheme == "https" and chosen.shakes_hands else None
                tasks.create_task(_again(chosen.act, where.port, tls))


async def _again(act: Act, port: int, tls: ssl.SSLContext | None) -> None:
    while True:
        # Whatever the service does about it.
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls)
            try:
                while True:
                    await act(Line(reader, writer))
            finally:
                writer.close()
        await asyncio.sleep(AGAIN_S)


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


if __name__ == "__main__":
    name, to, length = sys.argv[1:]
    # Ends us in any case: a connection that is being closed may take its time.
    signal.setitimer(signal.ITIMER_REAL, min(float(length), MOST_SECONDS) + 1.0)
    if to:
        asyncio.run(attack(next(each for each in ATTACKS if each.name == name), to, float(length)))
