"""A pod grouper for tests that are about something else."""

from collections.abc import Callable

from app.cluster.state.cache import ClusterCache
from app.control.groups.pod_grouper import PodGrouper
from app.control.groups.podgroup_writer import PodGroupWriter
from app.grouping import NO_DEFAULTS
from app.model.seam import Objects


def grouper(cache: ClusterCache, cluster: Objects, *, on_change: Callable[[], None] = lambda: None) -> PodGrouper:
    """Build one that writes whenever it likes."""
    writer = PodGroupWriter(cache, cluster, inactive=str)
    return PodGrouper(cache, cluster, writer, defaults=NO_DEFAULTS, on_change=on_change)
