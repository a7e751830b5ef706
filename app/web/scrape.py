"""The metrics that are read from state when Prometheus asks, so that no gauge can be forgotten."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.model.decision import Share
from app.model.names import QueueName
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.resources import UNLIMITED, Resources


class Counts(Protocol):
    """What the collector reads; called on the event loop."""

    def queues(self) -> Mapping[QueueName, Share]:
        """Return every queue's share."""
        ...

    def waiting(self) -> Sequence[tuple[PodGroup, Refusal | None]]:
        """Return the PodGroups with pending pods, and why they wait."""
        ...

    def promises(self) -> Mapping[str, int]:
        """Return how many promises are in each state."""
        ...


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


class ClusterCollector(Collector):
    """Turns counts into metric families."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def describe(self) -> list[Metric]:
        """Return nothing: without this, registering would already read the state."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield _family("leeboard_promises", "Promises by state.", "state", self._counts.promises())
        yield _family("leeboard_refused_pods", "Pending pods by why they wait.", "reason", self._refused())
        yield from _queue_families(self._counts.queues())

    def _refused(self) -> Mapping[str, int]:
        # Every reason is always there: a series that vanishes at 0 cannot be alerted on.
        pods = Counter(dict.fromkeys((reason.value for reason in Reason), 0))
        for group, refusal in self._counts.waiting():
            if refusal is not None:
                pods[refusal.reason.value] += len(group.pending)
        return pods


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
