"""Reads kube-scheduler's statement about a pod in its condition PodScheduled."""

import re
from sys import intern

from app.cluster.decode.reading import Fields, ObjectReading
from app.model.pod import NOTHING_SAID, SchedulerMessage
from app.model.reason import PHRASE_MARK, UNREADY, Reason, phrase

KNOWS_NO_NODE = "no nodes available to schedule pods"
"""kube-scheduler's message when its list of nodes is empty (`ErrNoNodesAvailable`)."""

OF_ITS_GROUP = re.compile(r"minCount \(\d+\) cannot be satisfied")
"""In its message for a pod that fits, when it cannot schedule enough others of the PodGroup (`GangScheduling`)."""

FIT_ERROR_MARK = "nodes are available: "
AFTERMATH_MARKS = (" no new claims to deallocate", " preemption: ")
"""The texts in its message before the causes, and after them, where it states its further attempts (`FitError`)."""

PLUGIN_ERROR = re.compile(r'running (\w+) plugin "[^"]*": ')
"""The start of its message when one of its plugins failed after Leeboard's answer (`RunBindPlugins`,
`RunPreBindPlugins`, ...).
"""

SURELY_REFUSED = re.compile(r"is forbidden|denied|not found|is invalid")
"""In the error of a bind that was surely not written; after a conflict, the pod may be bound."""

LONGEST_READ = 16_384
"""Characters of a message that are read: kube-scheduler names each cause once, so its own messages are much shorter."""

LONGEST_MESSAGE = 300
"""Characters of a message that are kept: enough for the causes, and little memory with ten thousand refused pods."""


def said_of(reading: ObjectReading, status: Fields) -> SchedulerMessage:
    """Read the statement from the status of a pod."""
    for condition in reading.mappings(status, "conditions"):
        if condition.get("type") == "PodScheduled":
            failed = condition.get("status") == "False"
            return _judged(condition, reading.text(condition, "message")[:LONGEST_READ]) if failed else NOTHING_SAID
    return NOTHING_SAID


def _judged(condition: Fields, message: str) -> SchedulerMessage:
    match condition.get("reason"):
        # A kube-scheduler without nodes has judged none: its list is older, for example after a restart of the API
        # server.
        case "Unschedulable" if message.startswith(KNOWS_NO_NODE) or OF_ITS_GROUP.search(message):
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
    """Return the sure cause of a failed attempt; empty when there is none.

    There is none where the pod may be bound, or where the error is earlier than Leeboard's answer.
    """
    found = PLUGIN_ERROR.match(message)
    if found is None:
        return ""
    if found[1] != "Bind":
        return _shortened(message)
    return _shortened(message[found.end() :]) if SURELY_REFUSED.search(message) else ""


def _because(message: str) -> str:
    """Return kube-scheduler's statement about its own filters, without Leeboard's phrases and its further attempts.

    Beside a phrase of Leeboard, the numbers of nodes are left out: they change with every attempt, and each change
    would cause a new plan for the pods that are pending because of it.
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
