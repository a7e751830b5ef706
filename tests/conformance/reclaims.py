"""Runs the vectors of KAI's reclaim rules: may a queue reclaim, is a set of victims fair, one strategy at one level."""

from typing import Any

from app.model.decision import Share
from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING, Resources
from app.scheduling.queues.accounts import Account, Quantities, quantities
from app.scheduling.queues.quota import QueueLedger
from app.scheduling.queues.reclaimable import Judgement, QueueEntitlement, guarantees_deserved, maintains_fair_share
from tests.conformance.vectors import Case, column, exact, queue, resources, snapshot


def run_reclaimable(case: Case) -> Any:
    """Compute one case of `CanReclaimResources` or `Reclaimable`."""
    judgement = _judgement(case)
    match case["function"]:
        case "CanReclaimResources":
            return judgement.may_begin()
        case "Reclaimable":
            victims = case["victims_by_queue"].items()
            return judgement.reclaimable(
                {QueueName(name): [_amounts(each) for each in taken] for name, taken in victims}
            )
        case function:
            raise ValueError(f"unknown function {function}")


def _judgement(case: Case) -> Judgement:
    reclaimer, queues = case["reclaimer"], case["queues"]
    return Judgement(
        QueueLedger(snapshot(queues, NOTHING)),
        {QueueName(name): Share(fair_share=column(each, "fair_share")) for name, each in queues.items()},
        PodGroup(
            key=GroupKey(reclaimer["namespace"], reclaimer["name"]),
            queue=QueueName(reclaimer["queue"]),
            preemptible=reclaimer["preemptible"],
        ),
        _amounts(reclaimer["required"]),
        saturation_milli=exact(case["saturation_multiplier"], 1000),
    )


def run_strategy(case: Case) -> Any:
    """Compute one case of one strategy."""
    reclaimer, victim = _standing(case["reclaimer_queue"]), _standing(case["reclaimee_queue"])
    remaining = quantities(resources(case["reclaimee_remaining"]))
    match case["function"]:
        case "MaintainFairShare":
            return maintains_fair_share(victim, remaining)
        case "GuaranteeDeservedQuota":
            return guarantees_deserved(reclaimer, victim, remaining, _amounts(case["reclaimer_resources"]))
        case function:
            raise ValueError(f"unknown function {function}")


def _standing(attributes: Case) -> QueueEntitlement:
    account = Account(queue(attributes["name"], attributes))
    account.allocated = list(quantities(column(attributes, "allocated")))
    return QueueEntitlement.of(account, quantities(column(attributes, "fair_share")))


def _amounts(amounts: Case) -> Quantities:
    return quantities(
        Resources(
            cpu_milli=exact(amounts["cpu_milli"], 1),
            memory_bytes=exact(amounts["memory_bytes"], 1),
            gpu_milli=exact(amounts["gpus"], 1000),
        )
    )
