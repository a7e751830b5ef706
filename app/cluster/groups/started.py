"""Keeps the terms of each started group: the queue and the preemptibility recorded at its start stay valid."""

from collections.abc import Collection, Mapping

from app.cluster.groups.specs import GroupSpecs
from app.cluster.groups.stamps import Stamps
from app.cluster.groups.terms import GroupTerms, terms
from app.cluster.queues.tree import Queues
from app.model.names import GroupKey, PodUid, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec


class StartedTerms:
    """The terms of groups. Only `Membership` calls the methods that change them."""

    def __init__(
        self,
        specs: GroupSpecs,
        pods: Mapping[GroupKey, Mapping[PodUid, Pod]],
        queues: Queues,
    ) -> None:
        """`pods` has the pods of each group."""
        self._specs = specs
        self._pods = pods
        self._queues = queues
        self._stamps = Stamps()
        self._moved: dict[GroupKey, None] = {}
        """Groups whose PodGroup object names another queue than the queue with which their pods were bound."""

    def of(self, key: GroupKey) -> GroupTerms | None:
        """Return the terms of a group that has pods."""
        members = self._pods.get(key)
        return self.with_spec(key, self._specs.get(key), next(iter(members.values()))) if members else None

    def with_spec(self, key: GroupKey, spec: GroupSpec | None, pod: Pod) -> GroupTerms:
        """Return the terms of a group as if it had this spec and this first pod."""
        stated = terms(spec, pod, self._specs.classes)
        preemptible = stated.preemptible or self._stamps.preemptible(key) > 0
        return GroupTerms(self._queue(key) or stated.queue, stated.priority, preemptible)

    def moved(self) -> Collection[GroupKey]:
        """Return the groups whose queue depends on whether the queue that their PodGroup object names accepts pods."""
        return list(self._moved)

    def kept_preemptible(self, key: GroupKey, spec: GroupSpec) -> int:
        """Return how many pods keep a group preemptible that this object makes non-preemptible; otherwise 0."""
        members = self._pods.get(key)
        stated = terms(spec, next(iter(members.values())), self._specs.classes) if members else None
        return 0 if stated is None or stated.preemptible else self._stamps.preemptible(key)

    def replace(self, before: Pod | None, pod: Pod | None) -> None:
        """Replace the record of a group's pod by the new one; None where there is no such pod."""
        self._stamps.replace(before, pod)
        for one in (before, pod):
            if one is not None and one.bound_queue:
                self.note_move(one.group)

    def note_move(self, key: GroupKey) -> bool:
        """Note whether a group was moved to another queue; return whether that is a change."""
        spec, bound, before = self._specs.object(key), self._stamps.queue(key), len(self._moved)
        if spec is not None and spec.queue and bound and spec.queue != bound:
            self._moved[key] = None
        else:
            self._moved.pop(key, None)
        return len(self._moved) != before

    def _queue(self, key: GroupKey) -> QueueName:
        """Return the queue of a started group: the queue to which its PodGroup was moved, else that of its binding.

        Empty when the group has not started. A move to a queue that accepts no pods does not count: no queue would pay.
        """
        stated = self._specs.object(key) if key in self._moved else None
        named = stated.queue if stated is not None else None
        return named if named and self._queues.takes_pods(named) else self._stamps.queue(key)
