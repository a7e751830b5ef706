"""What a cluster autoscaler is asked for, and what has become of that."""

from dataclasses import dataclass
from enum import Enum

from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.seam import RawObject

GROUP_ANNOTATION = "leeboard.dev/capacity-for"
"""On whatever is made: the PodGroup, as namespace/name, that lacks the nodes."""

REQUEST_LABEL = "leeboard.dev/capacity-request"
"""On a scaling pod: what it is one of."""

UNSCHEDULABLE = "Unschedulable"
"""The reason of the condition PodScheduled that cluster autoscalers look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """Some pods of a PodGroup that ask for the same and may go to the same nodes."""

    sample: Pod
    """One of them: what is not known of it is read before it is told to anybody."""
    count: int
    """How many units of them there are."""
    pods_each: int = 1
    """How many pods a unit has: those that share GPUs are told as many as one GPU takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """The nodes that a PodGroup lacks, as the pods that would run there."""

    key: GroupKey
    name: str
    """Another one whenever something else is asked for, the same again after a restart."""
    owner: RawObject
    """The PodGroup object, or else one of its pods, as events refer to it."""
    shapes: tuple[PodShape, ...]

    @property
    def units(self) -> int:
        """How many units are asked for."""
        return sum(shape.count for shape in self.shapes)

    def __repr__(self) -> str:
        return f"<CapacityRequest {self.name} {self.units}>"


class AutoscalerAnswer(Enum):
    """What an autoscaler has said."""

    NOTHING = "nothing"
    ACCEPTED = "accepted"
    NOT_YET = "not yet"
    """It says that there is no capacity now, and goes on."""
    PROVISIONED = "provisioned"
    ENDED = "ended"
    """It has failed, or what was provisioned is no longer kept: nothing more comes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRequest:
    """What there is in the cluster of a `CapacityRequest`."""

    key: GroupKey
    name: str
    uid: str = ""
    """Empty where it is made of many objects."""
    made_at: float = 0.0
    """Seconds since the epoch."""
    shapes: int = 1
    units: int = 0
    """As many as are there and can be seen by an autoscaler."""
    answer: AutoscalerAnswer = AutoscalerAnswer.NOTHING
    said: str = ""
    """In the autoscaler's own words, without a full stop."""

    def __repr__(self) -> str:
        return f"<MadeRequest {self.name} {self.units} {self.answer.value}>"
