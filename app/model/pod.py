"""One pod: what it requests, where it may run, and its current state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from app.model.dra import ClaimKey
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
"""All requirements of a term must hold. An empty term matches no node, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration; an empty `key` tolerates every key, an empty `effect` every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


LONGEST_KEPT = 4096
"""The most characters of a pod's constraint, written as text, that are cached for longer than the pod exists."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The nodes where a pod may run. Pods of one template share one value, which keys the cache of node masks."""

    node_selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """Required node affinity: one term must match. None when the pod has none."""
    tolerations: tuple[Toleration, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Computed once, because a constraint is a frequent dictionary key and may be large."""
    is_long: bool = field(init=False, repr=False, compare=False)
    """Whether the constraint is too long to be cached for longer than the pod exists."""
    requirements: int = field(init=False, repr=False, compare=False)
    """How many node labels, or values of them, are checked one by one."""
    size: int = field(init=False, repr=False, compare=False)
    """How many items the author wrote in total."""

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
"""No node satisfies it. An unreadable constraint allows no node."""


PPM = 1_000_000
"""A whole device in millionths, the unit of a fraction. It is exact to six digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A fraction of each of some devices: by portion or by memory, never both."""

    portion_ppm: int = 0
    """The portion of one device, in millionths; 0 when the request is by memory."""
    memory_mib: int = 0
    """The memory of one device; 0 when the request is by portion."""
    devices: int = 1
    overhead_mib: int = 0
    """Memory set aside on each device for CUDA itself (a setting). No queue pays for it."""

    def mib_of(self, device_memory_mib: int) -> int:
        """Return the memory that the pod may use on each device of this size, rounded down to whole MiB."""
        return self.memory_mib or device_memory_mib * self.portion_ppm // PPM

    def gpu_milli(self, device_memory_mib: int) -> int:
        """Return what a queue pays for all devices together, when each device has this much memory.

        The result is rounded down to thousandths: three pods with a third each must not cost more than the device. A
        fraction never costs more than its device, also when the device's memory is unknown.
        """
        if self.memory_mib:
            return self.devices * min(self.memory_mib * GPU_MILLI // max(device_memory_mib, 1), GPU_MILLI)
        return self.devices * self.portion_ppm * GPU_MILLI // PPM


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceClaim:
    """A DRA ResourceClaim that pods may share. It is in use on one node, and holds its devices there once."""

    key: ClaimKey
    gpu_milli: int = 0
    """What it takes of the whole GPUs of a node."""
    scalars: Scalars = ()
    """What it takes of other devices."""
    cost_milli: int = 0
    """What each queue pays whose pods use it: once, however many they are."""
    queue: QueueName | None = None
    """The queue in the claim's label. In KAI, only pods of this queue may use a shared claim."""
    shared: bool = False
    """The claim was created by a person, not from a template. It outlives the pod."""


@dataclass(frozen=True, slots=True)
class Near:
    """Required inter-pod affinity or anti-affinity to pods with these labels."""

    labels: tuple[tuple[str, str], ...]
    topology_key: str
    apart: bool = False
    """Anti-affinity: away from these pods, not near them."""


@dataclass(frozen=True, slots=True)
class SchedulerMessage:
    """What kube-scheduler last reported in the pod's condition PodScheduled; empty when it reported no fault."""

    by_scheduler: bool = False
    """kube-scheduler's own filters accept no node (PodScheduled=False with a text that is not Leeboard's)."""
    by_us: bool = False
    """kube-scheduler parked the pod after a refusal by Leeboard. The pod must be woken when its turn comes."""
    because: str = ""
    """The report of its own filters, without a full stop; empty when they refuse no node."""
    attempt_failed: str = ""
    """The error that certainly ended the last attempt after Leeboard's answer, without a full stop; empty when none
    did.
    """
    passing: bool = False
    """The report was true only for a moment: Leeboard could not answer, or was deciding."""


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
    """`gpu_milli` counts whole devices only; fractions of devices are in `sharing`."""
    sharing: Sharing | None = None
    scalars: Scalars = ()
    """Extended resources by name, including MIG profiles."""
    claims: tuple[ResourceClaim, ...] = ()
    """The claims for GPUs that the pod may share with others. Those of the pod alone are part of `request`."""
    by_claim_milli: int = 0
    """The part of `request.gpu_milli` that claims of the pod ask for; containers ask for the rest by name."""
    claims_milli: int = 0
    """By how much the queue pays more, or less, for the claims of the pod alone than `request` has of them."""
    constraint: Constraint = ANYWHERE
    labels: Mapping[str, str] | None = None
    """Kept only for pods to which an affinity may refer; None means no labels."""
    near: tuple[Near, ...] = ()
    priority_classes: tuple[str, ...] = ()
    """By name (label `priorityClassName`, then the spec's). They are not resolved yet: the first that exists applies.
    """
    spec_priority: int = 0
    """`spec.priority`, as admission resolved it."""
    explicit_preemptible: bool | None = None
    """Label `kai.scheduler/preemptibility`; None means that the priority decides."""
    started_preemptible: bool = False
    """The pod was bound, or created for kube-scheduler to bind, while its group was preemptible.

    Its queue may therefore hold more than its own quota.
    """
    started_firm: bool = False
    """The pod was bound while its group was non-preemptible. It counts against the non-preemptible quota until it ends.

    Otherwise an owner could make it preemptible, start further pods like it, and make it non-preemptible again.
    """
    bound_queue: QueueName = NO_QUEUE
    """The queue with which the pod was bound, or created for kube-scheduler to bind; empty when nothing on the pod
    names it.
    """
    task_priority: int = 0
    """The order inside the PodGroup, higher first (label `kai.scheduler/task-priority`)."""
    subgroup: str = ""
    """The sub-group of the PodGroup that the pod belongs to (label `kai.scheduler/subgroup-name`)."""
    created_at: float = 0.0
    """Seconds since the epoch; only the order matters."""
    runs_at_most_s: float | None = None
    """`spec.activeDeadlineSeconds`, after which the kubelet ends the pod; None when there is no limit."""
    checkpoint_s: float = inf
    """The pod saves its work at least once in so many seconds, as its owner states. An eviction loses no more than
    that.
    """
    managed: bool = True
    """False for pods of other schedulers. Their requests are only subtracted."""
    bare: bool = False
    """The pod has no controller, so no replacement is created after it is gone."""
    stays: bool = False
    """A pod of another scheduler that belongs to its node: of a DaemonSet, or a mirror pod."""
    binds_elsewhere: bool = False
    """kube-scheduler binds the pod itself after filter has answered: the pod lacks the marker of the bind entry."""
    names_group: bool = False
    """True when an annotation or the owners put the pod into a PodGroup; False when the pod is its own group."""
    origin: Origin | None = None
    """The pod's origin, for grouping; None when the pod names its PodGroup, or when it has no owner information."""
    lacks_claim: str = ""
    """A ResourceClaim that has yet to be created from a template, and the template, as text; empty when none is
    missing.

    kube-scheduler does not consider the pod before the claim exists.
    """
    claim_names: tuple[str, ...] = ()
    """The ResourceClaims of its namespace that the pod names. kube-scheduler considers the pod only when they exist."""
    ungrouped: str = ""
    """One sentence while the PodGroup from its owners is not known yet; empty when it is known."""
    node: NodeName | None = None
    """`spec.nodeName`. Once it is set, the pod is on this node, whichever component bound it."""
    self_placed: bool = False
    """The author wrote the node; no scheduler bound the pod, and the kubelet has not accepted it yet.

    It is not managed and no queue pays for it: it may request more than any node has, and never run.
    """
    devices: tuple[str, ...] = ()
    """The shared devices of which the pod has a fraction, by their names on its node.

    It is empty until the pod is bound, and for whole devices.
    """
    device_uuids: tuple[str, ...] = ()
    """The UUIDs of these devices, in the same order, as the pod's environment shows them."""
    reserves: str = ""
    """For a reservation pod: the shared device for which it holds a whole GPU. It is not managed and in no queue."""
    nominated: NodeName | None = None
    held: bool = False
    """Leeboard's scheduling gate is on the pod. kube-scheduler ignores the pod until Leeboard removes the gate."""
    gated: bool = False
    """A scheduling gate of another owner is on the pod. Only that owner may remove it."""
    deleting: bool = False
    said: SchedulerMessage = field(default=NOTHING_SAID, compare=False)
    """Not compared: otherwise each refusal would change the pod and cause a new plan."""
    problem: str = ""
    """One sentence for the owner when a value on the pod cannot be read; empty when all can."""
    unread: bool = False
    """The pod is on its node and holds amounts that cannot be read, so no further pod may be placed on the node."""

    @property
    def stays_in_group(self) -> bool:
        """Return whether the pod was bound with its queue recorded. It then stays in its PodGroup until it ends."""
        return bool(self.bound_queue) and self.node is not None

    @property
    def asks_by_name(self) -> bool:
        """Return whether containers request whole GPUs by the name of the resource, not by a claim."""
        return self.request.gpu_milli > self.by_claim_milli

    @property
    def asks_for_gpus(self) -> bool:
        """Return whether the pod requests GPUs, or fractions of them, in any form."""
        has_any = self.request.gpu_milli > 0 or self.sharing is not None or bool(self.claims or self.claims_milli)
        return has_any or any(is_gpu(name) for name, _ in self.scalars)

    def charge(self, device_memory_mib: int) -> Resources:
        """Return what the pod's queue pays, given the memory of a device on the node.

        A MIG profile `Ng` costs N GPUs (KAI's rule); a claim costs one GPU per whole device. Claims that the pod shares
        are not included: the queue pays them once for all its pods. No amount exceeds `MAX_AMOUNT`.
        """
        if self.sharing is None and not self.scalars and not self.claims_milli:
            return self.request
        gpu_milli = self.request.gpu_milli + mig_milli(self.scalars) + self.claims_milli
        if self.sharing is not None:
            gpu_milli += self.sharing.gpu_milli(device_memory_mib)
        cpu_milli, memory_bytes, _, pods = self.request.amounts
        charged_milli = min(gpu_milli, MAX_AMOUNT)
        return Resources(cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_milli=charged_milli, pods=pods)

    def __repr__(self) -> str:
        return f"<Pod {self.namespace}/{self.name}{' on ' + self.node if self.node else ''}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A pod that holds a place and keeps it: reserved, being bound, or bound."""

    pod: Pod
    node: NodeName
    devices: tuple[str, ...] = ()
    """The shared devices of which it holds a fraction, by their names on the node; empty for whole devices."""

    def __repr__(self) -> str:
        return f"<Placed {self.pod.name} on {self.node}>"


def claims_of(pods: Iterable[Pod]) -> tuple[ResourceClaim, ...]:
    """Return the claims that these pods share, as often as pods use them."""
    # Without a comprehension: almost no pod has any, and every pod of a plan is looked at.
    found: list[ResourceClaim] = []
    for pod in pods:
        if pod.claims:
            found += pod.claims
    return tuple(found) if found else ()


def once_milli(claims: Iterable[ResourceClaim]) -> int:
    """Return what one queue pays for these claims."""
    return sum({claim.key: claim.cost_milli for claim in claims}.values())
