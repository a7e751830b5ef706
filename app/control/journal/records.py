"""Words decisions for later readers: starts, refusals, evictions."""

from collections.abc import Sequence
from dataclasses import replace

from app.cluster.groups.membership import Membership
from app.control.journal.references import group_reference
from app.model.decision import Eviction, Start
from app.model.explanation import DecidedPod, Decision, Outcome
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.reason import Reason, Refusal
from app.model.sentence import Name, counted, open_ended, say


def workload_name(groups: Membership, key: GroupKey | None) -> Name | None:
    """Return the name by which users know the PodGroup that benefits; None when no single PodGroup benefits."""
    if key is None:
        return None
    reference = group_reference(groups, key)
    name = key.name if reference is None else reference["name"]
    return Name(key.namespace, name, "a workload in another namespace")


def after_noun(workload: Name | None) -> Name | str:
    """Return the name of a workload with its noun, such as `workload team/train`."""
    return "" if workload is None else replace(workload, otherwise="in another namespace")


def start_of(start: Start, pods: Sequence[Pod | None], *, generation: int, victims: int) -> Decision:
    """Record that places were found; `pods` are the pods of the placements, None for a pod that was deleted."""
    places = zip(start.placements, pods, strict=True)
    seats = tuple(DecidedPod(each.pod, pod.name, each.node) for each, pod in places if pod is not None)
    return Decision(
        outcome=Outcome.STARTED,
        group=start.group,
        generation=generation,
        pods=seats,
        cause=start.action,
        sentence=_of_places(start, victims),
    )


def _of_places(start: Start, victims: int) -> str:
    pods, nodes = len(start.placements), {each.node for each in start.placements}
    where = f"node {min(nodes)}" if len(nodes) == 1 else f"{len(nodes)} nodes"
    if not start.awaits_release:
        return (
            f"Places on {where} were reserved for its {pods} pods."
            if pods > 1
            else f"A place on {where} was reserved for it."
        )
    leavers = f"{counted(victims, 'pod')} had to be evicted" if victims else "other pods are already being deleted"
    who = f"{pods} pods" if pods > 1 else "it"
    return f"Room on {where} was reserved for {who}; {leavers}."


def refusal_of(group: PodGroup, refusal: Refusal, *, generation: int) -> Decision:
    """Record why a PodGroup waits from now on."""
    first = group.pending[0] if group.pending else None
    alone = () if first is None or first.names_group else (DecidedPod(first.uid, first.name),)
    return Decision(
        outcome=Outcome.FAILED if refusal.reason is Reason.BACKING_OFF else Outcome.REFUSED,
        group=group.key,
        generation=generation,
        pods=alone,
        cause=refusal.reason,
        sentence=refusal.sentence,
    )


def taken_back(eviction: Eviction, pod: Pod, *, beneficiary: Name | None, generation: int) -> Decision:
    """Record that a pod that does not run yet lost its reservation to another group."""
    others = say(" for workload {beneficiary}", beneficiary=after_noun(beneficiary)) if beneficiary else ""
    return Decision(
        outcome=Outcome.TAKEN_BACK,
        group=eviction.group,
        generation=generation,
        pods=(DecidedPod(pod.uid, pod.name, eviction.node),),
        cause=eviction.action,
        beneficiary=beneficiary,
        sentence=say(
            "The reservation of node {node} for pod {namespace}/{name} was taken back{others}.",
            node=eviction.node,
            namespace=pod.namespace,
            name=pod.name,
            others=others,
        ),
    )


def eviction_of(pod: Pod, *, cause: str, message: str, beneficiary: Name | None, generation: int) -> Decision:
    """Record that a pod was evicted from its node."""
    return Decision(
        outcome=Outcome.EVICTED,
        group=pod.group,
        generation=generation,
        pods=(DecidedPod(pod.uid, pod.name, pod.node),),
        cause=cause,
        beneficiary=beneficiary,
        sentence=say("{message}.", message=open_ended(message)),
    )
