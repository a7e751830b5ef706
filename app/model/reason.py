"""Why something cannot run: one word for programs, one fixed phrase for kube-scheduler, one sentence for people.

The phrase never carries a number: a changing refusal makes kube-scheduler retry hundreds of times in seconds
(its own status patch wakes the pod), so numbers travel only in a `Refusal`, to status, events and the insight API.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from app.model.names import QueueName
from app.model.resources import Resources
from app.model.sentence import joined


class Reason(StrEnum):
    """Every cause for which a pod waits. Each is an event reason, a metric label and a row of the chart's README."""

    QUEUE_DOES_NOT_EXIST = "QueueDoesNotExist"
    QUEUE_IS_INVALID = "QueueIsInvalid"
    QUEUE_IS_NOT_A_LEAF = "QueueIsNotALeaf"
    INVALID_REQUEST = "InvalidRequest"
    POD_GROUP_DOES_NOT_EXIST = "PodGroupDoesNotExist"
    POD_GROUP_IS_INVALID = "PodGroupIsInvalid"
    OWNER_UNKNOWN = "OwnerUnknown"
    OWNER_SUSPENDED = "OwnerSuspended"
    MEMBERS_MISSING = "NotReady"
    OVER_LIMIT = "OverLimit"
    NON_PREEMPTIBLE_OVER_QUOTA = "NonPreemptibleOverQuota"
    NO_NODE_FITS = "NoNodeFits"
    GANG_DOES_NOT_FIT = "GangDoesNotFit"
    REFUSED_BY_SCHEDULER = "RefusedByScheduler"
    NOT_CONSIDERED = "NotConsidered"
    BACKING_OFF = "BackingOff"
    DECIDING = "Deciding"
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    WAITING_FOR_DEVICES = "WaitingForDevices"


PHRASES: Mapping[Reason, str] = {
    Reason.QUEUE_DOES_NOT_EXIST: "its queue does not exist",
    Reason.QUEUE_IS_INVALID: "its queue is not valid",
    Reason.QUEUE_IS_NOT_A_LEAF: "its queue has child queues and takes no pods",
    Reason.INVALID_REQUEST: "the pod asks for something that cannot be read",
    Reason.POD_GROUP_DOES_NOT_EXIST: "its PodGroup does not exist",
    Reason.POD_GROUP_IS_INVALID: "its PodGroup is not valid",
    Reason.OWNER_UNKNOWN: "its owners are still being looked up",
    Reason.OWNER_SUSPENDED: "its owner is suspended",
    Reason.MEMBERS_MISSING: "its PodGroup waits for more members",
    Reason.OVER_LIMIT: "its queue is at its limit",
    Reason.NON_PREEMPTIBLE_OVER_QUOTA: "a non-preemptible workload must stay within its queue's quota",
    Reason.NO_NODE_FITS: "no node has room for it",
    Reason.GANG_DOES_NOT_FIT: "its PodGroup does not fit as a whole",
    Reason.REFUSED_BY_SCHEDULER: "a member of its PodGroup is refused by the scheduler's own filters",
    Reason.NOT_CONSIDERED: "the scheduler does not consider a member of its PodGroup",
    Reason.BACKING_OFF: "its PodGroup backs off after failed attempts",
    Reason.DECIDING: "its turn is being decided",
    Reason.WAITING_FOR_VICTIMS: "its room is still being freed",
    Reason.WAITING_FOR_DEVICES: "a GPU is being made ready for it to share",
}
"""What kube-scheduler is told; a fixed vocabulary, prefixed when sent (`phrase`)."""


NO_PLACE = frozenset({Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT})
"""Refusals for want of a node."""

NO_ROOM = NO_PLACE | {Reason.OVER_LIMIT}
"""Refusals that somebody's leaving may end."""

FREEING = frozenset({Reason.WAITING_FOR_VICTIMS, Reason.WAITING_FOR_DEVICES})
"""Reasons of those who have a place, which is not free yet."""


NUMBERS = frozenset(
    {
        *("nodes", "excluded", "promised", "refused", "most_free_gpu_milli", "blocked"),
        *("fitting", "needed", "domains", "best", "behind"),
        *("limit", "deserved", "fair_share", "allocated", "requested"),
        *("minMember", "exist", "gated", "pods", "pod", "podgroup"),
        *("node", "since", "leaving", "victims"),
    }
)
"""Details that say how much is missing, where or to which pod, and not what: they change while a cause lasts."""

FLAGS = frozenset({"even_when_empty", "kept", "lent"})
"""Details that say something by being there, also when they are 0; any other that is 0 keeps nobody."""

STATED = frozenset({Reason.QUEUE_IS_INVALID, Reason.POD_GROUP_IS_INVALID})
"""Reasons whose sentence says what somebody has to correct, and changes only when they write again."""


def phrase(reason: Reason) -> str:
    """Return the fixed text for kube-scheduler, recognisable as ours in a pod's condition."""
    return f"Leeboard({reason.value}): {PHRASES[reason]}"


UNREADY = "Leeboard cannot answer now; its /readyz says why"
"""What kube-scheduler is told, and tells the pod's owner, when no question can be answered: one text, since a text that
changes would be a write to the pod each time."""

PHRASE_MARK = "Leeboard("
"""How a PodScheduled condition that repeats one of our phrases is told from kube-scheduler's own refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusingQueue:
    """The queue that refuses, which may be an ancestor of the PodGroup's own, and what was asked of it."""

    name: QueueName
    requested: Resources
    deserved: Resources
    """As the limit, `UNLIMITED` where the queue says nothing."""
    allocated: Resources
    allocated_non_preemptible: Resources
    limit: Resources
    asked: Resources
    """By the pods of the PodGroup that start together."""
    asked_non_preemptible: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class OfVictims:
    """Why nobody has to leave for a PodGroup that finds no room."""

    clause: str = ""
    """The end of a sentence; empty where there is nothing to say: nobody who leaves would make room."""
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cause:
    """What is in the way of a PodGroup, without how much of it is missing."""

    reason: Reason
    said: frozenset[str] = frozenset()
    """The details that name it, with their values where these are names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a PodGroup waits, with the numbers a person needs; equal refusals are one event."""

    reason: Reason
    sentence: str
    """One sentence with numbers and units, for status, events and the insight API; never for kube-scheduler.

    It may name objects of tenants, so whoever writes or shows it says for which reader (`sentence.told`).
    """
    details: Mapping[str, int | str] = field(default_factory=dict)
    queue: RefusingQueue | None = None
    """Set where a limit or a deserved share is what is in the way."""
    of_victims: OfVictims | None = None
    """Part of sentence and details; None as long as it is not known whether somebody may be made to leave."""

    def with_victims(self, known: OfVictims) -> Self:
        """Return the same with why nobody has to leave."""
        sentence = joined(self.sentence, known.clause) if known.clause else self.sentence
        return replace(self, sentence=sentence, details={**self.details, **known.details}, of_victims=known)

    @property
    def exceeds_cluster(self) -> bool:
        """Whether nodes or limits would not suffice even if nobody else were there: who leaves does not help."""
        return "even_when_empty" in self.details

    @property
    def may_find_victims(self) -> bool:
        """Whether it may end when others leave."""
        return self.reason in NO_ROOM and not self.exceeds_cluster

    @property
    def cause(self) -> Cause:
        """What it is about: a refusal with the same cause and other numbers is nothing new."""
        if self.reason in STATED:
            return Cause(self.reason, frozenset({self.sentence}))
        of_victims = self.of_victims.details if self.of_victims is not None else {}
        own = ((key, value) for key, value in self.details.items() if key not in NUMBERS and key not in of_victims)
        said = (f"{key}={value}" if isinstance(value, str) else key for key, value in own if value or key in FLAGS)
        return Cause(self.reason, frozenset(said))

    def __repr__(self) -> str:
        return f"<Refusal {self.reason.value}: {self.sentence}>"
