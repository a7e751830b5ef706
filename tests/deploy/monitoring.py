"""Shared by the tests of monitoring: what the service really serves, and promtool."""

import re
import subprocess
from pathlib import Path

from app.model.device import DeviceUuid
from app.model.explanation import QueueStand
from app.model.names import NodeName
from app.model.occupancy import SharedMemory
from app.telemetry import Drift, Metrics, Renewal, Step
from app.web import operations
from app.web.callers import Anybody
from tests import given
from tests.system.controlplane import build
from tests.web.fakes import FakeInspect, FakePulse
from tests.web.served import get, serving


async def served_metrics() -> str:
    """Return the text of /metrics of a service whose families with labels have each at least one series."""
    metrics = Metrics()
    metrics.watch_lost("pods")
    metrics.invalid_objects("queues", 1)
    metrics.start_latency("q").observe(3.0)
    metrics.certificates.expires("admission", 2e9)
    metrics.certificates.problems("admission", 0)
    metrics.certificates.renewed(Renewal.SERVING)
    metrics.drifted("pods", Drift.MISSED)
    metrics.object_failed("pods", Step.READ)
    inspect = FakeInspect(
        stands=[QueueStand(queue=given.queue("q"))],
        promised={"Promised": 1},
        shared=[SharedMemory(node=NodeName("n"), device=DeviceUuid("GPU-1"), total_mib=2, promised_mib=1, used_mib=1)],
    )
    app = operations.application(inspect, metrics, FakePulse(), callers=Anybody())
    async with serving(app) as served:
        return (await served.ask(get("/metrics"))).body.decode()


async def served_families() -> set[str]:
    """Return the names of all series that a query may use; of a histogram those of its parts."""
    families = re.findall(r"^# TYPE (\S+) (\S+)", await served_metrics(), re.MULTILINE)
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + part for name, kind in families for part in parts.get(kind, ("",))}


def promtool(*arguments: str | Path, text: str = "") -> tuple[int, str]:
    """Run promtool; return its exit code and what it printed."""
    command = [build.promtool(), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr
