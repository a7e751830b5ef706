"""Tells on what terms a pod goes on that has started: nothing that is written on it later changes them.

A pod has started when it has a node, or when kube-scheduler was told that it may have one.
"""

from dataclasses import replace

from app.cluster.groups.membership import Membership
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.model.pod import Pod

FIXED_BY_BIND = "bound_queue", "started_firm", "sharing", "devices", "device_uuids", "group", "names_group"
"""Fields of a pod that nothing changes any more once bind has written on it what they follow from."""


def as_started(before: Pod, pod: Pod, held: Reservation | None, groups: Membership) -> Pod:
    """Return a pod as it is now, on the terms on which it has started: no policy may guard what is noted on it."""
    has_started = pod.node is not None or (held is not None and held.state is ReservationState.ANSWERED)
    is_known = has_started and pod.managed and before.managed
    if is_known and not pod.started_preemptible and _was_preemptible(before, groups):
        pod = replace(pod, started_preemptible=True)
    if not before.bound_queue:
        # Its queue is the one that its label named when it got its place. That is known until Leeboard restarts.
        # Its PodGroup may still be moved to another queue.
        return replace(pod, queue=before.queue) if is_known and pod.queue != before.queue else pod
    if before.node is None:
        return replace(pod, bound_queue=before.bound_queue)
    fixed = {name: getattr(before, name) for name in FIXED_BY_BIND}
    # Its owners may tell its sub-group, and be known later.
    fixed["subgroup"] = pod.subgroup if before.ungrouped else before.subgroup
    return pod if all(getattr(pod, name) == value for name, value in fixed.items()) else replace(pod, **fixed)


def _was_preemptible(before: Pod, groups: Membership) -> bool:
    """Whether a pod was preemptible when it got its place and nothing on it says so: admission has not seen it.

    That is known until Leeboard restarts.
    """
    if before.node is not None:
        return before.started_preemptible
    on = groups.terms.of(before.group)
    return on is not None and on.preemptible
