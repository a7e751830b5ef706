"""Pods with our scheduling gate, as admission creates them, and a kube-scheduler that reports what they cost it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from app.model.marks import GATE
from tests.system.api import DEFAULT_PODS, Api, Object
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import SCHEDULER_CONFIG, connected, install
from tests.system.observer import Observer
from tests.system.watched import WatchedCluster

METRICS_OPEN = ("--authorization-always-allow-paths=/metrics", "--authentication-tolerate-lookup-failure=true")


class HeldCluster(WatchedCluster):
    """A cluster whose kube-scheduler reports how often it tried to schedule pods."""

    def start_scheduler(self, bed: Bed) -> None:
        (self._scheduler_port,) = free_ports(1)
        bed.start_scheduler(
            connected(SCHEDULER_CONFIG.read_text()),
            name="own-scheduler",
            placeholders={"EXTENDER_URL": f"http://{HOST}:{self._webhooks}"},
            flags=[f"--secure-port={self._scheduler_port}", f"--bind-address={HOST}", *METRICS_OPEN],
        )

    def told(self, *beginnings: str) -> float:
        """Return the sum of the metrics of kube-scheduler whose lines begin with this text."""
        # Its serving certificate is self-signed and created again at each start.
        address = f"https://{HOST}:{self._scheduler_port}/metrics"
        text = httpx.get(address, verify=False, trust_env=False).raise_for_status().text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(beginnings))

    def filter_calls(self) -> float:
        """Return how often Leeboard's filter was called."""
        text = httpx.get(f"http://{HOST}:{self._operations}/metrics", headers=self._bed.reading(), timeout=5.0).text
        name = "leeboard_webhook_duration_seconds_count"
        lines = [line for line in text.splitlines() if line.startswith(name) and 'verb="filter"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def holding(bed: Bed, api: Api, **settings: str) -> Iterator[HeldCluster]:
    """Run Leeboard with these settings beside such a kube-scheduler; check at the end."""
    install(api)
    with Observer(bed) as observer:
        cluster = HeldCluster(bed, api, observer, settings)
        cluster.start_leeboard()
        cluster.start_scheduler(bed)
        try:
            yield cluster
            cluster.check()
        finally:
            cluster.stop()


def held(item: Object, *others: str) -> Object:
    """Return the pod as admission creates it; other objects unchanged."""
    if item["kind"] == "Pod":
        item["spec"]["schedulingGates"] = [{"name": name} for name in (GATE, *others)]
    return item


def gates(api: Api, name: str) -> list[str]:
    return [gate["name"] for gate in api.get(f"{DEFAULT_PODS}/{name}")["spec"].get("schedulingGates", [])]


def cpu_share(bed: Bed, *, for_s: float) -> float:
    """Return how much of one core Leeboard uses over some seconds."""
    child, began_s = bed.child("leeboard"), time.monotonic()
    before_s = child.cpu_s()
    threading.Event().wait(for_s)
    return (child.cpu_s() - before_s) / (time.monotonic() - began_s)
