"""Keeps the terms on which a pod has started: later changes to the pod do not change them.

A pod has started when it has a node, or when kube-scheduler got the answer that the pod may have one.
"""

from dataclasses import replace

from app.cluster.groups.membership import Membership
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.model.pod import Pod

FIXED_BY_BIND = "bound_queue", "started_firm", "sharing", "devices", "device_uuids", "group", "names_group"
"""Fields of a pod that nothing changes any more once bind has recorded their source on the pod."""


def as_started(before: Pod, pod: Pod, held: Reservation | None, groups: Membership) -> Pod:
    """Return a pod on the terms on which it has started: no admission policy may protect what is recorded on it."""
    has_started = pod.node is not None or (held is not None and held.state is ReservationState.ANSWERED)
    is_known = has_started and pod.managed and before.managed
    if is_known and not pod.started_preemptible and _was_preemptible(before, groups):
        pod = replace(pod, started_preemptible=True)
    if not before.bound_queue:
        # The pod keeps the queue that its label named when the pod got its node. Leeboard keeps this until a restart.
        # The PodGroup of the pod may still be moved to another queue.
        return replace(pod, queue=before.queue) if is_known and pod.queue != before.queue else pod
    if before.node is None:
        return pod if pod.bound_queue == before.bound_queue else replace(pod, bound_queue=before.bound_queue)
    fixed = {name: getattr(before, name) for name in FIXED_BY_BIND}
    # The owners of a pod may state its sub-group, and may be known only later.
    fixed["subgroup"] = pod.subgroup if before.ungrouped else before.subgroup
    return pod if all(getattr(pod, name) == value for name, value in fixed.items()) else replace(pod, **fixed)


def _was_preemptible(before: Pod, groups: Membership) -> bool:
    """Whether a pod was preemptible when it got its node, without a record on it: it has not passed admission.

    Leeboard keeps this until a restart.
    """
    if before.node is not None:
        return before.started_preemptible
    on = groups.terms.of(before.group)
    return on is not None and on.preemptible
