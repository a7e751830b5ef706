"""Adds pods with their groups to the cache, and removes them: the one watched kind that other parts observe."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from app.cluster import decode
from app.cluster.decode import SeenPod
from app.cluster.state.cache import ClusterCache
from app.cluster.state.lasting import lasting, plain
from app.control.gpus.sharing_rules import rules_of
from app.control.groups.arrivals import Arrivals
from app.control.groups.completions import CompletionLookup
from app.control.groups.grouped_pods import keeps_of
from app.control.groups.pod_grouper import PodGrouper
from app.control.informers.tolerance import Tolerance
from app.model.names import PodUid
from app.model.pod import Pod
from app.model.seam import RawObject, Resource
from app.settings import Settings
from app.telemetry import Step


class PodObserver(Protocol):
    """A part that is notified of each pod once the cache has it."""

    def note_pod(self, pod: Pod, *, before: Pod | None) -> None:
        """Handle a pod that a watch has shown; `before` is the pod as the cache had it, None when it is new."""
        ...


class PodKind:
    """Pods."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        settings: Settings,
        tolerance: Tolerance,
        grouper: PodGrouper,
        endings: CompletionLookup,
        arrivals: Arrivals,
        *,
        observers: Sequence[PodObserver] = (),
    ) -> None:
        """`observers` are notified of each pod after it is applied."""
        self._cache = cache
        self._tolerance = tolerance
        self._grouper = grouper
        self._endings = endings
        self._arrivals = arrivals
        self._observers = observers
        self._profiles = settings.profiles
        self._rules = rules_of(settings)
        self.keeps = keeps_of(settings)
        """The pod fields that grouping needs."""

    def decode(self, raw: RawObject) -> SeenPod:
        """Decode a pod."""
        return decode.seen_pod(raw, profiles=self._profiles, rules=self._rules, keeps=self.keeps)

    def least(self, raw: RawObject) -> SeenPod:
        """Read the required fields of a pod on which `decode` has failed."""
        return decode.least_pod(raw, profiles=self._profiles)

    def key(self, record: SeenPod) -> PodUid:
        """Return the uid: another pod may have the same name."""
        return record.pod.uid

    def former_key(self, record: SeenPod) -> PodUid | None:
        """Return the former key of a pod that showed no uid at first."""
        nameless = PodUid(decode.without_uid(record.pod.namespace, record.pod.name))
        return nameless if record.pod.uid != nameless else None

    def apply(self, record: SeenPod) -> None:
        """Assign a pod to its group and add it to the cache."""
        before = self._cache.pods.get(record.pod.uid)
        pod = self._grouped(lasting(self._cache.pods.as_shown(record.pod.uid), record.pod))
        if not self._tolerance.attempt(Resource.PODS, Step.APPLY, pod, self._apply_whole, pod, record.started_at):
            self._cache.apply_pod(plain(pod))
        if before is not None and before.group != pod.group:
            self._grouper.forget_if_over(before.group)
        for observer in self._observers:
            observer.note_pod(pod, before=before)
        self._arrivals.note(pod)

    def forget(self, key: PodUid) -> None:
        """Remove a pod: its resources are free at once, however it ended; its outcome is looked up later."""
        pod = self._cache.pods.get(key)
        self._cache.delete_pod(key)
        if pod is not None:
            self._grouper.forget(pod)
            self._endings.look_up(pod)

    def fail(self, key: PodUid) -> None:
        """Do nothing: a pod that cannot be applied stays charged as far as it is known."""

    def note_first_list(self) -> None:
        """Note that all existing pods have been applied."""
        self._grouper.note_pods_listed()

    def _apply_whole(self, pod: Pod, started_at: float | None) -> bool:
        self._cache.apply_pod(pod, started_at)
        return True

    def _grouped(self, pod: Pod) -> Pod:
        found = self._tolerance.attempt(Resource.PODS, Step.APPLY, pod, self._grouper.settle, pod)
        # Where its owners trigger a bug of ours, the pod is charged and not started.
        return found or lasting(self._cache.pods.as_shown(pod.uid), replace(pod, problem=decode.LEAST))
