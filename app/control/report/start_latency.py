"""Measures how long pods wait from their creation until they are bound."""

from collections.abc import Callable

from prometheus_client import Histogram

from app.cluster.state.cache import ClusterCache
from app.control.leadership.readiness import Precondition
from app.model.pod import Pod
from app.telemetry import Metrics

MOST_QUEUES = 500
"""The most queues with a histogram of their own; pods of later queues are counted without the name of their queue."""


class StartLatency:
    """Counts each start once, on the active replica."""

    def __init__(
        self, cache: ClusterCache, metrics: Metrics, leadership: Precondition, *, wall_clock: Callable[[], float]
    ) -> None:
        """`wall_clock` is in seconds since the epoch, as the creation of pods is."""
        self._cache = cache
        self._metrics = metrics
        self._leadership = leadership
        self._wall_clock = wall_clock
        # By queue: looking up a series by its labels costs more than all else here. Only `note_pod` adds to it.
        self._series: dict[str, Histogram] = {}

    def note_pod(self, pod: Pod, *, before: Pod | None) -> None:
        """Observe the wait of a managed pod that has got its node. Other waits have no known beginning or end."""
        if pod.node is None or before is None or before.node is not None or not pod.managed or not pod.created_at:
            return
        if self._leadership.failure():
            return
        self._series_of(pod).observe(max(0.0, self._wall_clock() - pod.created_at))

    def _series_of(self, pod: Pod) -> Histogram:
        terms = self._cache.groups.terms.of(pod.group)
        queue = str(pod.queue if terms is None else terms.queue)
        found = self._series.get(queue)
        if found is None:
            found = self._metrics.start_latency(queue if len(self._series) < MOST_QUEUES else "")
            if len(self._series) < MOST_QUEUES:
                self._series[queue] = found
        return found
