"""Runs one case once: everything is created and synced first, then released at one moment, until the last bind."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import yaml

from loadtest.cases import Case, Work, bench_queue, nodes, objects
from tests.system import audit
from tests.system.api import Api, Object
from tests.system.bed import HOST, Bed, free_ports
from tests.system.children import Child
from tests.system.cluster import SCHEDULER_CONFIG, connected, install, start_leeboard
from tests.system.waiting import eventually

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = "bench"
WITHIN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run measured."""

    case: Case
    pods: int
    pods_per_s: float
    first_bind_s: float
    writes_per_pod: float
    attempts_per_pod: float
    cpu_ms_per_pod: Mapping[str, float]
    """Per process, user and system time."""


class Lab:
    """Fixtures of one cluster size on one bed: restoring a store is three times as fast as creating its objects."""

    def __init__(self, bed: Bed, *, node_count: int, pods: int) -> None:
        """Create what the cases start from; takes as long as creating all pods once for each kind of work."""
        self._bed = bed
        self._pods = pods
        self._stores: dict[Work, Path] = {}
        bed.start_control_plane()
        with bed.api() as api:
            install(api)
            api.create_all(nodes(node_count))
        empty = bed.folder / "store-nodes"
        bed.save_store(empty)
        for work in Work:
            bed.restore_store(empty)
            with bed.api() as api:
                api.create_all(objects(work, pods))
            self._stores[work] = bed.folder / f"store-{work.name}"
            bed.save_store(self._stores[work])

    def run(self, case: Case) -> Run:
        """Run the case from its fixture, and stop what it started."""
        self._bed.restore_store(self._stores[case.work])
        with self._bed.api() as api, self._ready(case, api) as processes:
            return self._measure(case, api, processes)

    @contextmanager
    def _ready(self, case: Case, api: Api) -> Iterator["_Processes"]:
        api.create(_held_lease())
        extender = start_leeboard(self._bed) if case.leeboard else None
        if extender is not None:
            _await_sync(extender)
        (self._bed.folder / "bench-scheduler.log").unlink(missing_ok=True)
        port, config = _scheduler_config(extender)
        scheduler = self._bed.start_scheduler(
            config, name="bench-scheduler", flags=[f"--secure-port={port}", f"--bind-address={HOST}", *_METRICS_FLAGS]
        )
        try:
            _await_leadership_wait(scheduler)
            yield _Processes(self._bed, case, port)
        finally:
            # It would hand its lease over politely; the store is thrown away, so it need not.
            self._bed.kill("bench-scheduler")
            if case.leeboard:
                self._bed.stop("leeboard")

    def _measure(self, case: Case, api: Api, processes: "_Processes") -> Run:
        ledger = _Ledger(self._bed.audit_log)
        cpu = processes.cpu_s()
        released_at = time.time()
        api.create(bench_queue())
        api.delete(f"{LEASES}/{LEASE}")
        eventually(
            ledger.binds, until=lambda number: number >= self._pods, within_s=WITHIN_S, what="all bound", every_s=0.1
        )
        after = processes.cpu_s()
        # Events and status follow the last bind; they are part of what a pod costs.
        eventually(ledger.is_quiet, within_s=30, what="the API server is quiet", every_s=1.0)
        return Run(
            case=case,
            pods=self._pods,
            pods_per_s=self._pods / (max(ledger.bound_at) - released_at),
            first_bind_s=min(ledger.bound_at) - released_at,
            writes_per_pod=ledger.writes / self._pods,
            attempts_per_pod=processes.attempts() / self._pods,
            cpu_ms_per_pod={name: (after[name] - cpu[name]) * 1000 / self._pods for name in cpu},
        )


class _Ledger:
    """What the audit log has told since the release: binds, and all writes that succeeded."""

    def __init__(self, log: Path) -> None:
        self._tail = audit.Tail(log)
        self.bound_at: list[float] = []
        self.writes = 0
        self._writes_before = -1

    def binds(self) -> int:
        self._read()
        return len(self.bound_at)

    def is_quiet(self) -> bool:
        """Return whether nothing was written since the last call; never true at the first."""
        self._read()
        before, self._writes_before = self._writes_before, self.writes
        return self.writes == before

    def _read(self) -> None:
        for event in self._tail.events():
            if not audit.succeeded(event) or event["objectRef"].get("resource") == "leases":
                continue
            self.writes += 1
            if audit.is_bind(event):
                self.bound_at.append(audit.written_at_s(event))


_METRICS_FLAGS = ("--authorization-always-allow-paths=/metrics", "--authentication-tolerate-lookup-failure=true")


class _Processes:
    """What runs in one case, as an instrument."""

    def __init__(self, bed: Bed, case: Case, metrics_port: int) -> None:
        names = ["etcd", "kube-apiserver", "bench-scheduler", *(["leeboard"] if case.leeboard else [])]
        self._children = {name: bed.child(name) for name in names}
        self._metrics = f"https://{HOST}:{metrics_port}/metrics"

    def cpu_s(self) -> dict[str, float]:
        return {name: child.cpu_s() for name, child in self._children.items()}

    def attempts(self) -> float:
        """Return how many scheduling attempts kube-scheduler has made."""
        # Its serving certificate signs itself and is made anew at each start.
        text = httpx.get(self._metrics, verify=False, trust_env=False).raise_for_status().text
        lines = (line for line in text.splitlines() if line.startswith("scheduler_schedule_attempts_total{"))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


def _held_lease() -> Object:
    """Return a lease that somebody else holds: kube-scheduler syncs its caches and waits, until it is deleted."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "the bench", "leaseDurationSeconds": 3600, "renewTime": now, "acquireTime": now}
    metadata = {"name": LEASE, "namespace": "kube-system"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _scheduler_config(extender_url: str | None) -> tuple[int, str]:
    """Return a metrics port and the shipped configuration, made to wait for the lease; without extenders if alone."""
    (port,) = free_ports(1)
    config = yaml.safe_load(connected(SCHEDULER_CONFIG.read_text()).replace("${EXTENDER_URL}", extender_url or ""))
    election = {"leaderElect": True, "retryPeriod": "200ms", "leaseDuration": "15s", "renewDeadline": "10s"}
    config["leaderElection"] = election | {"resourceName": LEASE, "resourceNamespace": "kube-system"}
    if extender_url is None:
        del config["extenders"]
    return port, yaml.safe_dump(config)


def _await_leadership_wait(scheduler: Child) -> None:
    def log() -> str:
        scheduler.check_alive()
        return scheduler.log.read_text().lower()

    what = "kube-scheduler has synced and waits for its lease"
    eventually(log, until=lambda text: "acquire leader lease" in text, within_s=60, what=what)


def _await_sync(extender_url: str) -> None:
    """Wait until Leeboard answers questions: before, it would only say that it is not synced."""
    question = {"Pod": {"metadata": {}, "spec": {}}, "NodeNames": []}

    def error() -> str:
        answer = httpx.post(f"{extender_url}/filter", json=question, trust_env=False).json()
        return str(answer["Error"])

    eventually(error, until=lambda text: not text, within_s=60, what="Leeboard is synced")
