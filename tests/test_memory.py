"""What a pod and its owner cost in memory: a list must shrink page by page, or 50,000 pods are a gigabyte."""

import asyncio
import sys
from pathlib import Path

import pytest

from app.model.seam import Resource
from tests.kube.apiserver import kubeconfig
from tests.kube.bulk import JOBS, heavy_job, heavy_pod, holding

pytestmark = pytest.mark.slow

PODS = 10_000
BYTES_A_POD = 8_192
"""Measured: 2,500 to 2,900, half of them for the two pages under way; whole objects take 30,500."""

LISTS = """
import asyncio, sys
from pathlib import Path
from app.kube.client import KubeCluster
from app.service import Components
from app.settings import Settings
from app.telemetry import Metrics

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

async def main():
    async with await KubeCluster.connect(sys.argv[1]) as cluster:
        parts = Components(Settings(), cluster, Metrics())
        before = peak_bytes()
        following = asyncio.gather(*(part.run() for part in parts.informers))
        await parts.freshness.synced()
        while parts.freshness.failure():  # the Jobs that own the pods
            await asyncio.sleep(0.01)
        print(peak_bytes() - before)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_ten_thousand_pods_are_listed_in_little_memory(tmp_path: Path) -> None:
    async with holding({Resource.PODS: (PODS, heavy_pod), JOBS: (PODS, heavy_job)}) as url:
        path = kubeconfig(url, tmp_path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LISTS, path, cwd=Path(__file__).parents[1], stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()

    # On a slow machine an owner may be asked for by name before its list is here, which this server does not know.
    each_bytes = int(printed.splitlines()[-1]) / PODS
    print(f"{each_bytes:.0f} bytes a pod and its owner")
    assert each_bytes < BYTES_A_POD
