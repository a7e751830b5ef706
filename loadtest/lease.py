"""Holds a kube-scheduler back until the release: it syncs its caches and waits for a lease that has another holder."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from tests.system.api import Api, Object
from tests.system.bed import HOST
from tests.system.children import Child
from tests.system.waiting import eventually

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = "bench"
METRICS_OPEN = ("--authorization-always-allow-paths=/metrics", "--authentication-tolerate-lookup-failure=true")
SYNCED_WITHIN_S = 60.0


def hold(api: Api) -> None:
    """Create the lease with a holder that never renews it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "the bench", "leaseDurationSeconds": 3600, "renewTime": now, "acquireTime": now}
    metadata = {"name": LEASE, "namespace": "kube-system"}
    api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})


def release(api: Api) -> None:
    """Delete the lease. A waiting kube-scheduler checks it every 0.1 to 0.22 s: client-go varies the period below."""
    api.delete(f"{LEASES}/{LEASE}")


def waiting_for_it(config: Mapping[str, Any]) -> Object:
    """Return a configuration of kube-scheduler with which it waits for the lease."""
    election = {"leaderElect": True, "retryPeriod": "100ms", "leaseDuration": "15s", "renewDeadline": "10s"}
    return {**config, "leaderElection": election | {"resourceName": LEASE, "resourceNamespace": "kube-system"}}


def metrics_flags(port: int) -> list[str]:
    """Return flags with which kube-scheduler serves its metrics without authentication on loopback."""
    return [f"--secure-port={port}", f"--bind-address={HOST}", *METRICS_OPEN]


def await_wait(scheduler: Child) -> None:
    """Wait until a kube-scheduler has filled its caches and only waits for the lease."""

    def log() -> str:
        scheduler.check_alive()
        return scheduler.log.read_text().lower()

    what = f"{scheduler.name} has synced and waits for its lease"
    eventually(log, until=lambda text: "acquire leader lease" in text, within_s=SYNCED_WITHIN_S, what=what)


def attempts(port: int) -> float:
    """Return how many scheduling attempts a kube-scheduler has made since it was started."""
    # Its serving certificate is self-signed and is created again at each start.
    text = httpx.get(f"https://{HOST}:{port}/metrics", verify=False, trust_env=False).raise_for_status().text
    lines = (line for line in text.splitlines() if line.startswith("scheduler_schedule_attempts_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)
