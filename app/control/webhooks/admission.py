"""Answers the API server's admission requests before it stores an object, from the request and the cache alone.

A new managed pod is held unless it can run now. The message for a contradictory object says what to write instead.
Nothing is awaited and nothing is written. A wrong guess costs a later patch, but never breaks a rule.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from app.cluster.admit import environment, pods, policy, shape
from app.cluster.admit.pods import GpuSharing
from app.cluster.decode.excess import excess
from app.cluster.decode.glances import UNBORN
from app.cluster.decode.pods import DEFAULT_SCHEDULER, PRIORITY_CLASS_LABEL
from app.cluster.state.cache import ClusterCache
from app.control.cycle.group_cycles import GroupCycles
from app.control.leadership.readiness import Precondition
from app.control.webhooks.fast_path import Newcomer
from app.model.admission import (
    AdmissionAnswer,
    AdmissionQuestion,
    Admitted,
    Denied,
    Operation,
    PatchOperation,
    Undecided,
)
from app.model.marks import BIND_MARKER
from app.model.names import GroupKey, QueueName
from app.model.quantity import shown
from app.model.seam import RawObject
from app.model.spelling import hint_among
from app.settings import Settings

POD, QUEUE, POD_GROUP = ("", "Pod"), ("scheduling.run.ai", "Queue"), ("scheduling.run.ai", "PodGroup")
TOPOLOGY = ("kai.scheduler", "Topology")

USUAL_PROFILE = "kai-scheduler"

CHANGED_BY_OTHERS = (
    "another webhook changed the pod after Leeboard's webhook: the pod is now in a gang, is non-preemptible, or has"
    " volumes. Leeboard must bind such a pod, but kube-scheduler would not ask it to. Try again; if that does not help,"
    " rename that webhook's configuration so that it sorts before Leeboard's"
)

Judge = Callable[[RawObject], str]
"""Returns what is wrong with an object; empty when nothing is wrong."""


class DecidesAtCreation(Protocol):
    """Decides about pods that do not exist yet."""

    def look(self, raw: RawObject) -> Newcomer:
        """Read a pod, for the methods below."""
        ...

    def can_run_now(self, newcomer: Newcomer) -> bool:
        """Return whether the pod could start at once; the room may then be kept for the pod for a moment."""
        ...

    def may_be_bound_elsewhere(self, newcomer: Newcomer) -> bool:
        """Return whether nothing is lost when kube-scheduler binds the pod by itself."""
        ...

    def must_be_bound_here(self, newcomer: Newcomer) -> bool:
        """Return whether something is surely lost then; neither is certain while the pod's owners are not known."""
        ...

    def queue(self, newcomer: Newcomer) -> QueueName:
        """Return the queue of a single pod, from its labels and its owners."""
        ...

    def owners_class(self, newcomer: Newcomer) -> str:
        """Return the priority class that the known owners of the pod name; empty for none."""
        ...


class Admission:
    """The mutating and the validating webhook, without the wire format."""

    def __init__(
        self,
        cache: ClusterCache,
        entrance: DecidesAtCreation,
        settings: Settings,
        *,
        freshness: Precondition,
    ) -> None:
        """`freshness` says whether the cache shows the cluster."""
        self._cache = cache
        self._entrance = entrance
        self._cycles = GroupCycles(cache, settings)
        self._profiles = settings.profiles
        self._markers = settings.markers
        self._gpu_runtime_class = settings.gpu_runtime_class
        self._freshness = freshness
        self._gpu_sharing = GpuSharing.ON if settings.gpu_sharing else GpuSharing.OFF
        self._judges: Mapping[tuple[str, str], Judge] = {
            POD: self._pod_problem,
            QUEUE: self._queue_problem,
            POD_GROUP: policy.group_problem,
            TOPOLOGY: policy.topology_problem,
        }

    def mutate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Return the patch for a new pod; a second call with the patched pod changes nothing more."""
        if _kind(question) != POD or question.operation is not Operation.CREATE:
            return Admitted()
        raw = _named(question.object, question)
        profile = self._profile_of(raw)
        if profile is None or shape.is_placed(raw):
            return Admitted()
        if found := excess(raw):
            return Denied(found)
        pod, warnings = shape.of_scheduler(raw, profile), list(pods.replaced(raw))
        # Where the API server itself holds pods, the validating webhook is not called for pods that stay held.
        if found := self._pod_problem(environment.with_devices(pod)):
            return Denied(found)
        if cause := self._freshness.failure():
            return Undecided(cause)
        warnings += pods.oddities(pod, profiles=self._profiles, queues=self._cache.queues.tree())
        newcomer = self._entrance.look(pod)
        if name := self._class(pod, newcomer, warnings):
            newcomer = self._entrance.look(shape.of_class(pod, name))
        patch: Iterable[PatchOperation] = chain(
            shape.scheduler(raw, profile),
            shape.priority(pod, name) if name else (),
            self._marked(pod, newcomer),
            shape.runtime(pod, self._gpu_runtime_class),
            environment.devices(pod),
            shape.released(pod) if self._can_run_now(pod, newcomer, question) else shape.held(pod),
        )
        return Admitted(patch=tuple(patch), warnings=tuple(warnings))

    def validate(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Return whether an object may be stored; an object that is being deleted always may."""
        if question.operation is Operation.DELETE:
            return Admitted(warnings=tuple(self._losses(question)))
        judge = self._judges.get(_kind(question))
        if judge is None or _is_left_alone(question):
            return Admitted()
        if refusal := _refusal(question, judge) or self._unmarked_problem(question):
            return Denied(refusal)
        return Admitted(warnings=() if self._freshness.failure() else tuple(self._oddities(question)))

    # Pods -----------------------------------------------------------------------------------------------------------

    def _profile_of(self, raw: RawObject) -> str | None:
        """Return the profile that will schedule the pod; None if it is not a profile of ours.

        The webhook configuration selects the namespaces that opted in, so no pod of another namespace arrives here.
        """
        named = shape.scheduler_of(raw)
        if named in self._profiles:
            return named
        if named != DEFAULT_SCHEDULER or not shape.names_queue(raw):
            return None
        return USUAL_PROFILE if USUAL_PROFILE in self._profiles else min(self._profiles)

    def _class(self, pod: RawObject, newcomer: Newcomer, warnings: list[str]) -> str:
        """Return the priority class for the pod, from a label of its owners or its own label; empty for none.

        kube-scheduler schedules no group whose pods have another priority than the group.
        """
        if self._cycles.include(newcomer.pod):
            return ""
        name = self._entrance.owners_class(newcomer) or shape.labelled_class(pod)
        if not name or self._cache.groups.specs.has_class(name):
            return name
        hint = hint_among(self._cache.groups.specs.classes, name) or "create it, or change the label"
        absent = f"PriorityClass {shown(name)} of label {PRIORITY_CLASS_LABEL} does not exist"
        warnings.append(f"{absent}, so the pod keeps its own priority; {hint}")
        return ""

    def _marked(self, pod: RawObject, newcomer: Newcomer) -> Iterator[PatchOperation]:
        """Mark the pod so that kube-scheduler asks us to filter it, and to bind it if that needs more than a node."""
        if BIND_MARKER in self._markers and self._entrance.may_be_bound_elsewhere(newcomer):
            yield from shape.markers(pod, self._markers - {BIND_MARKER})
            yield from shape.unmarked(pod, BIND_MARKER)
            yield from shape.stamped(pod, self._entrance.queue(newcomer))
        else:
            yield from shape.markers(pod, self._markers)
            if BIND_MARKER in self._markers:
                yield from shape.not_stamped(pod)

    def _can_run_now(self, pod: RawObject, newcomer: Newcomer, question: AdmissionQuestion) -> bool:
        # The fast path keeps room for the pod, which must not happen for a pod that will not be stored.
        return not (question.dry_run or shape.has_foreign_gate(pod)) and self._entrance.can_run_now(newcomer)

    # What is wrong, and what is odd ---------------------------------------------------------------------------------

    def _pod_problem(self, raw: RawObject) -> str:
        return pods.problem(raw, profiles=self._profiles, gpu_sharing=self._gpu_sharing)

    def _unmarked_problem(self, question: AdmissionQuestion) -> str:
        """Return what is wrong with a new pod that kube-scheduler may bind but another webhook has changed since."""
        if _kind(question) != POD or question.operation is not Operation.CREATE or BIND_MARKER not in self._markers:
            return ""
        raw = _named(question.object, question)
        is_left = shape.is_preemptible_for_good(raw) and not shape.asks_for(raw, BIND_MARKER)
        if not is_left or self._profile_of(raw) is None or self._freshness.failure():
            return ""
        # In doubt the pod may pass: another replica, which has seen more, has let kube-scheduler bind it.
        return CHANGED_BY_OTHERS if self._entrance.must_be_bound_here(self._entrance.look(raw)) else ""

    def _queue_problem(self, raw: RawObject) -> str:
        return policy.queue_problem(raw, self._cache.queues.tree())

    def _oddities(self, question: AdmissionQuestion) -> Iterator[str]:
        raw, queues = _named(question.object, question), self._cache.queues.tree()
        if _kind(question) == POD and question.operation is Operation.CREATE:
            yield from pods.oddities(raw, profiles=self._profiles, queues=queues)
        elif _kind(question) == POD and question.old is not None:
            yield from pods.relabelled(_named(question.old, question), raw, profiles=self._profiles)
        elif _kind(question) == QUEUE:
            yield from policy.queue_oddities(raw, queues)
        elif _kind(question) == POD_GROUP:
            key = GroupKey(question.namespace, question.name)
            yield from policy.group_oddities(raw, queues)
            yield from policy.group_keeps(raw, self._cache.groups)
            if question.old is not None:
                held = self._cache.reservations.of_group(key)
                old = _named(question.old, question)
                yield from policy.group_change(old, raw, starting=len(held))

    def _losses(self, question: AdmissionQuestion) -> Iterator[str]:
        if _kind(question) == QUEUE and not self._freshness.failure():
            name = QueueName(question.name)
            yield from policy.queue_loss(
                name, self._cache.queues.tree().values(), self._cache.charges.usage().get(name)
            )


def _kind(question: AdmissionQuestion) -> tuple[str, str]:
    return question.group, question.kind


def _refusal(question: AdmissionQuestion, judge: Judge) -> str:
    """Return the problem that a change adds; an existing problem must not block other changes to the object."""
    found = judge(_named(question.object, question))
    if found and question.old is not None and judge(_named(question.old, question)) == found:
        return ""
    return found


def _is_left_alone(question: AdmissionQuestion) -> bool:
    """Return whether an object is being deleted, or is a new pod that has a node already and needs no scheduling."""
    if _kind(question) == POD and question.operation is Operation.CREATE and shape.is_placed(question.object):
        return True
    metadata = question.object.get("metadata")
    return isinstance(metadata, dict) and metadata.get("deletionTimestamp") is not None


def _named(raw: RawObject, question: AdmissionQuestion) -> RawObject:
    """Return the object with the names that it gets when it is stored, as far as they are known."""
    metadata = raw.get("metadata")
    stated = metadata if isinstance(metadata, dict) else {}
    prefix = stated.get("generateName")
    name = question.name or (prefix if isinstance(prefix, str) else "") or UNBORN
    names = {"name": name, "uid": UNBORN, "namespace": question.namespace or UNBORN}
    missing = {key: value for key, value in names.items() if not (isinstance(stated.get(key), str) and stated[key])}
    return {**raw, "metadata": {**stated, **missing}} if missing else raw
