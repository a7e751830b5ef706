"""Metrics that are read from state at each scrape, so that no gauge is stale."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.model.decision import Share
from app.model.device import Health
from app.model.names import QueueName
from app.model.occupancy import SharedMemory
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import UNLIMITED, Resources
from app.web.visits import Asks


class Counts(Protocol):
    """The state that the collector reads; called on the event loop."""

    def queues(self) -> Callable[[], Mapping[QueueName, Share]]:
        """Return a function that computes every queue's share now. It takes long, so it runs in any thread."""
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

    def shared_gpus(self) -> Iterable[SharedMemory]:
        """Return the memory of the shared GPUs."""
        ...


MIB = 1 << 20

AMOUNTS: Mapping[str, Callable[[Share], Resources]] = {
    "deserved": lambda share: share.deserved,
    "fair_share": lambda share: share.fair_share,
    "allocated": lambda share: share.allocated,
    "requested": lambda share: share.requested,
}
UNITS: Mapping[str, Callable[[Resources], float]] = {
    "gpus": lambda amount: _in_units(amount.gpu_milli, 1000),
    "cpu_cores": lambda amount: _in_units(amount.cpu_milli, 1000),
    "memory_bytes": lambda amount: _in_units(amount.memory_bytes, 1),
}


class Scrape(Collector):
    """One scrape: the counters of `counted`, and values that were read once from state."""

    def __init__(  # noqa: PLR0913 # one argument for each value that is read
        self,
        counted: Collector,
        *,
        promises: Mapping[str, int],
        waiting: Iterable[tuple[PodGroup, Refusal | None]],
        queues: Mapping[QueueName, Share],
        health: Mapping[Health, int],
        memory: Iterable[SharedMemory],
    ) -> None:
        """Store the values. `counted` must be safe to call from any thread."""
        self._counted = counted
        self._promises = dict(promises)
        self._refused = _refused(waiting)
        self._queues = dict(queues)
        self._health = dict(health)
        self._memory = tuple(memory)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        yield from self._counted.collect()
        yield _family("leeboard_promises", "Reservations by state.", "state", self._promises)
        yield _family("leeboard_refused_pods", "Pending pods by the reason why they wait.", "reason", self._refused)
        yield from _queue_families(self._queues)
        health = {health.value: self._health.get(health, 0) for health in Health}
        yield _family("leeboard_gpus", "GPUs that agents report, by health.", "health", health)
        yield from _memory_families(self._memory)


async def scrape(counted: Collector, counts: Counts, main: Asks) -> Scrape:
    """Read all values, each in its own call on the main loop. One call for all took 46 ms at 5,000 nodes.

    Another thread encodes the text. That takes ten times as long: 10,000 shared GPUs make 30,000 lines.
    """
    return Scrape(
        counted,
        promises=await main.ask(lambda: dict(counts.promises())),
        waiting=await main.ask(lambda: list(counts.waiting())),
        queues=await asyncio.to_thread(await main.ask(counts.queues)),
        health=await main.ask(lambda: dict(counts.gpu_health())),
        memory=await main.ask(lambda: tuple(counts.shared_gpus())),
    )


def _refused(waiting: Iterable[tuple[PodGroup, Refusal | None]]) -> Mapping[str, int]:
    # Every reason has a series: an alert cannot use a series that disappears at 0.
    pods = Counter(dict.fromkeys((reason.value for reason in Reason), 0))
    for group, refusal in waiting:
        if refusal is not None:
            pods[refusal.reason.value] += len(group.pending)
    return pods


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


def _queue_families(queues: Mapping[QueueName, Share]) -> Iterator[Metric]:
    for amount, of_share in AMOUNTS.items():
        for unit, in_unit in UNITS.items():
            values = {str(name): in_unit(of_share(share)) for name, share in queues.items()}
            text = f"The queue's {amount.replace('_', ' ')} in {unit.replace('_', ' ')}."
            yield _family(f"leeboard_queue_{amount}_{unit}", text, "queue", values)


def _family(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _in_units(amount: int, unit: int) -> float:
    return float("inf") if amount >= UNLIMITED else amount / unit
