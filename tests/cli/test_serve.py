import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kube.apiserver import kubeconfig
from tests.kube.bulk import holding

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FEW = 256


def allow_few_open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """Run `leeboard serve` beside an empty cluster; yield the process and the first line of its log."""
    async with holding({}) as url:
        options = [f"--kubeconfig={kubeconfig(url, folder)}", "--webhook-port=0", "--operations-port=0"]
        service = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "app", "serve", *options),
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=allow_few_open_files,
        )
        try:
            async with asyncio.timeout(30):
                assert service.stderr is not None
                yield service, json.loads(await service.stderr.readline())
        finally:
            if service.returncode is None:
                service.kill()
            await service.communicate()


async def test_serve_logs_its_address_in_json_and_answers_there_until_it_is_stopped(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, said), aiohttp.ClientSession() as client:
        async with client.get(f"{said['operations']}/livez") as reply:
            assert (said["event"], said["level"], reply.status) == ("listening", "info", 200)

        service.terminate()

        assert await service.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_serve_may_open_as_many_files_as_the_system_grants(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, _):
        soft, hard = open_files(service.pid)

    assert soft == hard != str(FEW)


def open_files(pid: int) -> list[str]:
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.split()[3:5] for line in limits if line.startswith("Max open files"))
