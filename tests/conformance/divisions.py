"""Runs the fair-share vectors: one resource at one level, three at one level, and whole trees."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from app.model.past import MICRO, Past
from app.model.resources import UNLIMITED
from app.scheduling.queues.fairshare import ShareRequest, divide, divide_surplus, fair_shares
from tests.conformance.vectors import Case, bounded, exact, resources, snapshot

RESOURCES = ("gpu", "cpu", "memory")


def run(case: Case) -> Any:
    """Compute one fair-share case."""
    match case["function"]:
        case "set_resource_share":
            return _one_resource(case)
        case "divide_over_quota":
            return _surplus_only(case)
        case "set_resources_share":
            return {"fair_share": _three_resources(case)}
        case "hierarchy":
            return {"fair_share": _tree(case)}
        case function:
            raise ValueError(f"unknown function {function}")


def _one_resource(case: Case) -> Any:
    # KAI cuts every resource to whole numbers of its unit; a finer scale with that unit is the same division, exact.
    scale, queues = _scale(case), case["queues"]
    total = exact(case["total"], scale)
    shares = divide(total, _claims(queues, scale), unit=scale, k_micro=exact(case["k_value"], MICRO))
    return {
        "fair_share": {name: _number(share, scale) for name, share in zip(queues, shares, strict=True)},
        "remaining": _number(max(0, total - sum(shares)), scale),
    }


def _surplus_only(case: Case) -> Any:
    scale, queues = _scale(case), case["queues"]
    surplus = exact(case["total"], scale)
    held = [exact(queue["initial_fair_share"], scale) for queue in queues.values()]
    k_micro = exact(case["k_value"], MICRO)
    shares = divide_surplus(surplus, _claims(queues, scale), shares=held, unit=scale, k_micro=k_micro)
    return {
        "fair_share": {name: _number(share, scale) for name, share in zip(queues, shares, strict=True)},
        "remaining": _number(surplus - sum(shares) + sum(held), scale),
    }


def _three_resources(case: Case) -> Any:
    fair: dict[str, dict[str, Any]] = {name: {} for name in case["queues"]}
    for resource in RESOURCES:
        queues = {name: queue | queue[resource] for name, queue in case["queues"].items()}
        one = _one_resource(case | {"queues": queues, "total": case["totals"].get(resource, 0)})
        for name, share in one["fair_share"].items():
            fair[name][resource] = share
    return fair


def _tree(case: Case) -> Any:
    past = Past(k_micro=exact(case["k_value"], MICRO))
    shares = fair_shares(replace(snapshot(case["queues"], resources(case["totals"])), past=past))
    return {
        name: {
            "gpu": _number(share.fair_share.gpu_milli, 1000),
            "cpu": share.fair_share.cpu_milli,
            "memory": share.fair_share.memory_bytes,
        }
        for name, share in shares.items()
    }


def _claims(queues: Mapping[str, Case], scale: int) -> list[ShareRequest]:
    return [_claim(name, queue, scale) for name, queue in queues.items()]


def _claim(name: str, queue: Case, scale: int) -> ShareRequest:
    return ShareRequest(
        name=name,
        requested=exact(queue["request"], scale),
        priority=queue["priority"],
        created_at=queue["creation_order"] or 0,
        deserved=bounded(queue["deserved"], scale),
        limit=bounded(queue["limit"], scale),
        over_quota_weight_micro=exact(queue["over_quota_weight"], MICRO),
        usage_micro=exact(queue["usage"], MICRO),
    )


def _scale(case: Case) -> int:
    """Return the power of ten at which every amount of the case is an integer below `UNLIMITED`."""
    digits = [-int(number.as_tuple().exponent) for number in _decimals(case) if number.is_finite()]
    scale = 10 ** max(digits, default=0)
    largest = max(map(int, _decimals(case)), default=0)
    if largest * scale >= UNLIMITED:
        raise ValueError("the case's numbers need more than 62 bits")
    return int(scale)


def _decimals(value: Any) -> Iterator[Decimal]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "expected":
                yield from _decimals(each)
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        yield Decimal(value)


def _number(amount: int, scale: int) -> int | float:
    whole = Fraction(amount, scale)
    return int(whole) if whole.denominator == 1 else float(whole)
