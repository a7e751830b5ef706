"""One pod: what it asks for, where it may go, and what has become of it so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.model.names import NO_QUEUE, GroupKey, NodeName, PodUid, QueueName
from app.model.owner import Origin
from app.model.resources import GPU_MILLI, MAX_AMOUNT, NOTHING, Resources, Scalars, is_gpu, mig_milli


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


LONGEST_KEPT = 4096
"""Characters of what a pod states, written out, that is remembered for longer than the pod is there."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Where a pod may go at all. Pods of one template share one value: it keys the cache of node masks."""

    node_selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """Required node affinity: one term must match; None when the pod states none."""
    tolerations: tuple[Toleration, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """It is a key wherever a pod is looked at: computed once, however much its owner wrote."""
    is_long: bool = field(init=False, repr=False, compare=False)
    """Whether its owner wrote so much that nobody shall remember it for longer than the pod."""
    requirements: int = field(init=False, repr=False, compare=False)
    """How many labels of a node, or their values, are judged one by one."""
    size: int = field(init=False, repr=False, compare=False)
    """How many items its owner wrote in all."""

    def __post_init__(self) -> None:
        stated = self.node_selector, self.terms, self.tolerations
        object.__setattr__(self, "_hash", hash(stated))
        object.__setattr__(self, "is_long", len(repr(stated)) > LONGEST_KEPT)
        requirements = len(self.node_selector) + sum(map(len, self.terms or ()))
        object.__setattr__(self, "requirements", requirements)
        object.__setattr__(self, "size", requirements + len(self.tolerations))

    def __hash__(self) -> int:
        return self._hash


ANYWHERE = Constraint()
NOWHERE = Constraint(terms=())
"""No node satisfies it: what cannot be read allows nothing."""


PPM = 1_000_000
"""A whole device in millionths: the unit of a fraction, exact to six digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A part of each of some devices: by fraction or by memory, never both."""

    portion_ppm: int = 0
    """Of one device, in millionths; 0 when the part is asked for by memory."""
    memory_mib: int = 0
    """Of one device; 0 when the part is asked for by fraction."""
    devices: int = 1
    overhead_mib: int = 0
    """Set aside on each device beside the part, for what CUDA itself takes; no queue pays for it (a setting)."""

    def mib_of(self, device_memory_mib: int) -> int:
        """Return how much memory of each device of this size the pod may use, cut to whole MiB."""
        return self.memory_mib or device_memory_mib * self.portion_ppm // PPM

    def gpu_milli(self, device_memory_mib: int) -> int:
        """Return what a queue pays where devices have this much memory, all devices together.

        Cut to a thousandth: three pods of a third each must never cost more than the device that they share. Nor does a
        part cost more than its device, not even where nothing tells how large that is.
        """
        if self.memory_mib:
            return self.devices * min(self.memory_mib * GPU_MILLI // max(device_memory_mib, 1), GPU_MILLI)
        return self.devices * self.portion_ppm * GPU_MILLI // PPM


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A DRA ResourceClaim of one request; pods that name the same claim share its devices."""

    key: str
    """Namespace and name."""
    device_class: str
    count: int
    queue: QueueName | None = None
    """The queue that the claim's label names; KAI lets only pods of that queue use a shared claim."""
    shared: bool = False
    """Made by a person, not from a template: it outlives the pod."""


@dataclass(frozen=True, slots=True)
class Near:
    """Required inter-pod affinity or anti-affinity to pods that carry these labels."""

    labels: tuple[tuple[str, str], ...]
    topology_key: str
    apart: bool = False
    """Anti-affinity: away from such pods, not near them."""


@dataclass(frozen=True, slots=True)
class SchedulerMessage:
    """What kube-scheduler has said of a pod last, in its condition PodScheduled; nothing where it finds no fault."""

    by_scheduler: bool = False
    """Its own filters accept the pod nowhere (PodScheduled=False with a text that is not ours)."""
    by_us: bool = False
    """It has parked the pod after one of our refusals, so that the pod must be woken when its turn comes."""
    because: str = ""
    """What it says of its own filters, without a full stop; empty when they refuse no node."""
    attempt_failed: str = ""
    """The error that surely ended its last attempt after our answer, without a full stop; empty when none did."""
    passing: bool = False
    """What it says was true for a moment only: Leeboard could not answer, or was deciding."""


NOTHING_SAID = SchedulerMessage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the watch last showed it."""

    uid: PodUid
    namespace: str
    name: str
    group: GroupKey
    queue: QueueName
    request: Resources = NOTHING
    """Columns of a node: `gpu_milli` counts whole devices only; parts of devices are `sharing`."""
    sharing: Sharing | None = None
    scalars: Scalars = ()
    """Extended resources by name, MIG profiles among them."""
    claims: tuple[ResourceClaim, ...] = ()
    constraint: Constraint = ANYWHERE
    labels: Mapping[str, str] | None = None
    """Kept only of pods to whose labels an affinity may refer; None stands for none."""
    near: tuple[Near, ...] = ()
    priority_classes: tuple[str, ...] = ()
    """By name (label `priorityClassName`, then the spec's), still to be looked up: the first that exists counts."""
    spec_priority: int = 0
    """`spec.priority`, as admission resolved it."""
    explicit_preemptible: bool | None = None
    """Label `kai.scheduler/preemptibility`; None: decided by the priority."""
    started_preemptible: bool = False
    """It was bound, or made for kube-scheduler to bind, when its group was preemptible: its queue may have more than is
    its own."""
    started_firm: bool = False
    """It was bound when its group was not: it counts against the quota for such pods until it ends. Else it could be
    made preemptible while others like it start, and firm again."""
    bound_queue: QueueName = NO_QUEUE
    """The queue with which it was bound, or made for kube-scheduler to bind; empty when nothing on it says so."""
    task_priority: int = 0
    """Order inside the PodGroup, higher first (label `kai.scheduler/task-priority`)."""
    subgroup: str = ""
    """Part of the PodGroup that it belongs to (label `kai.scheduler/subgroup-name`)."""
    created_at: float = 0.0
    """Seconds since the epoch; only the order matters."""
    runs_at_most_s: float | None = None
    """`spec.activeDeadlineSeconds`: the kubelet ends it after so long; None when it may run for ever."""
    managed: bool = True
    """False for pods of other schedulers: they are only subtracted."""
    bare: bool = False
    """Nobody makes another in its place when it is gone: it has no controller."""
    stays: bool = False
    """Another scheduler's pod that belongs to its node: of a DaemonSet, or run by the kubelet alone (a mirror pod)."""
    binds_elsewhere: bool = False
    """kube-scheduler binds it by itself once filter has answered: it lacks the marker of those it asks us to bind."""
    names_group: bool = False
    """True when the pod belongs to a PodGroup, by its annotation or its owners; false when it is one of its own."""
    origin: Origin | None = None
    """Where it comes from, for grouping; None when it names its PodGroup itself, or nothing on it says more."""
    lacks_claim: str = ""
    """A ResourceClaim that is still to be made from a template, and the template, in words: kube-scheduler does not
    consider the pod before; empty when it lacks none."""
    names_claims: bool = False
    """It names ResourceClaims, which kube-scheduler wants to see before it considers the pod."""
    ungrouped: str = ""
    """One sentence while it is not known yet to which PodGroup its owners put it; empty when it is."""
    node: NodeName | None = None
    """`spec.nodeName`: once set, the pod is there whoever bound it."""
    self_placed: bool = False
    """Its author wrote the node; no scheduler has bound it and its kubelet has not taken it yet. It is not managed, and
    no queue pays for it: it may ask for more than any node has, and never run."""
    devices: tuple[str, ...] = ()
    """The shared devices it has a part of, by their names on its node; empty until it is bound, and for whole ones."""
    device_uuids: tuple[str, ...] = ()
    """The UUIDs of these, in the same order, as its environment shows them."""
    reserves: str = ""
    """It is a reservation pod: the shared device for which it holds a whole one. Not managed, and in no queue."""
    nominated: NodeName | None = None
    held: bool = False
    """Our own scheduling gate is on it: kube-scheduler does not look at it until we take that off."""
    gated: bool = False
    """A scheduling gate of somebody else is on it, who alone may take it off."""
    deleting: bool = False
    said: SchedulerMessage = field(default=NOTHING_SAID, compare=False)
    """No difference to whoever plans: each refusal would else have the refused planned anew."""
    problem: str = ""
    """One sentence for its owner when a value on the pod cannot be read; empty when all can."""
    unread: bool = False
    """It is on its node and holds amounts there that cannot be read: nothing more may be given out on that node."""

    @property
    def stays_in_group(self) -> bool:
        """Whether it was bound with its queue noted on it: nothing moves it to another PodGroup until it ends."""
        return bool(self.bound_queue) and self.node is not None

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it asks for GPUs, or parts of them, in any way that there is."""
        has_any = self.request.gpu_milli > 0 or self.sharing is not None or bool(self.claims)
        return has_any or any(is_gpu(name) for name, _ in self.scalars)

    def charge(self, device_memory_mib: int) -> Resources:
        """Return what its queue pays, given the memory of a device there.

        A MIG profile `Ng` costs N GPUs (KAI's rule), a claim one GPU a device. A claim that others hold as well is
        charged to each of them, as in KAI. No amount is more than `MAX_AMOUNT`.
        """
        if self.sharing is None and not self.scalars and not self.claims:
            return self.request
        gpu_milli = self.request.gpu_milli + mig_milli(self.scalars)
        gpu_milli += GPU_MILLI * sum(claim.count for claim in self.claims)
        if self.sharing is not None:
            gpu_milli += self.sharing.gpu_milli(device_memory_mib)
        cpu_milli, memory_bytes, _, pods = self.request.amounts
        charged_milli = min(gpu_milli, MAX_AMOUNT)
        return Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=charged_milli, pods=pods)

    def __repr__(self) -> str:
        return f"<Pod {self.namespace}/{self.name}{' on ' + self.node if self.node else ''}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A pod that holds a place and keeps it: promised, being bound, or bound."""

    pod: Pod
    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices it holds a part of, by their names on the node; empty for whole devices."""

    def __repr__(self) -> str:
        return f"<Placed {self.pod.name} on {self.node}>"
