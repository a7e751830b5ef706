"""Turns Leeboard's records into the status fields of Queue and PodGroup objects: the counterpart of `decode`."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.cluster.decode.history import DIGITS, NAMES
from app.cluster.queues.usage import Sums, Tally
from app.model.decision import Share
from app.model.names import QueueName
from app.model.queue import Queue
from app.model.reason import Refusal, RefusingQueue
from app.model.resources import QUOTA_AXES, UNLIMITED, Resources
from app.model.seam import RawObject
from app.model.sentence import EVERYBODY, Reader, told
from app.model.snapshot import Usage

NODE_POOL = "default"
"""KAI's name for the nodes of an unpartitioned cluster."""

VOLATILE = ("lastTransitionTime", "transitionID")
"""Fields with the time of a change, not its content: left out when two statuses are compared."""


def amounts(resources: Resources) -> dict[str, str]:
    """Return a Kubernetes ResourceList; what is unlimited is left out."""
    texts: dict[str, str] = {}
    if resources.cpu_milli < UNLIMITED:
        texts["cpu"] = _milli(resources.cpu_milli)
    if resources.memory_bytes < UNLIMITED:
        texts["memory"] = str(resources.memory_bytes)
    if resources.gpu_milli < UNLIMITED:
        texts["nvidia.com/gpu"] = _milli(resources.gpu_milli)
    return texts


MOST_CONDITIONS = 64
"""Of a list that is searched for the time of Leeboard's condition: other programs write there too."""


def queue_status(
    queue: Queue, held: Share | Usage, children: Iterable[QueueName], *, now: str, past: Tally | None = None
) -> RawObject:
    """Return the status of a queue; `now` is RFC 3339. Without a past, the usage stays as it was stated.

    A queue that takes part in nothing has no share, but its running pods continue.
    """
    conditions = [_condition("Valid", not queue.problem, "QueueIsInvalid", queue.problem, now=now)]
    if isinstance(held, Share):
        conditions.append(_over_quota(held, now=now))
    share = held if isinstance(held, Share) else Share()
    return {
        "childQueues": sorted(children),
        "conditions": conditions,
        "allocated": amounts(held.allocated),
        "allocatedNonPreemptible": amounts(held.allocated_non_preemptible),
        "requested": amounts(held.requested),
        "deserved": amounts(share.deserved),
        "fairShare": amounts(share.fair_share),
        **({} if past is None else {"usage": usage(past)}),
    }


def usage(past: Tally) -> RawObject:
    """Return what a queue has used, in resource-seconds, in the form from which `decode.tally` reads it back."""
    at = datetime.fromtimestamp(0, tz=UTC) + timedelta(milliseconds=past.at_ms)
    return {
        "updated": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "used": _seconds(past.used),
        "capacity": _seconds(past.capacity),
    }


RUNNING = "Running"
"""The phase of a PodGroup whose pods that start together have all got their node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """What the pods of a PodGroup hold and request, and how many there are."""

    allocated: Resources
    requested: Resources
    non_preemptible: Resources
    phase: str
    """Pending, Suspended, or `RUNNING`."""
    running: int
    pending: int


def pod_group_status(
    standing: GroupTotals, refusal: Refusal | None, *, problem: str = "", now: str, reader: Reader = EVERYBODY
) -> RawObject:
    """Return the status of a PodGroup for this reader; `refusal` is why its pods are pending, None when none are.

    `problem` tells the owner of an unusable PodGroup what is wrong with it.
    """
    return {
        "conditions": [
            _condition("Valid", not problem, "PodGroupIsInvalid", problem, now=now),
            _scheduled(standing, refusal, reader, now),
        ],
        "phase": standing.phase,
        "running": standing.running,
        "pending": standing.pending,
        "resourcesStatus": {
            "allocated": amounts(standing.allocated),
            "allocatedNonPreemptible": amounts(standing.non_preemptible),
            "requested": amounts(standing.requested),
        },
        "schedulingConditions": [] if refusal is None else [_scheduling_condition(refusal, reader, now)],
    }


INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
"""The condition of a native PodGroup that tells whether it has started; once true, it stays true."""


def native_group_status(refusal: Refusal | None, *, now: str, reader: Reader = EVERYBODY) -> RawObject:
    """Return the status of a native PodGroup that has started (None), or that waits for this reason."""
    message = "" if refusal is None else told(refusal.sentence, reader)
    reason = "Scheduled" if refusal is None else "Unschedulable"
    return {"conditions": [_condition(INITIALLY_SCHEDULED, refusal is None, reason, message, now=now)]}


def native_stated(status: RawObject) -> RawObject:
    """Return the part of the status of a native PodGroup that Leeboard writes: other programs write there as well."""
    conditions = status.get("conditions")
    found = conditions[:MOST_CONDITIONS] if isinstance(conditions, list) else ()
    mine = [one for one in found if isinstance(one, dict) and one.get("type") == INITIALLY_SCHEDULED]
    names = ("type", "status", "reason", "message", "lastTransitionTime")
    return {"conditions": [{name: one[name] for name in names if name in one} for one in mine[:1]]}


def has_started(status: RawObject) -> bool:
    """Return whether the status of a native PodGroup tells that it has started."""
    return any(one.get("status") == "True" for one in native_stated(status)["conditions"])


def stated(raw: RawObject) -> tuple[str, str, RawObject]:
    """Return namespace, name and status of an object; an object without a status states nothing."""
    metadata, status = raw.get("metadata"), raw.get("status")
    named: RawObject = metadata if isinstance(metadata, dict) else {}
    return str(named.get("namespace") or ""), str(named.get("name") or ""), status if isinstance(status, dict) else {}


def same(one: object, other: object) -> bool:
    """Whether two statuses have the same content, whatever their times."""
    # Nearly all of a status is equal as it is. A thousand queues are compared every second: nothing is copied.
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        keys = one.keys() - VOLATILE
        return keys == other.keys() - VOLATILE and all(same(one[key], other[key]) for key in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return False


def with_times_of(status: RawObject, said: RawObject) -> RawObject:
    """Return the status with the times of those conditions that have not changed."""
    lists = {key: value for key, value in status.items() if isinstance(value, list)}
    return status | {key: [_dated(one, said.get(key)) for one in value] for key, value in lists.items()}


def _dated(condition: object, before: object) -> object:
    """Return the condition with the times of the earlier condition of the same type, status and reason."""
    if not isinstance(condition, dict) or not isinstance(before, list):
        return condition
    for old in before[:MOST_CONDITIONS]:
        if isinstance(old, dict) and all(old.get(key) == condition.get(key) for key in ("type", "status", "reason")):
            return condition | {key: old[key] for key in VOLATILE if key in old}
    return condition


def _over_quota(share: Share, *, now: str) -> RawObject:
    over = any(share.allocated.amounts[axis] > share.deserved.amounts[axis] for axis in QUOTA_AXES)
    return _condition("OverQuota", over, "AllocatedOverQuota" if over else "WithinQuota", "", now=now)


def _condition(kind: str, holds: object, reason: str, message: str, *, now: str) -> RawObject:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason if message or kind != "Valid" else "Valid",
        "message": message,
        "lastTransitionTime": now,
    }


def _scheduled(standing: GroupTotals, refusal: Refusal | None, reader: Reader, now: str) -> RawObject:
    """Return the condition on which programs wait that know nothing of KAI: whether enough pods have their node."""
    if standing.phase == RUNNING:
        return _condition("Scheduled", holds=True, reason="Scheduled", message="", now=now)
    reason, message = ("Pending", "") if refusal is None else (refusal.reason.value, told(refusal.sentence, reader))
    return _condition("Scheduled", holds=False, reason=reason, message=message, now=now)


def _scheduling_condition(refusal: Refusal, reader: Reader, now: str) -> RawObject:
    said = {"reason": refusal.reason.value, "message": told(refusal.sentence, reader)}
    details = {} if refusal.queue is None else {"details": {"queueDetails": _queue_details(refusal.queue)}}
    return {
        "type": "UnschedulableOnNodePool",
        "nodePool": NODE_POOL,
        "status": "True",
        **said,
        "reasons": [{**said, **details}],
        "transitionID": now,
        "lastTransitionTime": now,
    }


def _queue_details(numbers: RefusingQueue) -> RawObject:
    """Return the numbers of the queue that refuses in KAI's form; what a list lacks is unlimited."""
    return {
        "name": numbers.name,
        "queueRequestedResources": amounts(numbers.requested),
        "queueDeservedResources": amounts(numbers.deserved),
        "queueAllocatedResources": amounts(numbers.allocated),
        "queueAllocatedNonPreemptibleResources": amounts(numbers.allocated_non_preemptible),
        "queueResourceLimits": amounts(numbers.limit),
        "podGroupRequestedResources": amounts(numbers.asked),
        "podGroupRequestedNonPreemptibleResources": amounts(numbers.asked_non_preemptible),
    }


def _seconds(sums: Sums) -> dict[str, str]:
    parts = {axis: divmod(sums[axis], 10**digits) for axis, digits in DIGITS.items()}
    texts = {axis: f"{whole}.{rest:0{DIGITS[axis]}}".rstrip("0").rstrip(".") for axis, (whole, rest) in parts.items()}
    return {NAMES[axis]: text for axis, text in texts.items()}


def _milli(amount: int) -> str:
    whole, rest = divmod(amount, 1000)
    return f"{amount}m" if rest else str(whole)
