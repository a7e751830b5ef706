"""Viewers of the stream with different rights, and the API server that reviews their tokens: a program of its own."""

import asyncio
import json
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

TEAMS = 20
"""The namespaces."""
AGAIN_S = 1.0
MOST_OPENING = 20
"""So many viewers connect at once."""


def teams_of(user: str) -> frozenset[str]:
    """Return the namespaces that the user of this number may see: another choice for each user."""
    # The factor has no divisor in common with the modulus, so no two of the first million numbers give the same choice.
    chosen = (int(user.rpartition("-")[2]) + 1) * 7919 % (2**TEAMS - 1)
    return frozenset(f"team-{team}" for team in range(TEAMS) if chosen >> team & 1)


async def review_token(request: web.Request) -> web.Response:
    """Say that a token is the name of its user."""
    asked = await request.json()
    user = {"username": asked["spec"]["token"], "groups": ["system:authenticated"]}
    return web.json_response({"status": {"authenticated": True, "user": user}})


async def review_access(request: web.Request) -> web.Response:
    """Say what a user may see: queues, and pods in some namespaces."""
    spec = (await request.json())["spec"]
    right, user = spec.get("resourceAttributes", {}), spec.get("user", "")
    allowed = right.get("resource") == "queues" or right.get("namespace") in teams_of(user)
    return web.json_response({"status": {"allowed": allowed}})


class Crowd:
    """The viewers and what they have read."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.seen = {"states": 0, "deltas": 0, "delta_bytes": 0, "state_bytes": 0}
        self._epochs = set[str]()
        self._arrived = set[str]()

    async def view(self, url: str, token: str, wanted: int, opening: asyncio.Semaphore) -> None:
        """Read the stream until cancelled; when it ends, or a standby answers, ask again as the page does."""
        headers, timeout = {"X-Leeboard-Token": token}, aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 24) as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with opening:
                        reply = await session.get(f"{url}/api/v1/stream", headers=headers)
                    if reply.status == HTTPStatus.OK:
                        await self._read(reply, token, wanted)
                    else:
                        self._note_arrival(token, wanted)
                await asyncio.sleep(AGAIN_S)

    async def _read(self, reply: aiohttp.ClientResponse, token: str, wanted: int) -> None:
        event = ""
        async for line in reply.content:
            if line.startswith(b"event: "):
                event = line[7:-1].decode()
            elif line.startswith(b"id: "):
                self._epochs.add(line[4:-1].decode().rpartition("-")[0])
            elif line.startswith(b"data: "):
                self._note(event, len(line))
                self._note_arrival(token, wanted)

    def _note_arrival(self, token: str, wanted: int) -> None:
        self._arrived.add(token)
        if len(self._arrived) == wanted:
            self.there.set()

    def _note(self, event: str, size: int) -> None:
        if event == "state":
            self.seen["states"] += 1
            self.seen["state_bytes"] = size
        else:
            self.seen["deltas"] += 1
            self.seen["delta_bytes"] += size

    def told(self) -> dict[str, Any]:
        """Return what was read."""
        return {**self.seen, "epochs": len(self._epochs), "view_cpu_s": view_process().cpu_s}


@dataclass(frozen=True, slots=True)
class ViewProcess:
    """What the process of the view has used so far."""

    cpu_s: float = 0.0
    peak_mib: float = 0.0


def view_process() -> ViewProcess:
    """Return what the youngest view process of this machine has used; nothing when there is none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"app.view" in (folder / "cmdline").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                peak = re.search(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
                cpu_s = (int(fields[11]) + int(fields[12])) / 100
                found.append((int(fields[19]), ViewProcess(cpu_s, int(peak[1]) / 1024 if peak else 0.0)))
        except OSError:
            continue
    return max(found, key=lambda each: each[0])[1] if found else ViewProcess()


async def main(viewers: int) -> None:
    """Serve reviews at once; view the URL of the first line of stdin until the next line."""
    app = web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", review_token)
    app.router.add_post("/apis/authorization.k8s.io/v1/{kind}", review_access)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    loop, crowd = asyncio.get_running_loop(), Crowd()
    url = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    began, opening = loop.time(), asyncio.Semaphore(MOST_OPENING)
    tasks = [asyncio.create_task(crowd.view(url, f"user-{number}", viewers, opening)) for number in range(viewers)]
    await crowd.there.wait()
    print(f"{viewers} after {loop.time() - began:.1f} s", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    print(json.dumps(crowd.told()), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
