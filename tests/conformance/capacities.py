"""Runs the vectors of KAI's capacity policy: limits and quota, for one queue and up the tree."""

import re
from typing import Any

from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.reason import Refusal
from app.model.resources import CPU, GPU, MEMORY, NOTHING, Resources
from app.scheduling.queues.accounts import Account, quantities
from app.scheduling.queues.quota import QueueLedger
from tests.conformance.vectors import Case, resources, snapshot

OVER_LIMIT = re.compile(
    r"Queue (\S+) (?:has reached|would exceed) its limit of (.+): it holds (.+), and (.+) (?:is|are) requested\."
)
KINDS = {"GPU": "GPUs", "core": "CPU cores", "GB": "memory"}
NAMES = {CPU: "CPU", MEMORY: "Memory", GPU: "GPU"}


def run(case: Case) -> Any:
    """Compute one capacity case."""
    requested = resources(case["requested"])
    match case["function"]:
        case "isOverLimit":
            return _over(_account(case).over_limit(quantities(requested)))
        case "isAllocatedNonPreemptibleOverQuota":
            return _over(_account(case).over_quota(quantities(requested)))
        case "resultsOverLimit":
            return _answer(_ledger(case).over_limit(_group(case), requested))
        case "resultsWithNonPreemptibleOverQuota":
            return _answer(_ledger(case).over_quota(_group(case), requested))
        case "isJobOverCapacity":
            return _answer(_judge(case, requested))
        case function:
            raise ValueError(f"unknown function {function}")


def _judge(case: Case, requested: Resources) -> Refusal | None:
    match case["checks"]:
        case "limit+non_preemptible_over_quota":
            return _ledger(case).check(_group(case), requested)
        case "non_preemptible_over_quota":
            return _ledger(case).over_quota(_group(case), requested)
        case checks:
            raise ValueError(f"unknown checks {checks}")


def _ledger(case: Case) -> QueueLedger:
    return QueueLedger(snapshot(case["queues"], NOTHING))


def _account(case: Case) -> Account:
    return QueueLedger(snapshot({"alone": case["queue"]}, NOTHING)).accounts[QueueName("alone")]


def _group(case: Case) -> PodGroup:
    job = case["job"]
    key = GroupKey("default", job["name"])
    return PodGroup(key=key, queue=QueueName(job["queue"]), preemptible=job["preemptible"])


def _over(axis: int | None) -> Any:
    return {"over": axis is not None, "resource": "" if axis is None else NAMES[axis]}


def _answer(refusal: Refusal | None) -> Any:
    if refusal is None:
        return {"schedulable": True, "reason": "", "message": ""}
    return {"schedulable": False, "reason": refusal.reason.value, "message": _as_kai_says(refusal.sentence)}


def _as_kai_says(sentence: str) -> str:
    """Return our message in KAI's words, which have no singular and call each limit that would be exceeded reached.

    Where a quota is exceeded, KAI names the resource beside its unit.
    """
    over_limit = OVER_LIMIT.fullmatch(sentence)
    if over_limit is not None:
        queue, limit, held, asked = over_limit.groups()
        kind = KINDS[limit.partition(" ")[2].rstrip("s")]
        sentence = (
            f"{queue} quota has reached the allowable limit of {kind}. "
            f"Limit is {limit}, currently {held} allocated and workload requested {asked}"
        )
    plural = re.sub(r"\b1 (GPU|core)\b", r"1 \1s", sentence).replace(" is already allocated", " are already allocated")
    named = re.sub(r"(Workload requested \S+) cores", r"\1 CPU cores", plural)
    return re.sub(r"(Workload requested \S+ GB),", r"\1 memory,", named)
