"""What planning and placing answer: values, never effects."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.reason import Refusal
from app.model.resources import NOTHING, Resources


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod and the node it shall run on."""

    pod: PodUid
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Pods of one PodGroup that start together: all of these placements are kept, or none."""

    group: GroupKey
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A queue's part of the cluster at one moment."""

    deserved: Resources = NOTHING
    fair_share: Resources = NOTHING
    allocated: Resources = NOTHING
    allocated_non_preemptible: Resources = NOTHING
    requested: Resources = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one pass decided."""

    snapshot_version: int
    starts: tuple[Start, ...] = ()
    refusals: Mapping[GroupKey, Refusal] = field(default_factory=dict)
    shares: Mapping[QueueName, Share] = field(default_factory=dict)
