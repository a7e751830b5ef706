"""The questions of kube-scheduler and their answers: the webhooks without the wire format.

A question is never evidence. The pod's data comes from Leeboard's cache; only its uid, its nominated node and the
offered node names are taken from the request.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.model.names import NodeName, PodUid
from app.model.reason import Reason
from app.model.seam import PodRef, RawObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuestion:
    """filter and prioritize: which of the offered nodes? kube-scheduler's own filters accept all of them."""

    pod: RawObject
    uid: PodUid | None
    """None means a what-if: it is answered from the snapshot, and nothing is reserved."""
    offered: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BindQuestion:
    """bind: bind this pod to this node."""

    pod: PodRef
    node: NodeName


@dataclass(frozen=True, slots=True)
class Fits:
    """The offered nodes that fit, in their order."""

    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """No offered node fits, and preemption of single pods would not help."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer is possible: not synced, not active, or an unreadable question. The text says what to do."""

    error: str


FilterAnswer = Fits | Refused | Failed

Scores = Mapping[NodeName, int]
"""0 (worst) to 10 (best), kube-scheduler's range for extenders."""
MAX_SCORE = 10


@dataclass(frozen=True, slots=True)
class Check:
    """One line of /readyz."""

    name: str
    failure: str = ""
    """Empty when the check passes; otherwise what is wrong and what to do."""
    degraded: str = ""
    """What some pods wait for while all others continue. It is not a failure."""

    @property
    def passed(self) -> bool:
        """Whether the check passes, so that questions can be answered."""
        return not self.failure
