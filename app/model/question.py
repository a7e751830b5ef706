"""What kube-scheduler asks us, and what we may answer: the webhooks without their wire.

A question is never evidence: what a pod is comes from our cache; only its uid, its nominated node and the offered
names are taken from the request.
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
    """None makes it a what-if: answered from the snapshot, nothing is promised."""
    offered: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BindQuestion:
    """bind: write this pod to this node."""

    pod: PodRef
    node: NodeName


@dataclass(frozen=True, slots=True)
class Fits:
    """These of the offered nodes, in their order."""

    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """None of the offered nodes, and preemption of single pods would not cure it."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer can be given: not synced, not active, or the question cannot be read. Says what to do."""

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
    """Empty when all is well; else what is wrong and what to do."""
    degraded: str = ""
    """What some pods wait for while all others go on; no failure."""

    @property
    def passed(self) -> bool:
        """Whether questions can be answered."""
        return not self.failure
