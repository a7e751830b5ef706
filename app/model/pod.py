"""One pod: what it asks for, where it may go, and what has become of it so far."""

from dataclasses import dataclass
from enum import StrEnum

from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.resources import NOTHING, Resources


class Operator(StrEnum):
    """Operators of a node selector requirement (Kubernetes `NodeSelectorOperator`)."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a node's label, or on a node's field when `key` is `NODE_NAME_FIELD`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


NODE_NAME_FIELD = "metadata.name"

Term = tuple[Requirement, ...]
"""All of its requirements must hold; an empty term matches no node, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration; an empty `key` tolerates every key, an empty `effect` every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Where a pod may go at all. Pods of one template share one value: it keys the cache of node masks."""

    node_selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """Required node affinity: one term must match; None when the pod states none."""
    tolerations: tuple[Toleration, ...] = ()


ANYWHERE = Constraint()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the watch last showed it."""

    uid: PodUid
    namespace: str
    name: str
    group: GroupKey
    queue: QueueName
    request: Resources = NOTHING
    constraint: Constraint = ANYWHERE
    priority_class: str = ""
    """The class by name (label `priorityClassName`, else the spec's), still to be looked up; empty when none."""
    spec_priority: int = 0
    """`spec.priority`, as admission resolved it."""
    explicit_preemptible: bool | None = None
    """Label `kai.scheduler/preemptibility`; None: decided by the priority."""
    task_priority: int = 0
    """Order inside the PodGroup, higher first (label `kai.scheduler/task-priority`)."""
    subgroup: str = ""
    """Part of the PodGroup that it belongs to (label `kai.scheduler/subgroup-name`)."""
    created_at: float = 0.0
    """Seconds since the epoch; only the order matters."""
    managed: bool = True
    """False for pods of other schedulers: they are only subtracted."""
    names_group: bool = False
    """True when the pod's annotation names a PodGroup, false when the pod is a group of its own."""
    node: NodeName | None = None
    """`spec.nodeName`: once set, the pod is there whoever bound it."""
    nominated: NodeName | None = None
    gated: bool = False
    deleting: bool = False
    refused_by_scheduler: bool = False
    """kube-scheduler's own filters accept it nowhere (PodScheduled=False with a text that is not ours)."""
    refused_by_us: bool = False
    """kube-scheduler has parked it after one of our refusals, so it must be woken when its turn comes."""
    problem: str = ""
    """One sentence for its owner when a value on the pod cannot be read; empty when all can."""

    def __repr__(self) -> str:
        return f"<Pod {self.namespace}/{self.name}{' on ' + self.node if self.node else ''}>"
