"""The agent as a process, with a driver, a kubelet and an API server, each of which stops and starts."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.agent.conftest import Furnish
from tests.agent.kubelet import FakeKubelet
from tests.agent.machines import XID, FakeMachine, environment
from tests.kube.apiserver import kubeconfig, listening, status

pytestmark = pytest.mark.slow

WITHIN_S = 30.0
PATH = "/apis/leeboard.dev/v1alpha1/gpunodes"


class Reports:
    """An API server with at most one GpuNode, which passes on every status it gets."""

    def __init__(self) -> None:
        self.exists = False
        self.refuses = 0
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if self.refuses:
            self.refuses -= 1
            return web.json_response(status(403, "the token is of another node"), status=403)
        if request.method == "POST" and request.path == PATH:
            assert body["metadata"] == {"name": "node-1"}
            self.exists = True
            return web.json_response(body, status=201)
        assert (request.method, request.path) == ("PATCH", f"{PATH}/node-1/status")
        if not self.exists:
            return web.json_response(status(404), status=404)
        self._sent.put_nowait(body["status"])
        return web.json_response(body)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(WITHIN_S):
            return await self._sent.get()

    async def until_devices(self) -> list[dict[str, Any]]:
        while not (devices := (await self.next())["devices"]):
            pass
        return list(devices)


@pytest.fixture
async def reports(tmp_path: Path) -> AsyncIterator[Reports]:
    reports = Reports()
    async with listening(reports.take) as url:
        kubeconfig(url, tmp_path)
        yield reports


@asynccontextmanager
async def running(
    library: Path, machine: FakeMachine, socket: Path, **env: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    swift = {f"LEEBOARD_AGENT_{name}_S": "1" for name in ("DEVICES_INTERVAL", "HEARTBEAT", "PODS_INTERVAL")}
    places = {
        "LEEBOARD_AGENT_POD_RESOURCES_SOCKET": str(socket),
        "LEEBOARD_AGENT_KUBECONFIG": str(machine.path.parent / "kubeconfig"),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", "agent",
        env=environment(library, machine, **(swift | places | env)),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()


async def ended(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    """End it as Kubernetes does, and return its log."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(WITHIN_S):
        _, logged = await process.communicate()
    assert process.returncode == 0, logged.decode()
    return [orjson.loads(line) for line in logged.splitlines()]


async def test_a_driver_that_is_loaded_late_is_reported_and_the_agent_stops_on_request(
    library: Path, furnish: Furnish, socket: Path, reports: Reports
) -> None:
    machine = furnish("dgx-1v")
    machine.unloads_driver()

    async with running(library, machine, socket) as process:
        first = await reports.next()
        machine.loads_driver()
        devices = await reports.until_devices()
        log = await ended(process)

    assert first["message"] == "the NVIDIA driver is not loaded"
    assert first["kubelet"]["answers"] is False
    assert [device["uuid"] for device in devices] == [machine.uuid(index) for index in range(8)]
    assert [line["event"] for line in log[:3]] == ["no_devices", "kubelet_is_silent", "devices_are_back"]


async def test_new_holders_and_new_failures_are_reported_at_once(
    library: Path, furnish: Furnish, socket: Path, kubelet: FakeKubelet, reports: Reports
) -> None:
    machine = furnish("desktop")
    # So long that nothing is sent periodically.
    slow = {"LEEBOARD_AGENT_DEVICES_INTERVAL_S": "300", "LEEBOARD_AGENT_HEARTBEAT_S": "3600"}

    async with running(library, machine, socket, **slow) as process:
        assert "pods" not in (await reports.next())["devices"][0]
        kubelet.give("kai-resource-reservation/r", machine.uuid(0))
        held = (await reports.next())["devices"][0]
        machine.happens(0, XID, 79)
        broken = (await reports.next())["devices"][0]
        await ended(process)

    assert held["pods"] == [{"namespace": "kai-resource-reservation", "name": "r"}]
    assert (broken["health"], broken["healthReason"]) == ("Unhealthy", "it has reported XID 79")


async def test_a_heartbeat_is_sent_periodically_and_a_deleted_gpunode_is_created_again(
    library: Path, furnish: Furnish, socket: Path, reports: Reports
) -> None:
    async with running(library, furnish("desktop"), socket) as process:
        first = await reports.next()
        reports.exists = False
        second = await reports.next()
        await ended(process)

    assert second | {"observedAt": ""} == first | {"observedAt": ""}
    assert reports.exists


async def test_a_hanging_driver_is_reported_and_not_taken_for_healthy(
    library: Path, furnish: Furnish, socket: Path, reports: Reports
) -> None:
    machine = furnish("desktop")

    async with running(library, machine, socket) as process:
        await reports.until_devices()
        machine.hangs()
        while (silent := await reports.next())["message"] is None:
            pass
        machine.answers()
        while (well := await reports.next())["message"] is not None:
            pass
        await ended(process)

    assert (silent["message"], silent["devices"][0]["health"]) == ("the NVIDIA driver does not answer", "Unknown")
    assert well["devices"][0]["health"] == "Healthy"


async def test_a_driver_that_hangs_from_the_start_is_reported(
    library: Path, furnish: Furnish, socket: Path, reports: Reports
) -> None:
    machine = furnish("desktop")
    machine.hangs()

    async with running(library, machine, socket) as process:
        first = await reports.next()
        machine.answers()
        devices = await reports.until_devices()
        await ended(process)

    assert (first["message"], first["devices"]) == ("the NVIDIA driver does not answer", [])
    assert devices[0]["health"] == "Healthy"


async def test_a_driver_of_another_version_ends_the_agent_so_that_its_container_restarts(
    library: Path, furnish: Furnish, socket: Path, reports: Reports
) -> None:
    machine = furnish("desktop")

    async with running(library, machine, socket) as process:
        await reports.until_devices()
        machine.fails("nvmlInit", 18)
        machine.fails("nvmlDeviceGetCount", 18)
        async with asyncio.timeout(WITHIN_S):
            _, logged = await process.communicate()

    assert process.returncode == 1
    assert logged.decode().splitlines()[-1] == (
        "Error: the NVIDIA driver and libnvidia-ml.so.1 have different versions: restart the container"
    )


async def test_a_refused_write_is_logged_and_retried(
    library: Path, furnish: Furnish, socket: Path, reports: Reports
) -> None:
    reports.refuses = 1

    async with running(library, furnish("desktop"), socket) as process:
        await reports.next()
        log = await ended(process)

    refusals = [line for line in log if line["event"] == "not_published"]
    assert ["the token is of another node" in line["reason"] for line in refusals] == [True]
