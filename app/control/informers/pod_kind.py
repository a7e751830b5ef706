"""Puts pods into the cache with their groups, and removes them: the one watched kind on which other parts hang."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
    """A part that looks at each pod once the cache has it."""

    def note_pod(self, pod: Pod, *, is_new: bool) -> None:
        """Look at a pod that a watch has shown; `is_new` when it was not in the cache before."""
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
        """`observers` look at each pod after it is applied."""
        self._cache = cache
        self._tolerance = tolerance
        self._grouper = grouper
        self._endings = endings
        self._arrivals = arrivals
        self._observers = observers
        self._profiles = settings.profiles
        self._rules = rules_of(settings)
        self.keeps = keeps_of(settings)
        """What is kept of pods for grouping."""

    def decode(self, raw: RawObject) -> SeenPod:
        """Read a pod."""
        return decode.seen_pod(raw, profiles=self._profiles, rules=self._rules, keeps=self.keeps)

    def least(self, raw: RawObject) -> SeenPod:
        """Read what must be known of a pod on which `decode` has failed."""
        return decode.least_pod(raw, profiles=self._profiles)

    def key(self, record: SeenPod) -> PodUid:
        """Return the uid: another pod may have the name."""
        return record.pod.uid

    def former_key(self, record: SeenPod) -> PodUid | None:
        """Return by what a pod was known that showed no uid then."""
        nameless = PodUid(decode.without_uid(record.pod.namespace, record.pod.name))
        return nameless if record.pod.uid != nameless else None

    def apply(self, record: SeenPod) -> None:
        """Put a pod into its group and into the cache."""
        before = self._cache.pods.get(record.pod.uid)
        pod = self._grouped(lasting(self._cache.pods.as_shown(record.pod.uid), record.pod))
        apply = partial(self._apply_whole, pod, record.started_at)
        if not self._tolerance.attempt(Resource.PODS, Step.APPLY, repr(pod), apply):
            self._cache.apply_pod(plain(pod))
        if before is not None and before.group != pod.group:
            self._grouper.forget_if_over(before.group)
        for observer in self._observers:
            observer.note_pod(pod, is_new=before is None)
        self._arrivals.note(pod)

    def forget(self, key: PodUid) -> None:
        """Remove a pod: what it held is free at once, however it ended; how it ended is looked up behind."""
        pod = self._cache.pods.get(key)
        self._cache.delete_pod(key)
        if pod is not None:
            self._grouper.forget(pod)
            self._endings.look_up(pod)

    def fail(self, key: PodUid) -> None:
        """Nothing is to be closed: a pod that cannot be applied is charged as far as it is known."""

    def note_first_list(self) -> None:
        """Note that all pods that there are have been applied."""
        self._grouper.note_pods_listed()

    def _apply_whole(self, pod: Pod, started_at: float | None) -> bool:
        self._cache.apply_pod(pod, started_at)
        return True

    def _grouped(self, pod: Pod) -> Pod:
        found = self._tolerance.attempt(Resource.PODS, Step.APPLY, repr(pod), partial(self._grouper.settle, pod))
        # Where its owners bring out a mistake of ours, it is charged and not started.
        return found or lasting(self._cache.pods.as_shown(pod.uid), replace(pod, problem=decode.LEAST))
