"""Metrics that are read from state at each scrape, so that no gauge is stale."""

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.model.device import Health
from app.model.explanation import QueueStand
from app.model.occupancy import AgentState, FreeGpus, SharedMemory
from app.model.podgroup import PodGroup
from app.model.question import Check
from app.model.queue import ORPHANED
from app.model.reason import Reason, Refusal
from app.model.resources import NOTHING, UNLIMITED
from app.web.health import Ready
from app.web.visits import Asks


class Counts(Protocol):
    """The state that the collector reads; called on the event loop."""

    def queue_stands(self) -> Callable[[], Sequence[QueueStand]]:
        """Return a function that computes the state of every queue, sorted by name; it runs in any thread."""
        ...

    def free_gpus(self) -> Callable[[], FreeGpus]:
        """Return a function that counts the free GPUs; it runs in any thread."""
        ...

    def waiting(self) -> Sequence[tuple[PodGroup, Refusal | None]]:
        """Return the PodGroups with pending pods, and why each waits."""
        ...

    def promises(self) -> Mapping[str, int]:
        """Return the number of reservations in each state."""
        ...

    def gpu_health(self) -> Mapping[Health, int]:
        """Return the number of GPUs of each health."""
        ...

    def agents(self) -> Mapping[AgentState, int]:
        """Return the number of nodes with GPUs by the state of their agent."""
        ...

    def shared_gpus(self) -> Iterable[SharedMemory]:
        """Return the memory of the shared GPUs."""
        ...


MIB = 1 << 20

ACTIVE = "active"
"""The check that passes on the replica that decides."""

AMOUNTS: Mapping[str, Callable[[QueueStand], Sequence[int]]] = {
    "deserved": lambda stand: [stand.queue.entitlement(axis).deserved for axis in range(len(UNITS))],
    "limit": lambda stand: [stand.queue.entitlement(axis).limit for axis in range(len(UNITS))],
    "fair_share": lambda stand: NOTHING.amounts if stand.fair_share is None else stand.fair_share.amounts,
    "allocated": lambda stand: stand.allocated.amounts,
    "requested": lambda stand: stand.requested.amounts,
}
"""Amounts of a queue, in the order of `QUOTA_AXES`."""

MEANINGS: Mapping[str, str] = {
    "deserved": "What the queue is guaranteed",
    "limit": "What the queue never exceeds",
    "fair_share": "What the queue may have now, with its part of the surplus",
    "allocated": "What pods of the queue and of the queues below it hold",
    "requested": "What pods of the queue and of the queues below it hold or wait for",
}

NAMES_OF_UNITS: Mapping[str, str] = {"cpu_cores": "CPU cores", "memory_bytes": "bytes of memory", "gpus": "GPUs"}

UNITS: Mapping[str, int] = {"cpu_cores": 1000, "memory_bytes": 1, "gpus": 1000}
"""Of the resources of `QUOTA_AXES`, in their order: how many of our units one of these is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one scrape has read from state."""

    at: float
    """Seconds since the epoch."""
    checks: Sequence[Check]
    promises: Mapping[str, int]
    waiting: Sequence[tuple[PodGroup, Refusal | None]]
    queues: Sequence[QueueStand]
    free: FreeGpus
    health: Mapping[Health, int]
    agents: Mapping[AgentState, int]
    memory: Sequence[SharedMemory]


class Scrape(Collector):
    """One scrape: the counters of `counted`, and values that were read once from state."""

    def __init__(self, counted: Collector, seen: Seen) -> None:
        """Store the values. `counted` must be safe to call from any thread."""
        self._counted = counted
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        seen = self._seen
        yield from self._counted.collect()
        yield _build()
        yield from _readiness_families(seen.checks)
        yield _family("leeboard_promises", "Reservations by state.", "state", seen.promises)
        text = "Pending pods by the reason why they wait."
        yield _family("leeboard_refused_pods", text, "reason", _refused(seen.waiting))
        yield from _queue_families(seen.queues)
        yield from _pending_families(seen)
        health = {health.value: seen.health.get(health, 0) for health in Health}
        yield _family("leeboard_gpus", "GPUs that agents report, by health.", "health", health)
        yield from _gpu_node_families(seen)
        yield from _memory_families(seen.memory)


async def scrape(
    counted: Collector, counts: Counts, main: Asks, *, ready: Ready, clock: Callable[[], float] = time.time
) -> Scrape:
    """Read all values, each in its own call on the main loop. One call for all took 46 ms at 5,000 nodes.

    Another thread encodes the text. That takes ten times as long: 10,000 shared GPUs make 30,000 lines. `ready` is
    asked on this loop. `clock` is in seconds since the epoch.
    """
    seen = Seen(
        at=clock(),
        checks=ready.checks(),
        promises=await main.ask(lambda: dict(counts.promises())),
        waiting=await main.ask(lambda: list(counts.waiting())),
        queues=await asyncio.to_thread(await main.ask(counts.queue_stands)),
        free=await asyncio.to_thread(await main.ask(counts.free_gpus)),
        health=await main.ask(lambda: dict(counts.gpu_health())),
        agents=await main.ask(counts.agents),
        memory=await main.ask(lambda: tuple(counts.shared_gpus())),
    )
    return Scrape(counted, seen)


def _build() -> Metric:
    family = GaugeMetricFamily(
        "leeboard_build_info", "Always 1; the labels are the versions.", labels=["version", "python_version"]
    )
    family.add_metric([version("leeboard"), platform.python_version()], 1)
    return family


def _readiness_families(checks: Sequence[Check]) -> Iterator[Metric]:
    active = next((check.passed for check in checks if check.name == ACTIVE), False)
    yield GaugeMetricFamily("leeboard_leader", "1 on the replica that decides, 0 on others.", value=active)
    family = GaugeMetricFamily(
        "leeboard_healthcheck",
        "The checks of /readyz: 1 at the present status of each. Some pods wait while a check is degraded.",
        labels=["name", "status"],
    )
    for check in checks:
        present = "failed" if check.failure else "degraded" if check.degraded else "ok"
        for status in ("ok", "degraded", "failed"):
            family.add_metric([check.name, status], status == present)
    yield family


def _refused(waiting: Iterable[tuple[PodGroup, Refusal | None]]) -> Mapping[str, int]:
    # Every reason has a series: an alert cannot use a series that disappears at 0.
    pods = Counter(dict.fromkeys((reason.value for reason in Reason), 0))
    for group, refusal in waiting:
        if refusal is not None:
            pods[refusal.reason.value] += len(group.pending)
    return pods


def _pending_families(seen: Seen) -> Iterator[Metric]:
    """Yield what waits in each queue itself, so that the sum over queues counts no pod twice.

    Users choose the names of queues, so the pods of queues that do not exist have one series together.
    """
    waits: dict[str, float] = dict.fromkeys((str(stand.queue.name) for stand in seen.queues), 0.0)
    pods, groups = Counter(dict.fromkeys(waits, 0)), Counter(dict.fromkeys(waits, 0))
    for group, _ in seen.waiting:
        queue = str(group.queue if group.queue in waits else ORPHANED.name)
        pods[queue] += len(group.pending)
        groups[queue] += 1
        since = min((pod.created_at for pod in group.pending if pod.created_at), default=seen.at)
        waits[queue] = max(waits.get(queue, 0.0), seen.at - since)
    yield _family("leeboard_queue_pending_pods", "Pending pods of the queue itself.", "queue", pods)
    yield _family("leeboard_queue_pending_podgroups", "Pending PodGroups of the queue itself.", "queue", groups)
    text = "The age of the oldest pending pod of the queue itself; 0 when none is pending."
    yield _family("leeboard_queue_longest_wait_seconds", text, "queue", waits)


def _gpu_node_families(seen: Seen) -> Iterator[Metric]:
    agents = {state.value: seen.agents.get(state, 0) for state in AgentState}
    yield _family("leeboard_gpu_nodes", "Nodes with GPUs by the state of their agent.", "agent", agents)
    nodes = {str(number): count for number, count in seen.free.nodes.items()}
    text = "Nodes with GPUs that take pods, by their number of free whole GPUs."
    yield _family("leeboard_nodes_with_free_gpus", text, "gpus", nodes)
    if seen.free.unusable_ratio is not None:
        text = "Which part of the free GPUs typical pods are not expected to fill."
        yield GaugeMetricFamily("leeboard_gpu_fragmentation_ratio", text, value=seen.free.unusable_ratio)


def _memory_families(gpus: Iterable[SharedMemory]) -> Iterator[Metric]:
    """Yield the memory of shared GPUs only. Other GPUs are reserved as a whole, and other exporters measure them."""
    families = {
        amount: GaugeMetricFamily(
            f"leeboard_shared_gpu_memory_{amount}_bytes",
            f"Memory of a shared GPU: {amount}.",
            labels=["node", "device"],
        )
        for amount in ("total", "promised", "used")
    }
    for each in gpus:
        labels = [each.node, each.device]
        families["total"].add_metric(labels, each.total_mib * MIB)
        families["promised"].add_metric(labels, each.promised_mib * MIB)
        if each.used_mib is not None:
            families["used"].add_metric(labels, each.used_mib * MIB)
    yield from families.values()


def _queue_families(stands: Sequence[QueueStand]) -> Iterator[Metric]:
    for amount, of_stand in AMOUNTS.items():
        for axis, (unit, size) in enumerate(UNITS.items()):
            values = {str(stand.queue.name): _in_units(of_stand(stand)[axis], size) for stand in stands}
            text = f"{MEANINGS[amount]}, in {NAMES_OF_UNITS[unit]}; +Inf means no limit."
            yield _family(f"leeboard_queue_{amount}_{unit}", text, "queue", values)


def _family(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _in_units(amount: int, unit: int) -> float:
    return float("inf") if amount >= UNLIMITED else amount / unit
