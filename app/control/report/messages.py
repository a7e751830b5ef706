"""Words the one answer to why a pod or a PodGroup is in its state."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from app.control.report.pod_state import KnownPod
from app.model.explanation import (
    ClaimNeed,
    Decision,
    Explanation,
    GroupState,
    Outcome,
    PodState,
    Subject,
    Unknown,
    Why,
    Workload,
)
from app.model.node import DEVICES_PREFIX
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.question import Check
from app.model.reason import FREEING, Reason, Refusal
from app.model.resources import GPU
from app.model.sentence import capital, counted, open_ended, say
from app.scheduling.queues.wording import amount_text

LACKS_DEVICES = frozenset({"no_devices", "claims", "gpu_milli"})
"""The details of a refusal that count nodes without devices for claims."""

PLACED = (PodState.PROMISED, PodState.BINDING)
WAITING = (PodState.HELD, PodState.AWAITING)
SETTLED = frozenset({GroupState.RUNNING, GroupState.ENDING, GroupState.FINISHED})


# Pods -----------------------------------------------------------------------------------------------------------------


def why_pod(known: KnownPod, last: Decision | None, refusal: Refusal | None, spec: GroupSpec | None) -> Why:
    """Explain the state of an existing pod; `refusal` is that of its group, `last` the last decision about the pod."""
    node = known.node
    match known.state:
        case PodState.BOUND:
            gone = f"It was bound to node {node}, which does not exist any more; Kubernetes deletes the pod soon."
            return Why(reason=known.state, sentence=gone if known.is_node_gone else f"It is on node {node}.")
        case PodState.PROMISED | PodState.BINDING if known.refusal is not None:
            # The cause of failure of the last attempt is still the best answer.
            return of_refusal(known.refusal)
        case PodState.BINDING:
            return Why(reason=known.state, sentence=f"It is being bound to node {node}.")
        case PodState.PROMISED if known.refusal is None:
            # This message may be older than the reservation, or explain why kube-scheduler never asks: only time tells.
            pod, said = known.pod, ""
            if pod.said.by_scheduler and pod.said.because:
                said = f"; its last message was: {pod.said.because}"
            sentence = f"Node {node} is reserved for it; kube-scheduler has not asked to bind it yet{said}."
            return Why(reason=known.state, sentence=sentence)
        case PodState.RELEASING:
            return _why_leaving(known, last)
        case _:
            return _why_held(known, refusal, spec)


def with_claims(why: Why, claims: Sequence[ClaimNeed]) -> Why:
    """Name the first claim, with its class, where nodes lack devices for claims."""
    lacks = (key for key, count in why.details.items() if count)
    if not claims or not any(key in LACKS_DEVICES or key.startswith(DEVICES_PREFIX) for key in lacks):
        return why
    first, *more = claims
    gpus = amount_text(GPU, first.gpu_milli)
    of = f" of DeviceClass {', '.join(first.classes)}" if first.classes else ""
    others = f" and {counted(len(more), 'more claim')}" if more else ""
    sentence = say(
        "{said} It needs ResourceClaim {name} ({gpus}{of}){others}.",
        said=why.sentence,
        name=first.name,
        gpus=gpus,
        of=of,
        others=others,
    )
    return replace(why, sentence=sentence)


def _why_leaving(known: KnownPod, last: Decision | None) -> Why:
    if last is not None and last.outcome is Outcome.EVICTED and known.node is not None:
        sentence = say("{last}; it has not ended yet.", last=open_ended(last.sentence))
        return Why(reason=PodState.EVICTED, sentence=sentence, details=_details(last))
    until = f"; its room on node {known.node} becomes free when it has ended" if known.node else ""
    return Why(reason=known.state, sentence=f"It is being deleted{until}.")


def _why_held(known: KnownPod, refusal: Refusal | None, spec: GroupSpec | None) -> Why:
    # First what the owner must change or wait for, then what Leeboard must do.
    pod = known.pod
    if pod.ungrouped and not pod.problem:
        return Why(reason=Reason.OWNER_UNKNOWN, sentence=_full(pod.ungrouped))
    if known.state is PodState.HELD and not pod.problem and spec is not None and spec.suspended:
        return Why(reason=Reason.OWNER_SUSPENDED, sentence=_full(spec.suspended))
    found = known.refusal or refusal
    if found is not None and known.refusal is None and found.reason in FREEING:
        # That refusal is about the room of other pods of the group: this pod has no room yet.
        found = None
    if found is not None:
        return of_refusal(found)
    if pod.gated:
        sentence = (
            "It is held by a scheduling gate that is not Leeboard's; the controller that set the gate has to remove it."
        )
        return Why(reason=Reason.MEMBERS_MISSING, sentence=sentence)
    return Why(reason=Reason.DECIDING, sentence="Leeboard has not decided about it yet.")


def of_refusal(refusal: Refusal) -> Why:
    """Return the answer that repeats a refusal."""
    return Why(reason=refusal.reason, sentence=refusal.sentence, details=refusal.details)


# PodGroups ------------------------------------------------------------------------------------------------------------


def state_of(counts: Mapping[str, int], spec: GroupSpec | None, *, finished: int, owed: int = 0) -> GroupState:
    """Return the state of a PodGroup by its pods in each state, its succeeded pods, and those owed to its minimum."""
    # Order: no pods (finished, or not created yet), being deleted, running, starting, waiting.
    bound, placed = counts.get(PodState.BOUND, 0), sum(counts.get(each, 0) for each in PLACED)
    waiting = sum(counts.get(each, 0) for each in WAITING)
    if spec is not None and spec.suspended and not bound + placed:
        return GroupState.SUSPENDED
    if not sum(counts.values()):
        return GroupState.FINISHED if finished else GroupState.WAITING
    if not bound + placed + waiting:
        return GroupState.ENDING
    if not placed + waiting:
        return GroupState.PARTLY_RUNNING if owed else GroupState.RUNNING
    if bound:
        return GroupState.PARTLY_RUNNING
    return GroupState.WAITING if waiting else GroupState.STARTING


def why_group(
    state: GroupState, refusal: Refusal | None, spec: GroupSpec | None, *, counts: Mapping[str, int], nodes: int
) -> Why:
    """Explain the state of an existing PodGroup; its bound pods are on so many `nodes`."""
    if spec is not None and spec.suspended:
        return Why(reason=Reason.OWNER_SUSPENDED, sentence=_full(spec.suspended))
    if refusal is not None and state not in SETTLED:
        return of_refusal(refusal)
    if state in {GroupState.WAITING, GroupState.PARTLY_RUNNING, GroupState.SUSPENDED}:
        return _why_undecided(state, spec, counts)
    total = counted(sum(counts.values()), "pod")
    sentences = {
        GroupState.RUNNING: _bound(counts, nodes),
        GroupState.STARTING: _promised(counts),
        GroupState.ENDING: f"Its {total} {_are(sum(counts.values()))} being deleted.",
        GroupState.FINISHED: "Its pods have finished.",
    }
    return Why(reason=state, sentence=sentences[state])


def _bound(counts: Mapping[str, int], nodes: int) -> str:
    bound, total = counts.get(PodState.BOUND, 0), sum(counts.values())
    which = f"{bound} of its {total} pods" if bound < total else f"Its {counted(total, 'pod')}"
    return f"{which} {_are(bound)} on {counted(nodes, 'node')}."


def _promised(counts: Mapping[str, int]) -> str:
    placed, total = sum(counts.get(each, 0) for each in PLACED), sum(counts.values())
    which = f"{placed} of its {total} pods" if placed < total else f"its {counted(total, 'pod')}"
    unasked = counts.get(PodState.PROMISED, 0)
    if not unasked:
        return f"{which[:1].upper()}{which[1:]} {_are(placed)} being bound."
    places, them = ("A place is", "it") if placed == 1 else ("Places are", "them")
    them = them if unasked == placed else f"{unasked} of them"
    return f"{places} reserved for {which}; kube-scheduler has not asked to bind {them} yet."


def _why_undecided(state: GroupState, spec: GroupSpec | None, counts: Mapping[str, int]) -> Why:
    if not sum(counts.values()):
        least = spec.min_member if spec is not None else 1
        together = f"The gang is incomplete: none of its {least} pods exists; its owner has to create them."
        sentence = together if least > 1 else "It has no pods; its owner has to create one."
        return Why(reason=Reason.MEMBERS_MISSING, sentence=sentence, details={"minMember": least})
    if not any(counts.get(each, 0) for each in WAITING):
        bound = counts.get(PodState.BOUND, 0)
        on = "is on its node" if bound == 1 else "are on their nodes"
        if not any(counts.get(each, 0) for each in PLACED):
            there = f"{bound} of its pods {on}, fewer than its minimum"
            sentence = f"The gang is incomplete: {there}; its owner has to create the others."
            return Why(reason=Reason.MEMBERS_MISSING, sentence=sentence)
        return Why(reason=state, sentence=f"{bound} of its pods {on}, and the others are being bound.")
    return Why(reason=Reason.DECIDING, sentence="Leeboard has not decided about it yet.")


# Deleted objects, and objects of other schedulers ---------------------------------------------------------------------


def gone_pod(namespace: str, name: str, last: Decision, decisions: Collection[Decision]) -> Explanation:
    """Explain a deleted pod by the last decision about it."""
    is_evicted = last.outcome is Outcome.EVICTED
    state = PodState.EVICTED if is_evicted else PodState.GONE
    seat = next(each for each in last.pods if each.name == name)
    sentence = f"Pod {namespace}/{name} does not exist any more: it has ended or was deleted."
    why = Why(reason=state, sentence=last.sentence if is_evicted else sentence, details=_details(last))
    return Explanation(
        subject=Subject.POD,
        namespace=namespace,
        name=name,
        uid=seat.uid,
        pod_group=name if last.group.name == seat.uid else last.group.name,
        state=state,
        why=why,
        # A reservation may have moved to another node: only an evicted pod was certainly on this node.
        node=seat.node if is_evicted else None,
        decisions=tuple(decisions),
    )


def gone_group(namespace: str, name: str, decisions: Collection[Decision]) -> Explanation:
    """Explain a deleted PodGroup by the decisions about it."""
    sentence = f"PodGroup {namespace}/{name} and its pods do not exist any more."
    why = Why(reason=GroupState.GONE, sentence=sentence)
    return Explanation(
        subject=Subject.POD_GROUP,
        namespace=namespace,
        name=name,
        pod_group=name,
        state=GroupState.GONE,
        why=why,
        decisions=tuple(decisions),
    )


def without_pods(namespace: str, name: str, workload: Workload, profiles: Collection[str]) -> Explanation:
    """Explain a workload that has no pods, or no pods of ours."""
    reason: str = Reason.OWNER_SUSPENDED if workload.suspended else GroupState.NO_PODS
    idle = (
        f"{workload.kind} {namespace}/{name} has no pods that Leeboard schedules: they have ended, its controller has"
        f" not created them yet, or their spec.schedulerName is not {' or '.join(sorted(profiles))}."
    )
    return Explanation(
        subject=Subject.WORKLOAD,
        namespace=namespace,
        name=name,
        state=GroupState.SUSPENDED if workload.suspended else GroupState.NO_PODS,
        why=Why(reason=reason, sentence=workload.suspended or idle),
    )


def of_another_scheduler(pod: Pod, profiles: Collection[str]) -> Unknown:
    """Explain that another scheduler schedules the pod, and how to change that."""
    name = f"{pod.namespace}/{pod.name}"
    if pod.reserves:
        return Unknown(f"pod {name} is a reservation pod: it holds GPU {pod.reserves} for the pods that share it")
    names = " or ".join(sorted(profiles))
    return Unknown(
        f"pod {name} belongs to another scheduler; to have Leeboard schedule it, create it again with"
        f" spec.schedulerName {names}"
    )


def unknown(namespace: str, name: str, subject: Subject | None) -> Unknown:
    """Explain that nothing is known of the name, and how to find existing objects."""
    kinds = {
        Subject.POD: "pod",
        Subject.POD_GROUP: "PodGroup",
        Subject.WORKLOAD: "workload",
        None: "pod, PodGroup or workload",
    }
    return Unknown(
        f"no {kinds[subject]} {namespace}/{name} is known, and Leeboard remembers no decision about one;"
        f" kubectl -n {namespace} get pods,podgroups lists what exists, and -n names another namespace"
    )


def undecided(told: Explanation | Unknown, failed: Check) -> Explanation | Unknown:
    """Explain that this replica decides nothing, where an answer needs decisions; `failed` is a line of /readyz."""
    here = f"this replica decides nothing now ({failed.name}: {failed.failure})"
    said = f"{here}; if there are several replicas, ask the one that decides, by kubectl port-forward to its pod"
    if isinstance(told, Unknown):
        return Unknown(f"{told.sentence}; {said}")
    if told.why.reason != Reason.DECIDING:
        return told
    return replace(told, why=Why(reason=Reason.DECIDING, sentence=f"{capital(said)}."))


def _details(decision: Decision) -> Mapping[str, int | str]:
    told: dict[str, int | str] = {"action": decision.cause, "generation": decision.generation}
    return told | ({"for": say("{beneficiary}", beneficiary=decision.beneficiary)} if decision.beneficiary else {})


def _full(sentence: str) -> str:
    return sentence if sentence.endswith(".") else f"{sentence}."


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
