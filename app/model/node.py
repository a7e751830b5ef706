"""A node: its resources, which pods may use it, and whether it takes pods now."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.layout import Layout
from app.model.names import NodeName
from app.model.resources import NOTHING, Resources, Scalars


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint with the effect NoSchedule or NoExecute. Only kube-scheduler considers PreferNoSchedule."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


DEVICES_PREFIX = "dra:"
"""Of the labels and resources of nodes that count devices for claims. No label of a user contains a colon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevices:
    """The devices of a node that claims can get: the free ones, and those with which its pods are charged."""

    gpu_milli: int = 0
    """Whole GPUs."""
    scalars: Scalars = ()
    """Partitions of GPUs, by profile."""
    labels: tuple[tuple[str, str], ...] = ()
    """The number of devices by model, as labels: constraints of pods with claims refer to them."""
    by_name: bool = False
    """Containers that request GPUs by the name of their resource get these devices as well (KEP-5004)."""


NO_DEVICES = NodeDevices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the watch last showed it."""

    name: NodeName
    allocatable: Resources = NOTHING
    scalars: Scalars = ()
    """Allocatable extended resources by name, including MIG profiles."""
    device_memory_mib: int = 0
    """The memory of each GPU; 0 when unknown."""
    names_gpus: bool = False
    """The node declares GPUs of any kind, even when none is allocatable now."""
    shares_devices: bool = True
    """False when no pod gets a fraction of a GPU here: the GPUs use MIG, or the device plugin already shares them."""
    by_claim_only: bool = False
    """Pods get its GPUs by ResourceClaims, not by the name of a resource."""
    layout: Layout | None = None
    """The links between its GPUs, as its agent reports them; None when unknown."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    """The node is cordoned. Only pods that tolerate `node.kubernetes.io/unschedulable` may be placed on it."""
    problem: str = ""
    """One sentence for the node's owner when a value cannot be read. Such a node takes no new pods."""

    @property
    def takes_work(self) -> bool:
        """Whether the node is Ready and readable. A cordon is a taint, which some pods tolerate."""
        return self.ready and not self.problem

    def __repr__(self) -> str:
        return f"<Node {self.name}>"
