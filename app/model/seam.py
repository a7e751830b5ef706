"""The interface between `control` and a cluster: a real API server (`kube`) or a simulated one.

Objects are passed as raw JSON. Only `cluster.decode` knows their field names.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from app.model.names import NodeName, PodUid

T = TypeVar("T")

RawObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


def rfc3339(seconds: float) -> str:
    """Return a time in seconds since the epoch as Kubernetes objects state it (metav1.Time)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Resource(Enum):
    """The watched kinds, by their API path. `{namespace}` only matters for writes of one object."""

    NODES = "api/v1/nodes"
    PODS = "api/v1/pods"
    PRIORITY_CLASSES = "apis/scheduling.k8s.io/v1/priorityclasses"
    QUEUES = "apis/scheduling.run.ai/v2/queues"
    POD_GROUPS = "apis/scheduling.run.ai/v2alpha2/podgroups"
    NATIVE_POD_GROUPS = "apis/scheduling.k8s.io/v1beta1/podgroups"
    TOPOLOGIES = "apis/kai.scheduler/v1alpha1/topologies"
    GPU_NODES = "apis/leeboard.dev/v1alpha1/gpunodes"
    DEVICE_CLASSES = "apis/resource.k8s.io/v1/deviceclasses"
    RESOURCE_SLICES = "apis/resource.k8s.io/v1/resourceslices"
    DEVICE_TAINT_RULES = "apis/resource.k8s.io/v1/devicetaintrules"
    RESOURCE_CLAIMS = "apis/resource.k8s.io/v1/resourceclaims"

    # Each event looks up its kind a dozen times. In Python 3.11 an Enum's own hash runs in Python.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """All existing objects. Any other object that was known before is gone."""

    objects: list[T]
    restored: bool = False
    """The cluster's store was restored to an older state, so the data of other watches may be wrong, too."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An object was added or modified."""

    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """An object is gone, or no longer matches the watch. A finished pod arrives in its last state before that."""

    object: T


@dataclass(frozen=True, slots=True)
class Progress:
    """Nothing changed, but the watch is alive (a bookmark)."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The watch broke or fell silent. Known data may be stale until the next event. It says why."""

    cause: str
    denied: bool = False
    """The kind is not installed, or may not be read: waiting for its objects is useless."""
    absent: bool = False
    """The kind is not installed, in none of its API versions."""


WatchEvent = Listed[T] | Changed[T] | Deleted[T] | Progress | Lost
"""The events of a watch. Each object is the value that the follower's `keep` returned."""


class KubeError(Exception):
    """Any refusal of the cluster, or a missing answer."""


class NotFoundError(KubeError):
    """The object does not exist, or has another uid (404, or 409 on the uid precondition)."""


class ConflictError(KubeError):
    """The object is not in the state that the write assumed: the pod is bound, or a resourceVersion is stale (409)."""


class ForbiddenError(KubeError):
    """The service account may not do this, or admission denied it (401, 403)."""


class RejectedError(KubeError):
    """The API server finds the write invalid (400, 422). A repetition has the same result."""


class UnavailableError(KubeError):
    """The write was certainly not done and may be repeated (429, 503 before execution, no connection, a webhook)."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotSentError(UnavailableError):
    """Leeboard itself held the write back: too much time had passed since its decision."""


class WebhookFailedError(UnavailableError):
    """An admission webhook failed before anything was written. Every attempt ends like this while the webhook fails."""


class BudgetError(KubeError):
    """A PodDisruptionBudget forbids the eviction now. The eviction was certainly not done."""


class OutcomeUnknownError(KubeError):
    """The write may have been done or not (time-out, connection lost, 500). Read the object before any other action."""


class RestoredError(KubeError):
    """The cluster's store was restored from a backup. All cached data must be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """A pod in a write. The uid is a precondition, so a new pod of the same name is never changed."""

    namespace: str
    name: str
    uid: PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The leadership Lease."""

    holder: str
    """Empty when the holder has released it."""
    duration_s: float
    """For how long after a renewal no other holder takes it."""
    renewed: str
    """It changes with each renewal. It is the holder's time, so other processes can only compare it for equality."""


class Depth(Enum):
    """How much of each object is requested."""

    METADATA = "metadata"
    """Only `metadata`, whatever the kind (PartialObjectMetadata)."""
    WHOLE = "whole"


class Objects(Protocol):
    """Access to kinds that are unknown at build time. A kind is named by its path, as in `Resource`.

    Every call except `follow` raises only `KubeError`.
    """

    async def path_of(self, api_version: str, kind: str) -> str | None:
        """Return the API path of a kind, such as `apis/batch/v1/jobs`; None when it is not served."""
        ...

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind as `Cluster.watch` does. `Lost.denied` says that this is useless for now."""
        ...

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        """Read an object now, from the store; None when no object has this name."""
        ...

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        """List all objects of a kind as they are in the store now. `keep` shrinks each object and must not raise."""
        ...

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        """Create an object; raise `ConflictError` when an object of this name exists."""
        ...

    async def amend_object(self, path: str, namespace: str, name: str, change: RawObject) -> None:
        """Merge a change into an object (JSON merge patch). `metadata.uid` in the change is a precondition."""
        ...

    async def remove_object(self, path: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete this object. A new object of the same name is not deleted."""
        ...


class Cluster(Objects, Protocol):
    """What `control` needs from a cluster. Every call except `watch` and `follow` raises only `KubeError`."""

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind without end: `Listed` first and after every gap, then changes. Every error is survived.

        `keep` is called with each object as it arrives, and only its result is stored: 50,000 raw pods would take 950
        MB. `keep` must not raise; it reports unreadable data in its result.
        """
        ...

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        """List what `watch` shows of a kind, from the store, or only one name. `keep` must not raise."""
        ...

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind the pod and set its annotations in one atomic write. The uid must match."""
        ...

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        """Read the pod now, from the store. None when it is gone or a new pod has its name."""
        ...

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """List the succeeded pods, which `watch` does not show. `keep` shrinks each pod and must not raise."""
        ...

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Read a Lease now, from the store; None when it does not exist."""
        ...

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Set or clear `status.nominatedNodeName`. This also wakes a pod that kube-scheduler has parked."""
        ...

    async def release(self, pod: PodRef) -> None:
        """Remove Leeboard's scheduling gate and keep all others. Without the gate, nothing is written."""
        ...

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        """Set the condition `PodScheduled` as kube-scheduler does after a refusal. It replaces the last report."""
        ...

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Set the condition `DisruptionTarget`, so that owners do not count the pod's end as a failure."""
        ...

    async def evict(self, pod: PodRef) -> None:
        """Evict the pod with its own grace period; raise `BudgetError` when a PodDisruptionBudget forbids it."""
        ...

    async def tight_budgets(self) -> frozenset[str]:
        """Return the namespaces with a PodDisruptionBudget that allows no disruption now. It may not cover all pods."""
        ...

    async def may_evict(self, pod: PodRef) -> bool:
        """Return whether every PodDisruptionBudget allows the eviction now. The check evicts no pod."""
        ...

    async def delete_pod(self, pod: PodRef) -> None:
        """Delete the pod with its own grace period, whatever a PodDisruptionBudget says. The uid must match."""
        ...

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        """Create a pod; raise `ConflictError` when a pod of this name exists."""
        ...

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods of a namespace, including finished ones. `keep` shrinks each pod and must not raise."""
        ...

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        """Read the pod of this name now, from the store, finished or not; None when it does not exist."""
        ...

    async def remove_pod(self, pod: PodRef) -> None:
        """Delete the pod at once, without a grace period. The uid must match."""
        ...

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Merge annotations into those of the pod. The uid must match."""
        ...

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Merge `status` into the status of a Queue or PodGroup."""
        ...

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Write one event about an object (`kind`, `apiVersion`, `namespace`, `name`, `uid`)."""
        ...
