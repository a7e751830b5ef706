"""Draws an explanation: the sentence, then its numbers, then the latest decisions and the events of others."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from app.cli.drawing import Table, folded
from app.cli.object_answers import REPORTER, moment
from app.cli.queue_tables import MILLI, NOTHING, RESOURCES, UNITS, number

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400

Line = tuple[str, str]
Answer = Mapping[str, Any]


def answer_picture(told: Answer, *, width: int, now: datetime) -> str:
    """Return the text for a person. Ages are relative to `now`."""
    facts = Table("", "", has_headings=False)
    for name, text in _facts(told, now):
        facts.add(name, text)
    parts = [folded([told["why"]["sentence"]], width), facts.drawn(width)]
    if told["decisions"]:
        parts.append(_decisions(told, now).drawn(width))
    # Those of Leeboard repeat what its sentence says.
    if events := [each for each in told.get("events", ()) if each["from"] != REPORTER]:
        lines = Table(">AGO", "EVENT", "WHAT WAS SAID")
        for event in events:
            lines.add(ago(event["at"], now), event["reason"], event["message"])
        parts.append(lines.drawn(width))
    return "\n\n".join(parts)


def age(seconds: float) -> str:
    """Return an age in the largest unit in which it is at least two."""
    for name, unit in (("d", DAY_S), ("h", HOUR_S), ("m", MINUTE_S)):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)}{name}"
    return f"{max(0, int(seconds))}s"


def ago(time: object, now: datetime) -> str:
    """Return the age of an RFC 3339 time; a dash when it is none."""
    at = moment(time)
    return NOTHING if at is None or at.tzinfo is None else age((now - at).total_seconds())


# Facts ----------------------------------------------------------------------------------------------------------------


def _facts(told: Answer, now: datetime) -> Iterator[Line]:
    kind = told["kind"].removesuffix("Explanation").lower()
    reason = "" if told["why"]["reason"] == told["state"] else f", {told['why']['reason']}"
    since = f" for {ago(told['since'], now)}" if told["since"] else ""
    among = told["workloadPodGroups"] or 1
    one_of = f", one of {among} PodGroups of the workload" if among > 1 else ""
    yield kind, f"{told['namespace']}/{told['name']}{one_of}"
    yield "state", f"{_placed(told)}{since}{reason}"
    if kind == "pod" and told["podGroup"] not in {None, told["name"]}:
        yield "podgroup", told["podGroup"]
    yield from _terms(told)
    if told["queue"] is not None:
        yield from _queue(told)
    if told["position"] is not None:
        yield "position", _position(told["position"], told["queue"] or "")
    yield from _pods(told)
    # Kubernetes objects alone do not tell what the claims of a pod cost.
    for claim in told.get("claims", ()):
        yield "claim", _claim(claim)
    if told["autoscaler"] is not None:
        yield "autoscaler", told["autoscaler"]
    for leaver in told["waitsFor"]:
        since = f", evicted {ago(leaver['since'], now)} ago" if leaver["since"] else ""
        name = f"{leaver['namespace']}/{leaver['name']}" if leaver["name"] else "a pod in another namespace"
        yield "waits for", f"{name} to leave {leaver['node']}{since}"


def _placed(told: Answer) -> str:
    """Return a state, and the node if there is one."""
    return f"{told['state']} on {told['node']}" if told["node"] else f"{told['state']}"


def _terms(told: Answer) -> Iterator[Line]:
    priority = [] if told["priority"] is None else [f"priority {told['priority']}"]
    may = {None: [], True: ["preemptible"], False: ["not preemptible"]}[told["preemptible"]]
    together = [f"{told['minMember']} start together"] if (told["minMember"] or 1) > 1 else []
    if terms := [*priority, *may, *together]:
        yield "terms", ", ".join(terms)


def _queue(told: Answer) -> Iterator[Line]:
    name, numbers = told["queue"], told["queueNumbers"]
    if numbers is None:
        # Kubernetes objects do not tell a missing queue from one that the caller may not see.
        yield "queue", name if told.get("incomplete") else f"{name}, which does not exist"
        return
    waiting = numbers["waitingPodGroups"]
    yield "queue", f"{name}, in which {waiting} PodGroup{'s wait' if waiting != 1 else ' waits'}"
    if numbers["problem"]:
        yield "", f"it is not valid: {numbers['problem']}"
    for resource, shown in RESOURCES.items():
        deserved, limit = shown(numbers["deserved"]), shown(numbers["limit"])
        if resource != "gpu" and {deserved, limit} == {NOTHING}:
            continue
        fair = f", fair share {shown(numbers['fairShare'])}" if numbers["fairShare"] is not None else ""
        held = f"{shown(numbers['allocated'])} allocated, {shown(numbers['requested'])} requested"
        yield "", f"{UNITS[resource]}: {held}; deserved {_limit(deserved)}, limit {_limit(limit)}{fair}"


def _limit(shown: str) -> str:
    return "none" if shown == NOTHING else shown


def _position(position: Answer, queue: str) -> str:
    ahead, first = position["aheadInQueue"], position["firstAhead"]
    if not ahead:
        said = f"first in queue {queue}"
    else:
        more = f" and {ahead - len(first)} more" if ahead > len(first) else ""
        said = f"behind {ahead} PodGroup{'s' * (ahead != 1)} in queue {queue}: {', '.join(first)}{more}"
    if position["ahead"] == ahead and not (position["atLeast"] and ahead):
        return said
    return f"{said}; {'at least ' if position['atLeast'] else ''}{position['ahead']} ahead in all queues"


def _pods(told: Answer) -> Iterator[Line]:
    if not told["podsByState"]:
        return
    yield "pods", ", ".join(f"{count} {state}" for state, count in told["podsByState"].items())
    for member in told["members"]:
        yield "", f"{member['name']}: {_placed(member)}"
    more = sum(told["podsByState"].values()) - len(told["members"])
    if more > 0 and told["members"]:
        yield "", f"and {more} more"


def _claim(claim: Answer) -> str:
    if claim["problem"] is not None and not claim["deviceClasses"]:
        return f"{claim['name']}: {claim['problem']}"
    classes = f" of {', '.join(claim['deviceClasses'])}" if claim["deviceClasses"] else ""
    where = f"allocated on {claim['node']}" if claim["node"] is not None else "not allocated"
    shared = ", shared with other pods" if claim["shared"] else ""
    problem = f"; {claim['problem']}" if claim["problem"] else ""
    return f"{claim['name']}: {number(claim['gpuMilli'], MILLI)} GPUs{classes}, {where}{shared}{problem}"


# Decisions ------------------------------------------------------------------------------------------------------------


def _decisions(told: Answer, now: datetime) -> Table:
    lines = Table(">AGO", "DECIDED", "WHAT WAS SAID")
    for decision in told["decisions"]:
        outcome = f"{decision['outcome']} ({decision['cause']})" if decision["cause"] else decision["outcome"]
        lines.add(ago(decision["at"], now), outcome, decision["sentence"])
    return lines
