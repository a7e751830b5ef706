"""Runs the vectors of KAI's orders: of queues, of PodGroups by elasticity, and of turns over a tree."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot
from app.scheduling.preemption.victims import Safety, VictimCandidates, Victims
from app.scheduling.queues.accounts import Quantities, quantities
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.order import Contender, Elastic, Rank, Turns
from app.scheduling.queues.quota import QueueLedger
from tests.conformance.judging import NotRun
from tests.conformance.vectors import Case, column, exact, queue, resources, snapshot


def run_queue_order(case: Case) -> Any:
    """Compare two queues: -1 when the left one goes first, 1 when the right one does."""
    total = resources({name.lower(): amount for name, amount in case["total"].items()})
    left, right = (_rank(case, side, total) for side in ("left", "right"))
    return -1 if left < right else 1


def _rank(case: Case, side: str, total: Resources) -> Rank:
    attributes, job = case[side], case[f"{side}_job"]
    contender = Contender.of(
        queue(attributes["name"], attributes), fair_share=column(attributes, "fair_share"), total=total
    )
    request = _next_request(job, case["min_node_gpu_memory"])
    return contender.rank(quantities(column(attributes, "allocated")), request)


def _next_request(job: Case, min_node_gpu_memory_mib: int) -> Quantities:
    cpu_milli = memory_bytes = gpu_milli = 0
    for pod_set in job["pod_sets"]:
        owed = pod_set["min_available"] - pod_set["active_allocated"]
        for task in pod_set["tasks"][: max(0, owed)]:
            request = task["requests"]
            cpu_milli += exact(request["cpu_milli"], 1)
            memory_bytes += exact(request["memory_bytes"], 1)
            gpu_milli += _gpu_milli(request, min_node_gpu_memory_mib)
    return cpu_milli, memory_bytes, gpu_milli


def _gpu_milli(request: Case, min_node_gpu_memory_mib: int) -> int:
    if not request["gpu_memory_mib"]:
        return exact(request["gpus_total"], 1000)
    return int(request["gpu_devices"] * request["gpu_memory_mib"] * 1000 // min_node_gpu_memory_mib)


def run_elastic_order(case: Case) -> Any:
    """Compare two PodGroups by elasticity alone: -1, 0 or 1."""
    left, right = _elastic(case["left"]), _elastic(case["right"])
    return (left > right) - (left < right)


def _elastic(pod_sets: Iterable[Case]) -> Elastic:
    beyond = [each["active_allocated"] - each["min_available"] for each in pod_sets]
    return Elastic.of(owed=-sum(min(0, each) for each in beyond), spare=sum(max(0, each) for each in beyond))


def run_turns(case: Case) -> Any:
    """Apply the events of one case; return the names in the order in which they were popped."""
    options = case["options"]
    if options["VictimQueue"]:
        return _victims(case)
    if options["FilterNonPreemptible"] or options["FilterNonActiveAllocated"] or options["MaxJobsQueueDepth"] != -1:
        return NotRun("turns have no such option")
    return _played(case)


def _played(case: Case) -> list[str | None]:
    turns, popped = _turns(snapshot(_with_usage(case["queues"]), NOTHING), ()), []
    for event in case["events"]:
        if "init" in event:
            groups = [_group(case["jobs"][name]) for name in event["init"]]
            turns = _turns(snapshot(_with_usage(case["queues"]), NOTHING), groups)
        elif "push" in event:
            turns.push(_group(event["push"]))
        else:
            group = turns.pop()
            popped.append(group.key.name if group else None)
    return popped


def _victims(case: Case) -> list[str | None]:
    # KAI's queue of victims does not check preemptibility: a filter does, which these cases leave out.
    groups = [
        replace(_group(case["jobs"][name]), preemptible=True, placed=_all_placed(case["jobs"][name]), pending=())
        for event in case["events"]
        for name in event.get("init", ())
    ]
    empty = snapshot(_with_usage(case["queues"]), NOTHING)
    full = replace(empty, running={group.key: group for group in groups})
    victims = Victims(
        VictimCandidates(full), {}, lambda _: Safety.NONE, ledger=QueueLedger(full), shares=fair_shares(full)
    )
    popped = [victims.pop() for event in case["events"] if "pop_expect" in event]
    return [chunk.group.key.name if chunk else None for chunk in popped]


def _all_placed(job: Case) -> tuple[Placed, ...]:
    key, name = GroupKey("default", job["name"]), QueueName(job["queue"])
    return tuple(_placed(key, name, index) for index in range(sum(job["status_counts"].values())))


def _with_usage(queues: dict[str, Case]) -> dict[str, Case]:
    return {name: {"creation_order": 0} | each for name, each in queues.items()}


def _turns(empty: Snapshot, groups: Iterable[PodGroup]) -> Turns:
    full = replace(empty, groups={group.key: group for group in groups})
    return Turns(full, QueueLedger(full), fair_shares(full))


def _group(job: Case) -> PodGroup:
    key, name = GroupKey("default", job["name"]), QueueName(job["queue"])
    pending = job["status_counts"].get("Pending", 0)
    return PodGroup(
        key=key,
        queue=name,
        priority=job["priority"],
        preemptible=job["preemptible"],
        min_member=sum(each["min_available"] for each in job["pod_sets"]),
        placed=tuple(_placed(key, name, index) for index in range(_active(job))),
        pending=tuple(_pod(key, name, index) for index in range(pending)),
    )


def _active(job: Case) -> int:
    return sum(int(each["active_allocated"]) for each in job["pod_sets"])


def _placed(group: GroupKey, name: QueueName, index: int) -> Placed:
    node = NodeName("elsewhere")
    return Placed(pod=replace(_pod(group, name, index), node=node), node=node)


def _pod(group: GroupKey, name: QueueName, index: int) -> Pod:
    label = f"{group.name}-{index}"
    return Pod(uid=PodUid(label), namespace=group.namespace, name=label, group=group, queue=name)
