"""A cluster in memory behind the seam: it refuses what an API server refuses, and leaves living to the actors."""

import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from app.model.marks import GATE
from app.model.names import NodeName
from app.model.seam import (
    ConflictError,
    Lease,
    NotFoundError,
    PodRef,
    RawObject,
    Resource,
    WatchEvent,
)
from app.simulation.store import Store, key_of, merged

T = TypeVar("T")

EVENTS_KEPT = 1000
FINISHED = ("Succeeded", "Failed")
DEFAULT_GRACE_S = 30
DISRUPTION_TARGET = "DisruptionTarget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """Names an object for a write; a `uid` that is not empty is a precondition."""

    resource: Resource
    name: str
    namespace: str = ""
    uid: str = ""

    @staticmethod
    def of(resource: Resource, item: RawObject) -> "Ref":
        """Name exactly this object, not a later one of the same name."""
        namespace, name = key_of(item)
        return Ref(resource=resource, name=name, namespace=namespace, uid=item["metadata"]["uid"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An event as it was written."""

    regarding: RawObject
    warning: bool
    reason: str
    note: str


class SimulatedCluster:
    """Implements `model.seam.Cluster`; `follow`, `objects`, `create`, `patch` and `delete` are for the actors in it."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        # Changed by the write methods only, on the event loop, never across an await.
        self._stores = {resource: Store(_is_watched) for resource in Resource}
        self._versions = itertools.count(1)
        self._now = now
        self.events: deque[RecordedEvent] = deque(maxlen=EVENTS_KEPT)

    # What `control` asks of a cluster (the seam).

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind for ever; pods that have finished are not among those watched."""
        return self._stores[resource].watch(keep)

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind as the API server does: it does not ask whether the node exists, and ends a nomination."""
        current = self._get(_ref(pod))
        if (obstacle := _obstacle_to_binding(current)) is not None:
            raise ConflictError(f"pod {pod.name} {obstacle}")
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._timestamp()}
        change: RawObject = {
            "metadata": {"annotations": dict(annotations)},
            "spec": {"nodeName": node},
            "status": {"conditions": [condition], "nominatedNodeName": None},
        }
        self._write(Resource.PODS, current, change)

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        """Read the pod, finished or not; None when it is gone or another of that name has come."""
        try:
            return self._get(_ref(pod))
        except NotFoundError:
            return None

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """Return the pods that have succeeded and are still there."""
        return [keep(pod) for pod in self.objects(Resource.PODS) if pod["status"].get("phase") == "Succeeded"]

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Return none: the simulated kube-scheduler is the only one, and holds no lease."""
        del namespace, name
        return None

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Set or clear the nominated node; a bound pod can have none."""
        current = self._get(_ref(pod))
        if node is not None and current["spec"].get("nodeName"):
            raise ConflictError(f"pod {pod.name}: nominatedNodeName may not be set once nodeName is")
        self._write(Resource.PODS, current, {"status": {"nominatedNodeName": node}})

    async def release(self, pod: PodRef) -> None:
        """Take our scheduling gate off and leave those of others; that wakes nobody where it is off already."""
        current = self._get(_ref(pod))
        gates = current["spec"].get("schedulingGates", ())
        left = [gate for gate in gates if gate["name"] != GATE]
        self._write(Resource.PODS, current, {"spec": {"schedulingGates": left or None}})

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Set the condition `DisruptionTarget` beside the others."""
        current = self._get(_ref(pod))
        condition = {"type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message}
        others = [one for one in current["status"].get("conditions", ()) if one["type"] != DISRUPTION_TARGET]
        self._write(Resource.PODS, current, {"status": {"conditions": [*others, condition]}})

    async def evict(self, pod: PodRef) -> None:
        """Have the pod leave; nobody has a disruption budget here."""
        self._have_it_leave(_ref(pod))

    async def tight_budgets(self) -> frozenset[str]:
        """Return no namespace: nobody has a disruption budget here."""
        return frozenset()

    async def may_evict(self, pod: PodRef) -> bool:
        """Let every pod leave that is there."""
        self._get(_ref(pod))
        return True

    async def delete_pod(self, pod: PodRef) -> None:
        """Have the pod leave."""
        self._have_it_leave(_ref(pod))

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Merge `status` into the object's status."""
        self.patch(Ref(resource=resource, namespace=namespace, name=name), {"status": status})

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Keep the event; the oldest are forgotten."""
        self.events.append(RecordedEvent(regarding=regarding, warning=warning, reason=reason, note=note))

    # What the actors do.

    def follow(self, resource: Resource) -> AsyncIterator[WatchEvent[RawObject]]:
        """Watch a kind with every object whole: they are in memory anyhow."""
        return self.watch(resource, lambda item: item)

    def objects(self, resource: Resource) -> list[RawObject]:
        """Return everything of a kind, finished pods included."""
        return self._stores[resource].objects()

    def create(self, resource: Resource, item: RawObject) -> RawObject:
        """Add an object and return it as stored; raises `ConflictError` when the name is taken."""
        if key_of(item) in self._stores[resource]:
            raise ConflictError(f"{item['metadata']['name']} already exists")
        uid = f"00000000-0000-4000-8000-{next(self._versions):012x}"
        metadata = {"uid": uid, "creationTimestamp": self._timestamp()} | item["metadata"]
        return self._write(resource, item | {"metadata": metadata}, {})

    def patch(self, ref: Ref, change: RawObject) -> RawObject:
        """Apply a JSON merge patch and return the result; raises `NotFoundError`."""
        return self._write(ref.resource, self._get(ref), change)

    def delete(self, ref: Ref) -> None:
        """Remove an object at once; raises `NotFoundError`."""
        self._stores[ref.resource].remove(key_of(self._get(ref)))

    def _have_it_leave(self, ref: Ref) -> None:
        """Delete as the API server does: a bound pod stays for its grace period, and it is its kubelet that ends it."""
        current = self._get(ref)
        if not current["spec"].get("nodeName"):
            self.delete(ref)
        elif not current["metadata"].get("deletionTimestamp"):
            grace_s = current["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
            leaving = {"deletionTimestamp": self._timestamp(), "deletionGracePeriodSeconds": grace_s}
            self._write(Resource.PODS, current, {"metadata": leaving})

    def _get(self, ref: Ref) -> RawObject:
        item = self._stores[ref.resource].get((ref.namespace, ref.name))
        if ref.uid and item["metadata"]["uid"] != ref.uid:
            raise NotFoundError(f"{ref.name} has uid {item['metadata']['uid']}, not {ref.uid}")
        return item

    def _write(self, resource: Resource, current: RawObject, change: RawObject) -> RawObject:
        result = merged(current, change)
        if result == current and "resourceVersion" in current["metadata"]:
            return current  # An API server writes nothing then, and wakes nobody.
        result["metadata"] = result["metadata"] | {"resourceVersion": str(next(self._versions))}
        self._stores[resource].put(result)
        return result

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_watched(item: RawObject) -> bool:
    return item.get("status", {}).get("phase") not in FINISHED


def _ref(pod: PodRef) -> Ref:
    return Ref(resource=Resource.PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid)


def _obstacle_to_binding(pod: RawObject) -> str | None:
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted, cannot be assigned to a host"
    if node := pod["spec"].get("nodeName"):
        return f'is already assigned to node "{node}"'
    if pod["spec"].get("schedulingGates"):
        return "has non-empty .spec.schedulingGates"
    return None
