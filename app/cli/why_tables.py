"""Draws an explanation: the sentence, then its numbers, then the latest decisions."""

from collections.abc import Iterator
from datetime import datetime

from rich.table import Table

from app.cli.drawing import drawn, folded, row, table
from app.cli.queue_tables import NOTHING, RESOURCES, UNITS
from app.web.why_answers import DecisionAnswer, ExplanationAnswer, PositionAnswer, QueueNumbers

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400

Line = tuple[str, str]


def answer_picture(told: ExplanationAnswer, *, width: int, now: datetime) -> str:
    """Return the text for a person. Ages are relative to `now`."""
    facts = table("", "")
    facts.show_header = False
    for name, text in _facts(told, now):
        row(facts, name, text)
    parts = [folded([told.why.sentence], width), drawn(facts, width)]
    if told.decisions:
        parts.append(drawn(_decisions(told, now), width))
    return "\n\n".join(parts)


def age(seconds: float) -> str:
    """Return an age in the largest unit in which it is at least two."""
    for name, unit in (("d", DAY_S), ("h", HOUR_S), ("m", MINUTE_S)):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)}{name}"
    return f"{max(0, int(seconds))}s"


# Facts ----------------------------------------------------------------------------------------------------------------


def _facts(told: ExplanationAnswer, now: datetime) -> Iterator[Line]:
    is_pod = told.kind == "PodExplanation"
    reason = "" if told.why.reason == told.state else f", {told.why.reason}"
    since = f" for {age((now - told.since).total_seconds())}" if told.since is not None else ""
    among = told.workload_pod_groups or 1
    one_of = f", one of {among} PodGroups of the workload" if among > 1 else ""
    yield told.kind.removesuffix("Explanation").lower(), f"{told.namespace}/{told.name}{one_of}"
    yield "state", f"{told.state}{f' on {told.node}' if told.node else ''}{since}{reason}"
    if is_pod and told.pod_group not in {None, told.name}:
        yield "podgroup", f"{told.pod_group}"
    yield from _terms(told)
    if told.queue is not None:
        yield from _queue(told.queue, told.queue_numbers)
    if told.position is not None:
        yield "position", _position(told.position, told.queue or "")
    yield from _pods(told)
    if told.autoscaler is not None:
        yield "autoscaler", told.autoscaler
    for leaver in told.waits_for:
        since = f", evicted {age((now - leaver.since).total_seconds())} ago" if leaver.since is not None else ""
        name = f"{leaver.namespace}/{leaver.name}" if leaver.name else "a pod in another namespace"
        yield "waits for", f"{name} to leave {leaver.node}{since}"


def _terms(told: ExplanationAnswer) -> Iterator[Line]:
    if told.priority is None:
        return
    may = "preemptible" if told.preemptible else "not preemptible"
    together = f", {told.min_member} start together" if (told.min_member or 1) > 1 else ""
    yield "terms", f"priority {told.priority}, {may}{together}"


def _queue(name: str, numbers: QueueNumbers | None) -> Iterator[Line]:
    if numbers is None:
        yield "queue", f"{name}, which does not exist"
        return
    waiting = numbers.waiting_pod_groups
    yield "queue", f"{name}, in which {waiting} PodGroup{'s wait' if waiting != 1 else ' waits'}"
    if numbers.problem:
        yield "", f"it is not valid: {numbers.problem}"
    for resource, shown in RESOURCES.items():
        deserved, limit = shown(numbers.deserved), shown(numbers.limit)
        if resource != "gpu" and {deserved, limit} == {NOTHING}:
            continue
        fair = f", fair share {shown(numbers.fair_share)}" if numbers.fair_share is not None else ""
        held = f"{shown(numbers.allocated)} allocated, {shown(numbers.requested)} requested"
        yield "", f"{UNITS[resource]}: {held}; deserved {_limit(deserved)}, limit {_limit(limit)}{fair}"


def _limit(shown: str) -> str:
    return "none" if shown == NOTHING else shown


def _position(position: PositionAnswer, queue: str) -> str:
    ahead, first = position.ahead_in_queue, position.first_ahead
    if not ahead:
        said = f"first in queue {queue}"
    else:
        more = f" and {ahead - len(first)} more" if ahead > len(first) else ""
        said = f"behind {ahead} PodGroup{'s' * (ahead != 1)} in queue {queue}: {', '.join(first)}{more}"
    if position.ahead == ahead and not (position.at_least and ahead):
        return said
    return f"{said}; {'at least ' if position.at_least else ''}{position.ahead} ahead in all queues"


def _pods(told: ExplanationAnswer) -> Iterator[Line]:
    if not told.pods_by_state:
        return
    yield "pods", ", ".join(f"{count} {state}" for state, count in told.pods_by_state.items())
    for member in told.members:
        yield "", f"{member.name}: {member.state}{f' on {member.node}' if member.node else ''}"
    more = sum(told.pods_by_state.values()) - len(told.members)
    if more > 0:
        yield "", f"and {more} more"


# Decisions ------------------------------------------------------------------------------------------------------------


def _decisions(told: ExplanationAnswer, now: datetime) -> Table:
    lines = table(">AGO", "DECIDED", "WHAT WAS SAID")
    for decision in told.decisions:
        row(lines, age((now - decision.at).total_seconds()), _outcome(decision), decision.sentence)
    return lines


def _outcome(decision: DecisionAnswer) -> str:
    return f"{decision.outcome} ({decision.cause})" if decision.cause else decision.outcome
