"""Reads single facts of a raw object where its whole record is not needed: of a request, or of a pod read back."""

from dataclasses import dataclass

from app.cluster.decode.origin import NOTHING_KEPT, Keeps
from app.cluster.decode.parts import fields
from app.cluster.decode.pods import DEFAULT_SCHEDULER, USUAL_RULES, Rules, pod
from app.cluster.decode.reading import ObjectReading
from app.model.marks import MANAGED_BY, MANAGED_BY_LABEL
from app.model.names import NodeName
from app.model.pod import Pod
from app.model.seam import RawObject

UNBORN = "not-created-yet"
"""Stands for the name, namespace and uid of a pod that exists only in a request."""


def asked_pod(
    raw: RawObject, *, profiles: frozenset[str], rules: Rules = USUAL_RULES, keeps: Keeps = NOTHING_KEPT
) -> Pod:
    """Decode the pod of a request, which need not exist: a what-if may omit its name and uid."""
    stated, unborn = fields(raw, "metadata"), {"namespace": "default", "name": UNBORN, "uid": UNBORN}
    missing = {key: name for key, name in unborn.items() if not (isinstance(stated.get(key), str) and stated[key])}
    return pod({**raw, "metadata": {**stated, **missing}}, profiles=profiles, rules=rules, keeps=keeps)


def names_profile(raw: RawObject, profiles: frozenset[str]) -> bool:
    """Return whether a pod names one of these scheduler profiles. A pod that does not is never managed."""
    name = fields(raw, "spec").get("schedulerName")
    return (name if name and isinstance(name, str) else DEFAULT_SCHEDULER) in profiles


@dataclass(frozen=True, slots=True)
class SeenPod:
    """What one event shows of a pod."""

    pod: Pod
    started_at: float | None
    """The start of the pod, in seconds since the epoch; None while it does not run, or when that cannot be read."""

    @property
    def problem(self) -> str:
        """What the owner must change; empty when there is nothing."""
        return self.pod.problem


def seen_pod(
    raw: RawObject, *, profiles: frozenset[str], rules: Rules = USUAL_RULES, keeps: Keeps = NOTHING_KEPT
) -> SeenPod:
    """Decode the pod of an event."""
    found, status = pod(raw, profiles=profiles, rules=rules, keeps=keeps), raw.get("status")
    started_at = (
        ObjectReading().seconds(status, "startTime") if isinstance(status, dict) and "startTime" in status else 0.0
    )
    return SeenPod(found, started_at or None)


def bound_node(raw: RawObject) -> NodeName | None:
    """Return the node to which a pod is bound; None while it is not bound."""
    return _node(raw, "spec", "nodeName")


def nominated_node(raw: RawObject) -> NodeName | None:
    """Return the node that is nominated for a pod."""
    return _node(raw, "status", "nominatedNodeName")


def has_succeeded(raw: RawObject) -> bool:
    """Return whether a pod has succeeded."""
    status = raw.get("status")
    return isinstance(status, dict) and status.get("phase") == "Succeeded"


def is_ours(raw: RawObject) -> bool:
    """Return whether a reservation pod belongs to Leeboard, and not to a KAI Scheduler in the same cluster."""
    return fields(fields(raw, "metadata"), "labels").get(MANAGED_BY_LABEL) == MANAGED_BY


def end_of(raw: RawObject) -> str:
    """Return why a pod has ended, as its kubelet reports; empty without a report."""
    status = raw.get("status")
    stated = status if isinstance(status, dict) else {}
    return ": ".join(text for key in ("reason", "message") if isinstance(text := stated.get(key), str) and text)


def _node(raw: RawObject, part: str, key: str) -> NodeName | None:
    fields = raw.get(part)
    name = fields.get(key) if isinstance(fields, dict) else None
    return NodeName(name) if isinstance(name, str) and name else None
