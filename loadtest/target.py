"""Starts the service on a simulated cluster, puts a backlog into it, and reads what the service counts of itself."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from app.model.seam import RawObject
from app.simulation.manifests import UNLIMITED
from loadtest import questions
from loadtest.questions import LATER_QUEUE, NAMESPACE, Shape

ROOT = Path(__file__).parents[1]
WITHIN_S = 120.0
POLL_S = 0.2
AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the service has used since it started, as it counts it itself."""

    cpu_s: float
    resident_mb: float
    """Now; the simulated cluster is part of it."""
    calls: int
    """Of all four verbs."""
    plans: int
    planning_s: float

    def since(self, before: "Usage") -> "Usage":
        """Return what was used in between."""
        return Usage(
            cpu_s=self.cpu_s - before.cpu_s,
            resident_mb=self.resident_mb,
            calls=self.calls - before.calls,
            plans=self.plans - before.plans,
            planning_s=self.planning_s - before.planning_s,
        )


class Target:
    """The service in a process of its own, ready while the block runs."""

    def __init__(self, nodes: int, log: Path, **settings: str) -> None:
        """Start it; `settings` are further ones, by the names that they have in `app.settings`."""
        self._log = log.open("wb")
        ports = ("--webhook-port=0", "--operations-port=0", "--cluster-port=0")
        command = [sys.executable, "-m", "loadtest.simulated", f"--nodes={nodes}", *ports]
        env = {**os.environ, **{f"LEEBOARD_{name.upper()}": value for name, value in settings.items()}}
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=self._log)
        self._client = httpx.Client(timeout=60.0, trust_env=False)
        self._backlog: list[tuple[str, str]] = []
        self.webhooks = self.operations = self.cluster = ""
        # Empty where the settings ask for none.
        self.admission = self.probes = ""

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def usage(self) -> Usage:
        """Read what has been used so far."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(self._client.get(f"{self.operations}/metrics").text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return Usage(
            cpu_s=sums["process_cpu_seconds_total"],
            resident_mb=sums["process_resident_memory_bytes"] / 1e6,
            calls=int(sums["leeboard_webhook_duration_seconds_count"]),
            plans=int(sums["leeboard_plan_duration_seconds_count"]),
            planning_s=sums["leeboard_plan_duration_seconds_sum"],
        )

    def longest_hold_s(self) -> float:
        """Return for how long its event loop was held at a time since this was asked last."""
        return float(self._client.get(f"{self.cluster}/longest-hold").raise_for_status().json())

    def nodes(self) -> list[str]:
        """Return the names of its nodes."""
        return list(self._client.get(f"{self.cluster}/nodes").raise_for_status().json())

    def create(self, *pods: RawObject) -> list[RawObject]:
        """Create pods; return them as stored."""
        return list(self._ask("POST", "/pods", pods).json())

    def fill(self, pods: int) -> None:
        """Create held pods of the queue that may not start any."""
        for start in range(0, pods, AT_ONCE):
            names = [f"held-{number}" for number in range(start, min(pods, start + AT_ONCE))]
            self._ask("POST", "/pods", [questions.pod(name, Shape.HELD) for name in names])
            self._backlog += [(NAMESPACE, name) for name in names]

    def stir(self) -> None:
        """Create and delete a pod, so that all waiting pods are planned again."""
        self._ask("POST", "/pods", [questions.pod("passing", Shape.LONE)])
        time.sleep(POLL_S)
        self._ask("DELETE", "/pods", [(NAMESPACE, "passing")])

    def let_start(self) -> None:
        """Raise the limit of their queue, so that the next plan places all of them."""
        self._limit(UNLIMITED)

    def empty(self) -> None:
        """Delete them, and have the limit as it was."""
        self._limit(0)
        backlog, self._backlog = self._backlog, []
        for start in range(0, len(backlog), AT_ONCE):
            self._ask("DELETE", "/pods", backlog[start : start + AT_ONCE])

    def _limit(self, gpus: int) -> None:
        self._ask("PATCH", f"/queues/{LATER_QUEUE}", {"spec": {"resources": {"gpu": {"limit": gpus}}}})

    def _ask(self, method: str, path: str, value: object) -> httpx.Response:
        return self._client.request(method, f"{self.cluster}{path}", content=orjson.dumps(value)).raise_for_status()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"the service did not start; {self._log.name} says why")
        where = orjson.loads(said)
        self.webhooks, self.operations, self.cluster = where["webhooks"], where["operations"], where["cluster"]
        self.admission, self.probes = where["admission"], where["probes"]
        deadline = time.monotonic() + WITHIN_S
        while self._client.get(f"{self.operations}/readyz").status_code != httpx.codes.OK:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the service was not ready within {WITHIN_S:g} s; {self._log.name} says why")
            time.sleep(POLL_S)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._client.close()
        self._log.close()
