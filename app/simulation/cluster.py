"""A cluster in memory behind the interface of `model.seam`. It refuses what an API server refuses.

The actors (kubelet, kube-scheduler, users) change its objects.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from app.model.marks import GATE
from app.model.names import NodeName
from app.model.seam import (
    ConflictError,
    Depth,
    Lease,
    NotFoundError,
    PodRef,
    RawObject,
    Resource,
    WatchEvent,
)
from app.simulation.objects import Ref, SimulatedObjects

__all__ = ["DISRUPTION_TARGET", "FINISHED", "RecordedEvent", "Ref", "SimulatedCluster"]

T = TypeVar("T")

EVENTS_KEPT = 1000
FINISHED = ("Succeeded", "Failed")
DEFAULT_GRACE_S = 30
DISRUPTION_TARGET = "DisruptionTarget"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An event as it was written."""

    regarding: RawObject
    warning: bool
    reason: str
    note: str


class SimulatedCluster(SimulatedObjects):
    """Implements `model.seam.Cluster`. Methods that are no coroutines, except `watch` and `follow`, are for actors."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        super().__init__(_is_watched, now=now)
        self.events: deque[RecordedEvent] = deque(maxlen=EVENTS_KEPT)

    # The interface for `control`.

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncIterator[WatchEvent[T]]:
        """Follow a kind without end. Finished pods are not included."""
        return self._at(resource).watch(keep)

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        """Return what `watch` shows of a kind, or only the objects of one name."""
        shown = (item for item in self.objects(resource) if _is_watched(resource, item))
        named = (item for item in shown if name in {"", item["metadata"]["name"]})
        wanted = [item for item in named if namespace in {"", item["metadata"].get("namespace")}]
        return [keep(item if depth is Depth.WHOLE else {"metadata": item["metadata"]}) for item in wanted]

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind like the API server: it does not check that the node exists, and it clears the nomination."""
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
        """Read the pod, finished or not. None when it is gone or a new pod has its name."""
        try:
            return self._get(_ref(pod))
        except NotFoundError:
            return None

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """Return the succeeded pods that still exist."""
        return [keep(pod) for pod in self.objects(Resource.PODS) if pod["status"].get("phase") == "Succeeded"]

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Return None: the simulated kube-scheduler is the only one, and holds no lease."""
        del namespace, name
        return None

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Set or clear the nominated node. A bound pod cannot have one."""
        current = self._get(_ref(pod))
        if node is not None and current["spec"].get("nodeName"):
            raise ConflictError(f"pod {pod.name}: nominatedNodeName may not be set once nodeName is")
        self._write(Resource.PODS, current, {"status": {"nominatedNodeName": node}})

    async def release(self, pod: PodRef) -> None:
        """Remove Leeboard's scheduling gate and keep all others. Without the gate, nothing is written."""
        current = self._get(_ref(pod))
        gates = current["spec"].get("schedulingGates", ())
        left = [gate for gate in gates if gate["name"] != GATE]
        self._write(Resource.PODS, current, {"spec": {"schedulingGates": left or None}})

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        """Set the condition `PodScheduled` and keep all others."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._set_condition(pod, condition)

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Set the condition `DisruptionTarget` and keep all others."""
        self._set_condition(pod, {"type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message})

    def _set_condition(self, pod: PodRef, condition: Mapping[str, str]) -> None:
        current = self._get(_ref(pod))
        others = [one for one in current["status"].get("conditions", ()) if one["type"] != condition["type"]]
        self._write(Resource.PODS, current, {"status": {"conditions": [*others, condition]}})

    async def evict(self, pod: PodRef) -> None:
        """Delete the pod. There are no PodDisruptionBudgets here."""
        self._have_it_leave(_ref(pod))

    async def tight_budgets(self) -> frozenset[str]:
        """Return no namespace: there are no PodDisruptionBudgets here."""
        return frozenset()

    async def may_evict(self, pod: PodRef) -> bool:
        """Return True for every pod that exists."""
        self._get(_ref(pod))
        return True

    async def delete_pod(self, pod: PodRef) -> None:
        """Delete the pod."""
        self._have_it_leave(_ref(pod))

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        """Create a pod, with its priority resolved as admission does it."""
        metadata = {**pod["metadata"], "namespace": namespace}
        spec = self._priority(pod["spec"].get("priorityClassName", "")) | pod["spec"]
        self.create(Resource.PODS, {"status": {"phase": "Pending"}, **pod, "metadata": metadata, "spec": spec})

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        """Return the pods of a namespace, including finished ones."""
        return [keep(pod) for pod in self.objects(Resource.PODS) if pod["metadata"].get("namespace") == namespace]

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        """Read the pod of this name; None when it does not exist."""
        try:
            return self._get(Ref(resource=Resource.PODS, namespace=namespace, name=name))
        except NotFoundError:
            return None

    async def remove_pod(self, pod: PodRef) -> None:
        """Remove the pod at once."""
        self.delete(_ref(pod))

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Merge annotations into those of the pod."""
        self._write(Resource.PODS, self._get(_ref(pod)), {"metadata": {"annotations": dict(annotations)}})

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Merge `status` into the object's status; of a native PodGroup, Leeboard writes all conditions here."""
        self.patch(Ref(resource=resource, namespace=namespace, name=name), {"status": status})

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Store the event. The oldest events are dropped."""
        self.events.append(RecordedEvent(regarding=regarding, warning=warning, reason=reason, note=note))

    # The methods for the actors.

    def watch_whole(self, resource: Resource) -> AsyncIterator[WatchEvent[RawObject]]:
        """Watch a kind with complete objects, which are in memory anyway."""
        return self.watch(resource, lambda item: item)

    def _priority(self, name: str) -> RawObject:
        classes = self.objects(Resource.PRIORITY_CLASSES)
        return next(({"priority": one["value"]} for one in classes if one["metadata"]["name"] == name), {})

    def _have_it_leave(self, ref: Ref) -> None:
        """Delete like the API server: a bound pod stays for its grace period, and the kubelet removes it."""
        current = self._get(ref)
        if not current["spec"].get("nodeName"):
            self.delete(ref)
        elif not current["metadata"].get("deletionTimestamp"):
            grace_s = current["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
            leaving = {"deletionTimestamp": self._timestamp(), "deletionGracePeriodSeconds": grace_s}
            self._write(Resource.PODS, current, {"metadata": leaving})


def _is_watched(resource: Resource, item: RawObject) -> bool:
    return resource is not Resource.PODS or item.get("status", {}).get("phase") not in FINISHED


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
