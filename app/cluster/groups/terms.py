"""The terms on which the pods of a PodGroup are charged and ordered: queue, priority, and preemptibility."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from app.model.names import NATIVE_API, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec

DEFAULT_CLASS = "train"
"""KAI's priority class of pods that name none, or that name a class that does not exist."""

BUILT_IN_CLASSES: Mapping[str, int] = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
"""KAI's priority classes and values, known even where the objects are not installed."""

PREEMPTIBLE_BELOW = 100
"""KAI: a priority of 100 or more is non-preemptible unless set otherwise."""


class GroupTerms(NamedTuple):
    """The terms on which a group's pods are charged and ordered."""

    queue: QueueName
    priority: int
    preemptible: bool


def terms(spec: GroupSpec | None, pod: Pod, classes: Mapping[str, int]) -> GroupTerms:
    """Return the terms that a group's object states, else those of one of its pods (KAI's rules, its podgrouper)."""
    priority = _priority((*spec.priority_classes, *pod.priority_classes) if spec else pod.priority_classes, classes)
    preemptible = pod.explicit_preemptible if spec is None or spec.preemptible is None else spec.preemptible
    queue = (spec.queue if spec else None) or pod.queue
    return GroupTerms(queue, priority, priority < PREEMPTIBLE_BELOW if preemptible is None else preemptible)


def merged(stated: GroupSpec | None, derived: GroupSpec | None) -> GroupSpec | None:
    """Return the result of a PodGroup object and the statements of the owners of its pods.

    The owners' statements count, because the object is rewritten from them. The queue is the exception: an
    administrator may have moved the PodGroup to another queue (KAI).
    """
    if derived is not None and derived.key.api:
        return _native(stated, derived)
    if stated is None or derived is None:
        return derived or stated
    return replace(derived, uid=stated.uid, queue=stated.queue or derived.queue)


def _native(stated: GroupSpec | None, derived: GroupSpec) -> GroupSpec | None:
    """Return a native PodGroup on the terms of the owners of its pods; they do not replace a missing object."""
    if stated is None:
        return None
    return replace(
        stated,
        queue=derived.queue,
        preemptible=derived.preemptible,
        priority_classes=tuple(dict.fromkeys((*stated.priority_classes, *derived.priority_classes))),
        suspended=derived.suspended or stated.suspended,
    )


def spec_of_pod(pod: Pod) -> GroupSpec:
    """Return the substitute for a PodGroup object: a single pod needs none, a missing named object is a problem."""
    absent = f", or the API server does not serve {NATIVE_API}/v1beta1" if pod.group.api else ""
    problem = f"PodGroup {pod.group} does not exist{absent}; create it, or name another one" if pod.names_group else ""
    return GroupSpec(key=pod.group, min_member=1, created_at=pod.created_at, problem=problem)


def _priority(names: Iterable[str], classes: Mapping[str, int]) -> int:
    for name in names:
        value = classes.get(name, BUILT_IN_CLASSES.get(name))
        if value is not None:
            return value
    return classes.get(DEFAULT_CLASS, BUILT_IN_CLASSES[DEFAULT_CLASS])
