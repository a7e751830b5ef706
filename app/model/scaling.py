"""The requests to a cluster autoscaler, and their results."""

from dataclasses import dataclass
from enum import Enum

from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.seam import RawObject

GROUP_ANNOTATION = "leeboard.dev/capacity-for"
"""On every created object: the PodGroup that lacks nodes, as namespace/name."""

REQUEST_LABEL = "leeboard.dev/capacity-request"
"""On a scaling pod: the request that it belongs to."""

UNSCHEDULABLE = "Unschedulable"
"""The reason of the condition PodScheduled that cluster autoscalers look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """Pods of a PodGroup with the same requests and the same possible nodes."""

    sample: Pod
    """One of the pods. Missing details are read before it is written anywhere."""
    count: int
    """The number of units."""
    pods_each: int = 1
    """The pods of one unit. Pods that share GPUs are grouped into units of one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """The nodes that a PodGroup lacks, described by the pods that would run on them."""

    key: GroupKey
    name: str
    """The name changes with the request. The same request gets the same name after a restart."""
    owner: RawObject
    """The PodGroup object, or else one of its pods, in the form that events refer to it."""
    shapes: tuple[PodShape, ...]

    @property
    def units(self) -> int:
        """The number of requested units."""
        return sum(shape.count for shape in self.shapes)

    def __repr__(self) -> str:
        return f"<CapacityRequest {self.name} {self.units}>"


class AutoscalerAnswer(Enum):
    """The autoscaler's answer."""

    NOTHING = "nothing"
    ACCEPTED = "accepted"
    NOT_YET = "not yet"
    """There is no capacity now, and the autoscaler keeps trying."""
    PROVISIONED = "provisioned"
    ENDED = "ended"
    """It has failed, or provisioned capacity is no longer kept. No further result will follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRequest:
    """The objects in the cluster for one `CapacityRequest`."""

    key: GroupKey
    name: str
    uid: str = ""
    """Empty when the request consists of many objects."""
    made_at: float = 0.0
    """Seconds since the epoch."""
    shapes: int = 1
    units: int = 0
    """The units that exist and that an autoscaler can see."""
    answer: AutoscalerAnswer = AutoscalerAnswer.NOTHING
    said: str = ""
    """The autoscaler's own text, without a full stop."""

    def __repr__(self) -> str:
        return f"<MadeRequest {self.name} {self.units} {self.answer.value}>"
