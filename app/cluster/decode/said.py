"""Reads what kube-scheduler says of a pod in its condition PodScheduled."""

import re
from sys import intern

from app.cluster.decode.reading import Fields, ObjectReading
from app.model.pod import NOTHING_SAID, SchedulerMessage
from app.model.reason import PHRASE_MARK, UNREADY, Reason, phrase

KNOWS_NO_NODE = "no nodes available to schedule pods"
"""kube-scheduler's message when its list of nodes is empty (`ErrNoNodesAvailable`)."""

FIT_ERROR_MARK = "nodes are available: "
AFTERMATH_MARKS = (" no new claims to deallocate", " preemption: ")
"""What stands in its message before the causes, and after them, where it tells what it tried then (`FitError`)."""

PLUGIN_ERROR = re.compile(r'running (\w+) plugin "[^"]*": ')
"""How its message begins when a plugin of it failed after our answer (`RunBindPlugins`, `RunPreBindPlugins`, ...)."""

SURELY_REFUSED = re.compile(r"is forbidden|denied|not found|is invalid")
"""In an error of a bind that was surely not written; a conflict may mean that the pod is bound."""

LONGEST_READ = 16_384
"""Characters that are looked at of a message: kube-scheduler names each cause once, so its own are far shorter."""

LONGEST_MESSAGE = 300
"""Characters that are kept of a message: enough for the causes, and little where ten thousand pods are refused."""


def said_of(reading: ObjectReading, status: Fields) -> SchedulerMessage:
    """Read it from the status of a pod."""
    for condition in reading.mappings(status, "conditions"):
        if condition.get("type") == "PodScheduled":
            failed = condition.get("status") == "False"
            return _judged(condition, reading.text(condition, "message")[:LONGEST_READ]) if failed else NOTHING_SAID
    return NOTHING_SAID


def _judged(condition: Fields, message: str) -> SchedulerMessage:
    match condition.get("reason"):
        # A kube-scheduler that knows no node has judged none: it is behind us, after a restart of the API server say.
        case "Unschedulable" if message.startswith(KNOWS_NO_NODE):
            return NOTHING_SAID
        case "Unschedulable":
            ours = PHRASE_MARK in message
            passing = phrase(Reason.DECIDING) in message
            return SchedulerMessage(by_scheduler=not ours, by_us=ours, because=_because(message), passing=passing)
        case "SchedulerError" if UNREADY in message:
            return SchedulerMessage(passing=True)
        case "SchedulerError":
            return SchedulerMessage(attempt_failed=_failure(message))
        case _:
            return NOTHING_SAID


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

    Beside a phrase of ours the numbers of nodes are left out: they change with every attempt, and whoever waits because
    of it is planned anew to be told in these words.
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
