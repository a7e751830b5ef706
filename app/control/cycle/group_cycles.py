"""Tells which pods kube-scheduler schedules together: those of native PodGroups, where it has the gate GenericWorkload.

Its rules for them differ from those for single pods. It tries nobody before the last gate of a group is gone. It asks
about one member after the other and reverts all answers if the minimum is out of reach. It gives those that fitted the
message of the group, and nothing wakes a refused group before its pause is over.
"""

from app.cluster.state.cache import ClusterCache
from app.model.pod import Pod
from app.settings import Settings


class GroupCycles:
    """The pods that kube-scheduler schedules together, as the cache shows them. It has no state of its own."""

    def __init__(self, cache: ClusterCache, settings: Settings) -> None:
        """Read the setting that says whether kube-scheduler does so at all."""
        self._cache = cache
        self._are_on = settings.kube_scheduler_groups

    def include(self, pod: Pod) -> bool:
        """Return whether kube-scheduler schedules the pod together with the others of its PodGroup."""
        return self._are_on and bool(pod.group.api)

    def are_due(self, pod: Pod) -> bool:
        """Return whether kube-scheduler must be able to try the group of the pod: a member can be bound now."""
        if not self.include(pod):
            return False
        held = self._cache.reservations
        return any(held.promised(one.pod) is not None for one in held.of_group(pod.group))
