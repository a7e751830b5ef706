"""What Kubernetes objects say, read with the caller's own rights, in the form of the service's answers.

It answers where the service cannot be asked. What only the service knows, such as the position, is null.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from app.cli.output import like
from app.client.api_server import EVENTS, POD_GROUPS, PODS, ApiServer, Object, path_of
from app.client.reach_errors import NoSuchObjectError, NotAllowedError, ReachError
from app.model.marks import GATE, QUEUE_ANNOTATION

API_VERSION = "leeboard.dev/v1alpha1"
REPORTER = "leeboard"
QUEUE_LABEL = "kai.scheduler/queue"
POD_GROUP_ANNOTATION = "pod-group-name"
WAITING_PHASE = "Pending"
EVENTS_SHOWN = 5
MOST_LISTED = 500
WITHOUT_NODE = "spec.nodeName=,status.phase=Pending"
NOTHING_SAID = (
    "Nothing says yet why it waits: the PodGroup has no condition, and there is no event about it. Leeboard writes"
    " both within seconds, if it runs and manages this pod."
)


def explained(cluster: ApiServer, namespace: str, name: str, kind: str) -> Object:
    """Explain a pod, a PodGroup or a workload; `kind` is as in `/api/v1/why`. Raise `ReachError`."""
    if kind == "workload":
        return _workload(cluster, namespace, name)
    if kind != "podgroup":
        try:
            return _pod(cluster, cluster.get(path_of(PODS, namespace, name)))
        except NoSuchObjectError:
            if kind == "pod":
                raise NoSuchObjectError(f"there is no pod {namespace}/{name}") from None
    try:
        return _group(cluster, cluster.get(path_of(POD_GROUPS, namespace, name)))
    except NoSuchObjectError:
        sought = "PodGroup" if kind == "podgroup" else "pod or PodGroup"
        raise NoSuchObjectError(f"there is no {sought} {namespace}/{name}") from None


def waiting_groups(cluster: ApiServer, namespace: str) -> Object:
    """Return the PodGroups that wait, in one namespace, or in all when it is empty. Raise `ReachError`."""
    try:
        items = items_of(cluster.get(path_of(POD_GROUPS, namespace)))
    except NoSuchObjectError:
        raise NoSuchObjectError("this cluster has no PodGroups of scheduling.run.ai; is Leeboard installed?") from None
    waiting = [_waiting(each) for each in items if mapping(each, "status").get("pending")]
    # Whoever may not list pods is told of PodGroups alone.
    with suppress(NotAllowedError):
        pods = items_of(cluster.get(path_of(PODS, namespace, fieldSelector=WITHOUT_NODE, limit=MOST_LISTED)))
        waiting += [_waiting_alone(each) for each in pods if _waits_alone(each)]
    return {"apiVersion": API_VERSION, "kind": "PodGroupList", "items": waiting}


def pods_of_group(cluster: ApiServer, namespace: str, group: str) -> list[Object]:
    """Return the pods that name a PodGroup. Raise `ReachError`."""
    listed = items_of(cluster.get(path_of(PODS, namespace, limit=MOST_LISTED)))
    return [each for each in listed if _group_of(each) == group]


def events_about(cluster: ApiServer, namespace: str, name: str, uid: str = "") -> list[Object]:
    """Return the events about an object, newest first; none when the caller may not read them."""
    selector = f"involvedObject.name={name}" + (f",involvedObject.uid={uid}" if uid else "")
    try:
        found = items_of(cluster.get(path_of(EVENTS, namespace, fieldSelector=selector, limit=MOST_LISTED)))
    except ReachError:
        return []
    return sorted(map(_event, found), key=lambda event: event["at"], reverse=True)


# Explanations ---------------------------------------------------------------------------------------------------------


def _pod(cluster: ApiServer, pod: Object) -> Object:
    metadata, spec, status = (mapping(pod, name) for name in ("metadata", "spec", "status"))
    namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
    events = events_about(cluster, namespace, name, str(metadata.get("uid") or ""))
    group_name, node = _group_of(pod), spec.get("nodeName")
    why = _pods_state(metadata, spec, status)
    if why is None:
        group: Object = {}
        if group_name:
            with suppress(ReachError):
                group = cluster.get(path_of(POD_GROUPS, namespace, group_name))
        why = _why_waiting([*_conditions_of_group(group), *_told_by_leeboard(events), *_scheduler_says(status)])
    return _explanation(
        kind="PodExplanation",
        metadata=metadata,
        state=_pod_state(pod),
        why=why,
        events=events,
        podGroup=group_name or None,
        queue=_queue_of(metadata),
        priority=spec.get("priority"),
        node=node,
        since=status.get("startTime") if node else None,
    )


def _group(cluster: ApiServer, group: Object) -> Object:
    metadata, spec, status = (mapping(group, name) for name in ("metadata", "spec", "status"))
    namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
    events = events_about(cluster, namespace, name, str(metadata.get("uid") or ""))
    waits = bool(status.get("pending"))
    phase = "Waiting" if waits else str(status.get("phase") or "Unknown")
    running = {"reason": phase, "sentence": f"Its phase is {phase}.", "details": {}}
    why = _why_waiting([*_conditions_of_group(group), *_told_by_leeboard(events)]) if waits else running
    counts = {"Pending": status.get("pending") or 0, "Running": status.get("running") or 0}
    return _explanation(
        kind="PodGroupExplanation",
        metadata=metadata,
        state=phase,
        why=why,
        events=events,
        podGroup=name,
        queue=spec.get("queue"),
        minMember=spec.get("minMember"),
        podsByState={state: count for state, count in counts.items() if count},
    )


def _workload(cluster: ApiServer, namespace: str, name: str) -> Object:
    events = events_about(cluster, namespace, name)
    said = list(_told_by_leeboard(events))
    if not said:
        raise NoSuchObjectError(f"no event of Leeboard is about a workload {namespace}/{name}")
    return _explanation(
        kind="WorkloadExplanation",
        metadata={"namespace": namespace, "name": name},
        state="Unknown",
        why=said[0],
        events=events,
    )


def _explanation(*, kind: str, metadata: Object, state: str, why: Object, events: list[Object], **more: Any) -> Object:
    unknown = ("podGroup", "queue", "queueNumbers", "priority", "preemptible", "minMember", "node", "since", "position")
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "state": state,
        "why": why,
        **dict.fromkeys(unknown),
        "podsByState": {},
        "members": [],
        "waitsFor": [],
        "autoscaler": None,
        "workloadPodGroups": None,
        "decisions": [],
        "events": events[:EVENTS_SHOWN],
        **more,
    }


def _pods_state(metadata: Object, spec: Object, status: Object) -> Object | None:
    """Return why a pod that does not wait is in its state; None when it waits."""
    node = spec.get("nodeName")
    if metadata.get("deletionTimestamp"):
        return {"reason": "Releasing", "sentence": "It is ending.", "details": {}}
    if not node:
        return None
    phase = status.get("phase")
    ended = f"It has ended on node {node}: {phase}." if phase in {"Succeeded", "Failed"} else f"It is on node {node}."
    return {"reason": "Bound", "sentence": ended, "details": {}}


def _why_waiting(said: Sequence[Object]) -> Object:
    return said[0] if said else {"reason": "Pending", "sentence": NOTHING_SAID, "details": {}}


def _conditions_of_group(group: Object) -> Iterator[Object]:
    for condition in reversed(list_of(mapping(group, "status"), "schedulingConditions")):
        yield _why(condition, "message")


def _told_by_leeboard(events: Sequence[Object]) -> Iterator[Object]:
    for event in events:
        if event["from"] == REPORTER:
            yield {"reason": event["reason"], "sentence": event["message"], "details": {}}


def _scheduler_says(status: Object) -> Iterator[Object]:
    for condition in list_of(status, "conditions"):
        is_refusal = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        # That a pod has a gate says nothing about the reason.
        if is_refusal and condition.get("reason") != "SchedulingGated":
            yield _why(condition, "message")


def _why(condition: Object, text: str) -> Object:
    return {"reason": str(condition.get("reason")), "sentence": str(condition.get(text) or ""), "details": {}}


def _event(event: Object) -> Object:
    metadata = mapping(event, "metadata")
    series = mapping(event, "series")
    at = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata.get("creationTimestamp")
    )
    reporter = event.get("reportingComponent") or mapping(event, "source").get("component")
    return {
        "at": str(at or ""),
        "from": str(reporter or ""),
        "type": str(event.get("type") or ""),
        "reason": str(event.get("reason") or ""),
        "message": str(event.get("message") or ""),
    }


# Pods and PodGroups ---------------------------------------------------------------------------------------------------


def pod_member(pod: Object) -> Object:
    """Return a pod as a member of its PodGroup."""
    metadata, spec, status = (mapping(pod, name) for name in ("metadata", "spec", "status"))
    return {
        "name": str(metadata.get("name")),
        "state": _pod_state(pod),
        "node": spec.get("nodeName"),
        "phase": status.get("phase"),
        "createdAt": metadata.get("creationTimestamp"),
    }


def _pod_state(pod: Object) -> str:
    metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    if metadata.get("deletionTimestamp"):
        return "Releasing"
    if spec.get("nodeName"):
        return "Bound"
    gates = [each.get("name") for each in list_of(spec, "schedulingGates")]
    return "Held" if GATE in gates else WAITING_PHASE


def _waiting(group: Object) -> Object:
    metadata, spec, status = (mapping(group, name) for name in ("metadata", "spec", "status"))
    said = list(_conditions_of_group(group))
    return {
        "namespace": str(metadata.get("namespace")),
        "name": str(metadata.get("name")),
        "queue": spec.get("queue"),
        "priority": None,
        "preemptible": None,
        "minMember": spec.get("minMember") or 1,
        "pendingPods": status.get("pending") or 0,
        "activePods": status.get("running") or 0,
        "succeededPods": status.get("succeeded") or 0,
        "why": said[0] if said else None,
    }


def _waits_alone(pod: Object) -> bool:
    is_alone = not _group_of(pod) and _queue_of(mapping(pod, "metadata")) is not None
    return is_alone and _pod_state(pod) in {"Held", WAITING_PHASE}


def _waiting_alone(pod: Object) -> Object:
    """Return a pod without a PodGroup as the PodGroup of one pod that Leeboard makes of it."""
    metadata = mapping(pod, "metadata")
    group = {"metadata": metadata, "spec": {"queue": _queue_of(metadata)}, "status": {"pending": 1}}
    says = {
        "priority": mapping(pod, "spec").get("priority"),
        "why": next(_scheduler_says(mapping(pod, "status")), None),
    }
    return _waiting(group) | says


def _group_of(pod: Object) -> str:
    annotations = mapping(mapping(pod, "metadata"), "annotations")
    native = mapping(mapping(pod, "spec"), "schedulingGroup")
    return str(annotations.get(POD_GROUP_ANNOTATION) or native.get("podGroupName") or "")


def _queue_of(metadata: Object) -> str | None:
    named = mapping(metadata, "annotations").get(QUEUE_ANNOTATION) or mapping(metadata, "labels").get(QUEUE_LABEL)
    return str(named) if named else None


# Reading --------------------------------------------------------------------------------------------------------------


def items_of(listed: Object) -> list[Object]:
    """Return the objects of a list."""
    return list_of(listed, "items")


def mapping(found: Mapping[str, Any], name: str) -> Object:
    """Return a field that is an object; an empty one for anything else."""
    inner = found.get(name)
    return inner if isinstance(inner, dict) else {}


def list_of(found: Mapping[str, Any], name: str) -> list[Object]:
    """Return the objects in a field that is a list; none for anything else."""
    inner = found.get(name)
    return [each for each in inner if isinstance(each, dict)] if isinstance(inner, list) else []


def moment(text: object) -> datetime | None:
    """Return the time of an RFC 3339 text; None when it is none."""
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


def names_like(cluster: ApiServer, namespace: str, name: str) -> str:
    """Return `; did you mean ...?` when a pod or PodGroup of the namespace has a name like this one."""
    return like(name, names(cluster, namespace))


def names(cluster: ApiServer, namespace: str) -> list[str]:
    """Return the names of the pods and PodGroups of a namespace, as far as the caller may see them."""
    found: list[str] = []
    for resource in (POD_GROUPS, PODS):
        with suppress(ReachError):
            listed = items_of(cluster.get(path_of(resource, namespace, limit=MOST_LISTED)))
            found += [str(mapping(each, "metadata").get("name")) for each in listed]
    return found
