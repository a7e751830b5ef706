"""Reads what kube-scheduler says of a pod in its condition PodScheduled."""

import re
from dataclasses import dataclass
from sys import intern

from app.cluster.decode.reading import Fields, Reading
from app.model.reason import PHRASE_MARK, UNREADY

KNOWS_NO_NODE = "no nodes available to schedule pods"
"""kube-scheduler's message when its list of nodes is empty (`ErrNoNodesAvailable`)."""

FIT_ERROR_MARK = "nodes are available: "
AFTERMATH_MARKS = (" no new claims to deallocate", " preemption: ")
"""What stands in its message before the causes, and after them, where it tells what it tried then (`FitError`)."""

PLUGIN_ERROR = re.compile(r'running (\w+) plugin "[^"]*": ')
"""How its message begins when a plugin of it failed after our answer (`RunBindPlugins`, `RunPreBindPlugins`, ...)."""

SURELY_REFUSED = re.compile(r"is forbidden|denied|not found|is invalid")
"""In an error of a bind that was surely not written; a conflict may mean that the pod is bound."""

LONGEST_MESSAGE = 300
"""Characters that are kept of a message: enough for the causes, and little where ten thousand pods are refused."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What kube-scheduler has said of a pod last; nothing when it found no fault with it, or has not looked yet."""

    by_scheduler: bool = False
    """Parked by its own filters."""
    by_us: bool = False
    """Parked after our refusal."""
    because: str = ""
    """What it says of its own filters."""
    attempt_failed: str = ""
    """The error that ended its last attempt after our answer; empty also where the pod may be bound all the same."""
    unready: bool = False
    """We could not answer it."""


NOT_JUDGED = Judgement()


def judgement(reading: Reading, status: Fields) -> Judgement:
    """Read it from the status of a pod."""
    for condition in reading.mappings(status, "conditions"):
        if condition.get("type") == "PodScheduled":
            failed = condition.get("status") == "False"
            return _judged(condition, reading.text(condition, "message")) if failed else NOT_JUDGED
    return NOT_JUDGED


def _judged(condition: Fields, message: str) -> Judgement:
    match condition.get("reason"):
        # A kube-scheduler that knows no node has judged none: it is behind us, after a restart of the API server say.
        case "Unschedulable" if message.startswith(KNOWS_NO_NODE):
            return NOT_JUDGED
        case "Unschedulable":
            ours = PHRASE_MARK in message
            return Judgement(by_scheduler=not ours, by_us=ours, because=_because(message))
        case "SchedulerError" if UNREADY in message:
            return Judgement(unready=True)
        case "SchedulerError":
            return Judgement(attempt_failed=_failure(message))
        case _:
            return NOT_JUDGED


def _failure(message: str) -> str:
    """Return what surely ended an attempt; empty where the pod may be bound, or the error came before our answer."""
    found = PLUGIN_ERROR.match(message)
    if found is None:
        return ""
    if found[1] != "Bind":
        return _shortened(message)
    return _shortened(message[found.end() :]) if SURELY_REFUSED.search(message) else ""


def _because(message: str) -> str:
    """Return what kube-scheduler says of its own filters, without our phrases and what it tried afterwards.

    Beside a phrase of ours the numbers of nodes are left out: they change with every attempt, and each change of a pod
    has it planned again.
    """
    said = message
    for mark in AFTERMATH_MARKS:
        said = said.partition(mark)[0]
    if PHRASE_MARK in message:
        parts = said.rpartition(FIT_ERROR_MARK)[2].rstrip(".").split(", ")
        said = ", ".join(part.lstrip("0123456789 ") for part in parts if PHRASE_MARK not in part)
    return _shortened(said)


def _shortened(said: str) -> str:
    return intern(" ".join(said[:LONGEST_MESSAGE].split()).rstrip("."))
