"""Finds the state of a pod, from held over bound to being deleted, and what keeps it from the next state."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.cluster.groups.groups import overlooked
from app.cluster.ledger.reservations import ReservationState
from app.cluster.state.cache import ClusterCache
from app.model.explanation import PodState
from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Pod
from app.model.reason import Reason, Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPod:
    """A pod and its state."""

    pod: Pod
    state: PodState
    node: NodeName | None = None
    is_node_gone: bool = False
    """The pod is bound to a node that does not exist any more."""
    refusal: Refusal | None = None


def known(
    cache: ClusterCache,
    refusals: Mapping[GroupKey, Refusal],
    pod: Pod,
    *,
    stalled: Mapping[GroupKey, Refusal],
    awaited: Mapping[PodUid, Refusal],
) -> KnownPod:
    """Return the state of the pod.

    `refusals` are those of the last plan; `stalled`, and `awaited` for the pods of its group, come from `Planning`.
    """
    if pod.node is not None:
        state, is_gone = (
            PodState.RELEASING if pod.deleting else PodState.BOUND,
            pod.node not in cache.snapshots.table().index,
        )
        return KnownPod(pod=pod, state=state, node=pod.node, is_node_gone=is_gone)
    held = cache.reservations.get(pod.uid)
    if held is None and pod.deleting:
        return KnownPod(pod=pod, state=PodState.RELEASING)
    if held is None:
        return KnownPod(pod=pod, state=PodState.HELD, refusal=_why_held(cache, refusals, pod))
    why = stalled.get(pod.group)
    if held.state is ReservationState.AWAITING:
        why = awaited.get(pod.uid) or _why_awaiting(cache, pod, held.node)
    elif why is not None and why.reason is not Reason.BACKING_OFF:
        # What other pods of its group wait for does not block a pod with a place.
        why = None
    if why is None and held.state is ReservationState.PROMISED:
        # Same answer as without a place: the pod gets a place now and then, which changes nothing for it.
        why = overlooked(pod, is_overlooked=cache.groups.asked.is_unasked(pod))
    state = PodState.BINDING if held.state is ReservationState.ANSWERED else PodState(held.state.value)
    return KnownPod(pod=pod, state=state, node=held.node, refusal=why)


def _why_held(cache: ClusterCache, refusals: Mapping[GroupKey, Refusal], pod: Pod) -> Refusal | None:
    if pod.problem:
        return Refusal(reason=Reason.INVALID_REQUEST, sentence=f"{pod.problem}.")
    refusal, unasked = refusals.get(pod.group), overlooked(pod, is_overlooked=cache.groups.asked.is_unasked(pod))
    if unasked is not None and (refusal is None or refusal.reason is unasked.reason):
        # The refusal of its group may name another pod.
        return unasked
    if refusal is None and pod.said.by_scheduler and pod.said.because:
        # The pod is beyond the minimum of its group: the group starts without it and has no refusal.
        sentence = f"The filters of kube-scheduler accept it on no node: {pod.said.because}."
        return Refusal(reason=Reason.REFUSED_BY_SCHEDULER, sentence=sentence)
    return refusal


def _why_awaiting(cache: ClusterCache, pod: Pod, node: NodeName) -> Refusal:
    if cache.gpus.not_ready(pod.uid) and cache.room.suffices((pod.uid,)):
        sentence = f"A GPU on node {node} is being made ready for it to share; the rest of its room there is free."
        return Refusal(reason=Reason.WAITING_FOR_DEVICES, sentence=sentence, details={"node": node})
    sentence = f"Other pods have not left its room on node {node} yet; the room is reserved for it."
    return Refusal(reason=Reason.WAITING_FOR_VICTIMS, sentence=sentence, details={"node": node})
