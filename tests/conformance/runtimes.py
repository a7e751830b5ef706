"""Runs the vectors of KAI's min-runtime rules: which one applies, which pods it protects, and how far."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup, PodSet, SubGroup
from app.model.queue import Queue
from app.scheduling.preemption.minruntime import Protection
from app.scheduling.preemption.victims import Safety, may_leave
from app.settings import ResolveMethod
from tests.conformance.vectors import Case

NAMES_NO_QUEUE = ""
"""The value in KAI's test for no queue at all, which is an error beside the default."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The settings of the case for queues without their own."""

    preempt_min_runtime_s: float
    reclaim_min_runtime_s: float
    consolidate_min_runtime_s: float = 0.0


def run(case: Case) -> Any:
    """Compute one min-runtime case."""
    protection = _protection(case)
    match case["function"]:
        case "resolvePreempt":
            victim = QueueName(case["victim_queue"])
            return _resolved(protection.preempt_s(victim), victim)
        case "resolveReclaim":
            pending, victim = QueueName(case["pending_queue"]), QueueName(case["victim_queue"])
            known = NAMES_NO_QUEUE not in {pending, victim}
            seconds = protection.reclaim_s(pending, victim) if known else case["default_reclaim_s"]
            return _resolved(seconds, pending, victim)
        case "preemptFilterFn":
            return _filtered(case, protection.from_preempt)
        case "reclaimFilterFn":
            return _filtered(case, protection.from_reclaim)
        case "preemptScenarioValidatorFn":
            return _validated(case, protection.from_preempt)
        case "reclaimScenarioValidatorFn":
            return _validated(case, protection.from_reclaim)
        case function:
            raise ValueError(f"unknown function {function}")


def _protection(case: Case) -> Protection:
    defaults = Defaults(case["default_preempt_s"], case["default_reclaim_s"])
    method = ResolveMethod(case.get("method") or case.get("reclaim_resolve_method") or ResolveMethod.LCA)
    queues = {QueueName(name): _queue(name, each) for name, each in case["queues"].items()}
    return Protection(queues, defaults, 0.0, method=method)


def _queue(name: str, attributes: Case) -> Queue:
    parent = attributes["parent"]
    return Queue(
        name=QueueName(name),
        parent=QueueName(parent) if parent else None,
        preempt_min_runtime_s=attributes["preempt_min_runtime_s"],
        reclaim_min_runtime_s=attributes["reclaim_min_runtime_s"],
    )


def _resolved(seconds: float, *named: QueueName) -> Any:
    return {"error": NAMES_NO_QUEUE in named, "min_runtime_s": seconds}


Safe = Callable[[PodGroup, PodGroup], Safety]


def _filtered(case: Case, safe: Safe) -> Any:
    return {"result": safe(_group(case["pending"]), _group(case["victim"])) is not Safety.ALL}


def _validated(case: Case, safe: Safe) -> Any:
    pending, fair = _group(case["pending"]), True
    for victim in case["victims"]:
        group = _group(victim)
        leaving = [one.pod for one in group.placed if one.pod.name in victim["victim_tasks"]]
        fair &= may_leave(group, leaving, safe(pending, group))
    return {"result": fair}


def _group(job: Case) -> PodGroup:
    key, name = GroupKey("default", "job"), QueueName(job["queue"])
    running_for_s, pod_sets = job.get("running_for_s"), job.get("pod_sets", ())
    return PodGroup(
        key=key,
        queue=name,
        root=SubGroup(pod_sets=tuple(PodSet(name=each["name"], min_member=each["min_available"]) for each in pod_sets)),
        placed=tuple(
            _placed(Pod(uid=PodUid(task), namespace="", name=task, group=key, queue=name, subgroup=each["name"]))
            for each in pod_sets
            for task in each["tasks"]
        ),
        started_at=None if running_for_s is None else -float(running_for_s),
    )


def _placed(pod: Pod) -> Placed:
    return Placed(pod=pod, node=NodeName("elsewhere"))
