"""Reads back the objects that were created for a cluster autoscaler, and its answers in them."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.cluster.decode.parts import fields, items
from app.cluster.decode.reading import Fields, ObjectReading
from app.model.marks import MANAGED_BY, MANAGED_BY_LABEL
from app.model.names import GroupKey, PodUid
from app.model.scaling import GROUP_ANNOTATION, REQUEST_LABEL, UNSCHEDULABLE, AutoscalerAnswer, MadeRequest
from app.model.seam import PodRef, RawObject

ANSWERS = (
    ("Failed", "True", AutoscalerAnswer.ENDED),
    ("CapacityRevoked", "True", AutoscalerAnswer.ENDED),
    ("BookingExpired", "True", AutoscalerAnswer.ENDED),
    ("Provisioned", "True", AutoscalerAnswer.PROVISIONED),
    ("Provisioned", "False", AutoscalerAnswer.NOT_YET),
    ("Accepted", "True", AutoscalerAnswer.ACCEPTED),
)
"""The conditions of a ProvisioningRequest, the most important first."""

LONGEST_SAID = 300
"""Of an autoscaler's message, which is quoted in a sentence."""


def provisioning_request(raw: RawObject) -> MadeRequest | None:
    """Read a ProvisioningRequest; None when it does not belong to Leeboard."""
    metadata = fields(raw, "metadata")
    key = _key(metadata)
    if key is None or key.namespace != metadata.get("namespace"):
        return None
    pod_sets = items(fields(raw, "spec"), "podSets")
    answer, said = _answer(items(fields(raw, "status"), "conditions"))
    return MadeRequest(
        key=key,
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid")),
        made_at=ObjectReading().seconds(metadata, "creationTimestamp"),
        shapes=len(pod_sets),
        units=sum(_count(one.get("count")) for one in pod_sets),
        answer=answer,
        said=said,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPod:
    """A pod that stands for others."""

    ref: PodRef
    key: GroupKey
    request: str
    made_at: float
    is_seen: bool
    """Whether an autoscaler sees that it needs a node."""


def scaling_pod(raw: RawObject) -> ScalingPod | None:
    """Read a scaling pod; None when it does not belong to Leeboard, or is being deleted."""
    metadata = fields(raw, "metadata")
    key, request = _key(metadata), fields(metadata, "labels").get(REQUEST_LABEL)
    if key is None or not isinstance(request, str) or metadata.get("deletionTimestamp"):
        return None
    conditions = items(fields(raw, "status"), "conditions")
    return ScalingPod(
        ref=PodRef(
            namespace=str(metadata.get("namespace")), name=str(metadata.get("name")), uid=PodUid(str(metadata["uid"]))
        ),
        key=key,
        request=request,
        made_at=ObjectReading().seconds(metadata, "creationTimestamp"),
        is_seen=any(one.get("type") == "PodScheduled" and one.get("reason") == UNSCHEDULABLE for one in conditions),
    )


def uid_of(raw: RawObject) -> str:
    """Return the uid of any object, empty when it has none."""
    return str(fields(raw, "metadata").get("uid") or "")


def _key(metadata: Fields) -> GroupKey | None:
    if fields(metadata, "labels").get(MANAGED_BY_LABEL) != MANAGED_BY:
        return None
    whom = fields(metadata, "annotations").get(GROUP_ANNOTATION)
    return GroupKey.parse(whom) if isinstance(whom, str) and metadata.get("uid") else None


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _answer(conditions: Iterable[Fields]) -> tuple[AutoscalerAnswer, str]:
    stated = {(str(one.get("type")), str(one.get("status"))): one for one in conditions}
    for kind, status, answer in ANSWERS:
        condition = stated.get((kind, status))
        # A condition may be present as False before anything has happened.
        if condition is not None and (status == "True" or condition.get("message")):
            return answer, _said(condition) or kind
    return AutoscalerAnswer.NOTHING, ""


def _said(condition: Fields) -> str:
    words = condition.get("message") or condition.get("reason")
    return " ".join(words.split())[:LONGEST_SAID].rstrip(".") if isinstance(words, str) else ""
