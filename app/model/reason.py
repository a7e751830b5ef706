"""Why a pod or PodGroup cannot run: a word for programs, a fixed phrase for kube-scheduler, a sentence for people.

The phrase never contains a number: a changing refusal makes kube-scheduler retry hundreds of times in seconds, because
its own status patch wakes the pod. Numbers are only in a `Refusal`, for status, events and the insight API.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from app.model.names import QueueName
from app.model.resources import Resources
from app.model.sentence import joined


class Reason(StrEnum):
    """Every cause for which a pod waits. Each is an event reason, a metric label and a row of troubleshooting.md."""

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
    Reason.INVALID_REQUEST: "the pod asks for something that is not valid",
    Reason.POD_GROUP_DOES_NOT_EXIST: "its PodGroup does not exist",
    Reason.POD_GROUP_IS_INVALID: "its PodGroup is not valid",
    Reason.OWNER_UNKNOWN: "it is not known yet to which PodGroup its owners assign it",
    Reason.OWNER_SUSPENDED: "its owner is suspended",
    Reason.MEMBERS_MISSING: "its gang is incomplete because pods are missing or gated",
    Reason.OVER_LIMIT: "its queue or one above it would exceed its limit",
    Reason.NON_PREEMPTIBLE_OVER_QUOTA: "it is not preemptible and its queue would exceed what it deserves",
    Reason.NO_NODE_FITS: "no node has room for it",
    Reason.GANG_DOES_NOT_FIT: "the pods of its gang do not fit together",
    Reason.REFUSED_BY_SCHEDULER: "kube-scheduler's own filters accept a pod of its PodGroup on no node",
    Reason.NOT_CONSIDERED: "kube-scheduler does not ask about a pod of its PodGroup",
    Reason.BACKING_OFF: "the last attempt to start its PodGroup failed and the next one comes later",
    Reason.DECIDING: "its turn is being decided",
    Reason.WAITING_FOR_VICTIMS: "other pods still have to leave the room that is reserved for it",
    Reason.WAITING_FOR_DEVICES: "a GPU is being made ready for it to share",
}
"""The texts for kube-scheduler. The vocabulary is fixed; `phrase` adds a prefix.

They have no comma, semicolon, colon or digit: kube-scheduler joins them by commas, where `decode` divides its message.
"""


NO_PLACE = frozenset({Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT})
"""Refusals because no node fits."""

NO_ROOM = NO_PLACE | {Reason.OVER_LIMIT}
"""Refusals that may end when other pods leave."""

FREEING = frozenset({Reason.WAITING_FOR_VICTIMS, Reason.WAITING_FOR_DEVICES})
"""Reasons of PodGroups whose place exists, but is not free yet."""


NUMBERS = frozenset(
    {
        *("nodes", "excluded", "promised", "refused", "most_free_gpu_milli", "blocked"),
        *("fitting", "needed", "domains", "best", "behind"),
        *("limit", "deserved", "fair_share", "allocated", "requested"),
        *("minMember", "exist", "gated", "pods", "pod", "podgroup"),
        *("node", "since", "leaving", "victims"),
    }
)
"""Details that say how much is missing, where, or for which pod. They change while the cause stays the same."""

FLAGS = frozenset({"even_when_empty", "kept", "lent"})
"""Details whose presence is the information, also with the value 0. Any other detail with the value 0 has no effect."""

STATED = frozenset({Reason.QUEUE_IS_INVALID, Reason.POD_GROUP_IS_INVALID})
"""Reasons whose sentence says what a user must correct. They change only when the user writes again."""


def phrase(reason: Reason) -> str:
    """Return the fixed text for kube-scheduler. Its prefix identifies it as Leeboard's in a pod's condition."""
    return f"Leeboard({reason.value}): {PHRASES[reason]}"


UNREADY = "Leeboard cannot answer now; its /readyz says why"
"""The text for kube-scheduler, and so for the pod's owner, when no question can be answered.

It is constant, because each change of the text would be a write to the pod.
"""

PHRASE_MARK = "Leeboard("
"""Distinguishes a PodScheduled condition with a phrase of Leeboard from kube-scheduler's own refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusingQueue:
    """The queue that refuses, which may be an ancestor of the PodGroup's queue, and the amounts in question."""

    name: QueueName
    requested: Resources
    deserved: Resources
    """Like the limit, it is `UNLIMITED` when the queue does not state it."""
    allocated: Resources
    allocated_non_preemptible: Resources
    limit: Resources
    asked: Resources
    """Requested by the pods of the PodGroup that start together."""
    asked_non_preemptible: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class OfVictims:
    """Why no pod is evicted for a PodGroup without room."""

    clause: str = ""
    """The end of a sentence; empty when no eviction would make room, so that there is nothing to add."""
    details: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cause:
    """The obstacle of a PodGroup, without how much is missing."""

    reason: Reason
    said: frozenset[str] = frozenset()
    """The details that identify the obstacle, with their values when these are names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a PodGroup waits, with the numbers that a person needs. Equal refusals are one event."""

    reason: Reason
    sentence: str
    """One sentence with numbers and units, for status, events and the insight API, never for kube-scheduler.

    It may name objects of tenants. Code that writes or shows it states the reader (`sentence.told`).
    """
    details: Mapping[str, int | str] = field(default_factory=dict)
    queue: RefusingQueue | None = None
    """Set when a limit or a deserved share is the obstacle."""
    of_victims: OfVictims | None = None
    """Part of the sentence and the details; None while it is unknown whether pods may be evicted."""

    def with_victims(self, known: OfVictims) -> Self:
        """Return the refusal extended by why no pod is evicted."""
        sentence = joined(self.sentence, known.clause) if known.clause else self.sentence
        return replace(self, sentence=sentence, details={**self.details, **known.details}, of_victims=known)

    @property
    def exceeds_cluster(self) -> bool:
        """Whether nodes or limits would not suffice even in an empty cluster, so that evictions do not help."""
        return "even_when_empty" in self.details

    @property
    def may_find_victims(self) -> bool:
        """Whether the refusal may end when other pods leave."""
        return self.reason in NO_ROOM and not self.exceeds_cluster

    @property
    def cause(self) -> Cause:
        """The cause. A refusal with the same cause and other numbers is not a new refusal."""
        if self.reason in STATED:
            return Cause(self.reason, frozenset({self.sentence}))
        of_victims = self.of_victims.details if self.of_victims is not None else {}
        own = ((key, value) for key, value in self.details.items() if key not in NUMBERS and key not in of_victims)
        said = (f"{key}={value}" if isinstance(value, str) else key for key, value in own if value or key in FLAGS)
        return Cause(self.reason, frozenset(said))

    def __repr__(self) -> str:
        return f"<Refusal {self.reason.value}: {self.sentence}>"
