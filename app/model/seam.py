"""The words that pass between `control` and a cluster, be it a real API server (`kube`) or a simulated one.

Objects come as the raw JSON they were sent as; only `cluster.decode` knows the names of their fields.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from app.model.names import NodeName, PodUid

T = TypeVar("T")

RawObject = dict[str, Any]
"""A Kubernetes object as its JSON was decoded."""


class Resource(Enum):
    """The kinds we watch, by their path in the API; `{namespace}` only matters when one object is written."""

    NODES = "api/v1/nodes"
    PODS = "api/v1/pods"
    PRIORITY_CLASSES = "apis/scheduling.k8s.io/v1/priorityclasses"
    QUEUES = "apis/scheduling.run.ai/v2/queues"
    POD_GROUPS = "apis/scheduling.run.ai/v2alpha2/podgroups"
    TOPOLOGIES = "apis/kai.scheduler/v1alpha1/topologies"
    GPU_NODES = "apis/leeboard.dev/v1alpha1/gpunodes"

    def __repr__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """All objects there are; whatever was known before and is not among them is gone."""

    objects: list[T]
    restored: bool = False
    """The cluster's store has gone back in time, so what other watches have shown may not be true any more."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """An object was added or modified."""

    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """An object is gone, or no longer matches what is watched: a pod that has finished, as it was just before."""

    object: T


@dataclass(frozen=True, slots=True)
class Progress:
    """Nothing changed, but the watch is alive (a bookmark)."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The watch broke or fell silent; what is known may be stale until the next event. Says why."""

    cause: str
    denied: bool = False
    """The kind is not installed, or we may not read it: whoever waits for its objects waits in vain."""


WatchEvent = Listed[T] | Changed[T] | Deleted[T] | Progress | Lost
"""What a watch shows, with each object as what its follower keeps of it."""


class KubeError(Exception):
    """Anything the cluster refused or did not answer."""


class NotFoundError(KubeError):
    """The object does not exist, or one of that name has another uid (404, or 409 on the uid precondition)."""


class ConflictError(KubeError):
    """The object is not in the state the write assumed: a pod already bound, a stale resourceVersion (409)."""


class ForbiddenError(KubeError):
    """Our service account may not do this, or admission denied it (401, 403)."""


class RejectedError(KubeError):
    """The API server finds the write invalid (400, 422); trying again changes nothing."""


class UnavailableError(KubeError):
    """The write was surely not done, but may be tried again (429, 503 before execution, no connection, a webhook)."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WebhookFailedError(UnavailableError):
    """An admission webhook failed before anything was written; as long as it fails, each try ends like this."""


class BudgetError(KubeError):
    """A PodDisruptionBudget forbids the eviction now; it was surely not done."""


class OutcomeUnknownError(KubeError):
    """The write may or may not have been done (time-out, connection lost, 500): look before doing anything else."""


class RestoredError(KubeError):
    """The cluster's store was restored from a backup: all that is remembered has to be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """A pod as writes name it; the uid is a precondition, so a recreated namesake is never written to."""

    namespace: str
    name: str
    uid: PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who leads."""

    holder: str
    """Empty when it has been given back."""
    duration_s: float
    """For so long after a renewal nobody else takes it."""
    renewed: str
    """Another with each renewal. It is the time by the holder's clock, so its value says nothing to others."""


class Depth(Enum):
    """How much of each object is asked for."""

    METADATA = "metadata"
    """`metadata` alone, whatever the kind (PartialObjectMetadata)."""
    WHOLE = "whole"


class Objects(Protocol):
    """What is asked of kinds that nobody knew when this was written; a kind goes by its path, as in `Resource`.

    Every call but `follow` raises `KubeError` and nothing else.
    """

    async def path_of(self, api_version: str, kind: str) -> str | None:
        """Return where objects of a kind are served, such as `apis/batch/v1/jobs`; None when they are not."""
        ...

    def follow(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind as `Cluster.watch` does; `Lost.denied` tells when that is in vain for now."""
        ...

    async def read_object(self, path: str, namespace: str, name: str, *, depth: Depth) -> RawObject | None:
        """Read an object now, from the store; None when there is none of this name."""
        ...

    async def list_objects(self, path: str, keep: Callable[[RawObject], T], *, depth: Depth) -> list[T]:
        """List all objects of a kind as they are in the store now; `keep` shrinks each and must not raise."""
        ...

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        """Create an object; raises `ConflictError` when there is one of its name."""
        ...

    async def amend_object(self, path: str, namespace: str, name: str, change: RawObject) -> None:
        """Merge a change into an object (JSON merge patch); `metadata.uid` in it is a precondition."""
        ...

    async def remove_object(self, path: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete just this object, not a later one of its name."""
        ...


class Cluster(Objects, Protocol):
    """What `control` asks of a cluster. Every call but `watch` and `follow` raises `KubeError` and nothing else."""

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind for ever: `Listed` first and after every gap, then changes; survives every error.

        `keep` is called with each object as it arrives and only what it returns is held: 50,000 raw pods would be
        950 MB. It must not raise; what it cannot read it says in what it returns.
        """
        ...

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        """List what `watch` shows of a kind, as it is in the store now, or of one name alone; `keep` must not raise."""
        ...

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind the pod and set its annotations in one atomic write; needs the uid to match."""
        ...

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        """Read the pod now, from the store; None when it is gone or another of that name has come."""
        ...

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods that have succeeded, which `watch` does not show; `keep` shrinks each and must not raise."""
        ...

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Read a Lease now, from the store; None when it does not exist."""
        ...

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Set or clear `status.nominatedNodeName`, which also wakes a pod that kube-scheduler has parked."""
        ...

    async def release(self, pod: PodRef) -> None:
        """Take our scheduling gate off the pod and leave those of others; nothing is written where it is off."""
        ...

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        """Set the condition `PodScheduled` as kube-scheduler does after a refusal, in place of what it said last."""
        ...

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Set the condition `DisruptionTarget`, so that owners do not count the pod's end as its own failure."""
        ...

    async def evict(self, pod: PodRef) -> None:
        """Ask for the pod to leave after its own grace period; raises `BudgetError` when a budget forbids it."""
        ...

    async def tight_budgets(self) -> frozenset[str]:
        """Return the namespaces in which some PodDisruptionBudget lets nobody leave now; it may not cover all pods."""
        ...

    async def may_evict(self, pod: PodRef) -> bool:
        """Whether every budget lets the pod leave now; nobody is evicted by the question."""
        ...

    async def delete_pod(self, pod: PodRef) -> None:
        """Have the pod leave after its own grace period, whatever a budget says; needs the uid to match."""
        ...

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        """Create a pod; raises `ConflictError` when there is one of its name."""
        ...

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods of a namespace, finished ones too; `keep` shrinks each and must not raise."""
        ...

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        """Read the pod of this name now, from the store, finished or not; None when there is none."""
        ...

    async def remove_pod(self, pod: PodRef) -> None:
        """Have the pod leave at once, without a grace period; needs the uid to match."""
        ...

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Merge annotations into those of the pod; needs the uid to match."""
        ...

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Merge `status` into the status of a Queue or PodGroup."""
        ...

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Write one event about an object (`kind`, `apiVersion`, `namespace`, `name`, `uid`)."""
        ...
