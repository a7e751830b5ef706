"""A node: what it has, who may use it, and whether it takes work now."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.model.layout import Layout
from app.model.names import NodeName
from app.model.resources import NOTHING, Resources, Scalars


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint of effect NoSchedule or NoExecute; PreferNoSchedule is kube-scheduler's to weigh."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the watch last showed it."""

    name: NodeName
    allocatable: Resources = NOTHING
    scalars: Scalars = ()
    """Allocatable extended resources by name, MIG profiles among them."""
    device_memory_mib: int = 0
    """Of each GPU; 0 when nothing tells."""
    names_gpus: bool = False
    """It says that it has GPUs of whatever kind, be any of them allocatable now or not."""
    shares_devices: bool = True
    """False where no pod gets a part of a device: GPUs are cut by MIG, or handed out several times over already."""
    layout: Layout | None = None
    """How its GPUs reach each other, as its agent says; None when nobody does."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    """Cordoned. Kubernetes refuses new pods there unless they tolerate `node.kubernetes.io/unschedulable`."""
    problem: str = ""
    """One sentence for its owner when a value on the node cannot be read; such a node takes no new work."""

    @property
    def takes_work(self) -> bool:
        """Ready, and readable; a cordon is a taint, which some pods tolerate."""
        return self.ready and not self.problem

    def __repr__(self) -> str:
        return f"<Node {self.name}>"
