"""The real cluster: `app.model.seam.Cluster` over an API server. Each write is one request; the caller retries."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from random import Random, SystemRandom
from types import TracebackType
from typing import Self, TypeVar

import orjson

from app.kube.access import Credentials
from app.kube.errors import BrokenStreamError
from app.kube.installation import KubeInstallation
from app.kube.objects import KubeObjects
from app.kube.places import MANY, Collection, namespaced, path_of_object
from app.kube.reviews import KubeReviews
from app.kube.transport import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Transport, TransportLimits
from app.model.marks import GATE
from app.model.names import NodeName
from app.model.seam import BudgetError, Depth, Lease, NotFoundError, PodRef, RawObject, Resource, WatchEvent

T = TypeVar("T")

REPORTER = "leeboard"
ACTION = "Scheduling"
FINISHED = "&fieldSelector=status.phase%3DSucceeded"
LEASES = "apis/coordination.k8s.io/v1/leases"
EVENTS = "apis/events.k8s.io/v1/events"
DISRUPTION_BUDGETS = "apis/policy/v1/poddisruptionbudgets"
NOTE_BYTES = 1024
"""The API server refuses a longer note. It counts bytes."""


class KubeCluster(KubeObjects):
    """The client of an API server: `async with await KubeCluster.connect(kubeconfig) as cluster`."""

    def __init__(
        self, transport: Transport, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, chance: Random
    ) -> None:
        super().__init__(transport, sleep=sleep, chance=chance)
        self._instance = socket.gethostname()[:128]

    @classmethod
    async def connect(
        cls, kubeconfig: str | None = None, context: str | None = None, *, limits: TransportLimits | None = None
    ) -> Self:
        """Read the credentials. None is the pod's service account, or else the user's kubeconfig.

        It sends no request. It raises `AccessError`, a `KubeError`.
        """
        credentials = Credentials(kubeconfig=kubeconfig, context=context)
        transport = Transport(credentials, await credentials.read(), limits or TransportLimits())
        return cls(transport, chance=SystemRandom())

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self.close()

    async def close(self) -> None:
        """Close every connection, also those of running watches."""
        await self._transport.close()

    def reviews(self) -> KubeReviews:
        """Return a client of reviews that shares these connections. It is notified of every refusal."""
        return KubeReviews(self._transport)

    def installation(self) -> KubeInstallation:
        """Return a client of Leeboard's Secret and webhook configurations that shares these connections."""
        return KubeInstallation(self._transport)

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncGenerator[WatchEvent[T], None]:
        """Follow a kind without end: `Listed` first and after every gap, then changes. Every error is survived."""
        return self._watch(Collection.of(resource), keep)

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        """List what `watch` shows of a kind, or only the objects of one name.

        The list is read page by page, and `keep` shrinks each object at once.
        """
        collection = Collection.of(resource)
        if name:
            collection = collection.named(namespace, name)
        for _ in collection.older:
            with suppress(NotFoundError):
                return await self._list(collection.path, keep, MANY[depth], selector=collection.selector)
            collection = collection.next_version()
        return await self._list(collection.path, keep, MANY[depth], selector=collection.selector)

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind the pod and set its annotations in one atomic write.

        `ConflictError` also means that the pod is gated or being deleted. The API server does not check the node.
        """
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": {**annotations}}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._transport.write("POST", f"{_pod_path(pod)}/binding", orjson.dumps(body))

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        """Read the pod from the store, not from a cache. None when it is gone or a new pod has its name."""
        try:
            found = orjson.loads(await self._transport.read(_pod_path(pod)))
            return found if found["metadata"]["uid"] == pod.uid else None
        except NotFoundError:
            return None
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise BrokenStreamError("the API server's answer is no pod") from error

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods that have succeeded, page by page. `keep` shrinks each pod at once."""
        return await self._list(Resource.PODS.value, keep, selector=FINISHED)

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Read a Lease from the store, not from a cache; None when it does not exist."""
        try:
            spec = orjson.loads(await self._transport.read(path_of_object(LEASES, namespace, name)))["spec"]
            return Lease(
                holder=str(spec.get("holderIdentity") or ""),
                duration_s=float(spec.get("leaseDurationSeconds") or 0),
                renewed=str(spec.get("renewTime") or ""),
            )
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokenStreamError("the API server's answer is no lease") from error

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Set or clear `status.nominatedNodeName`; `ConflictError` when the pod is already bound."""
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        await self._transport.write("PATCH", f"{_pod_path(pod)}/status", orjson.dumps(body), MERGE_PATCH)

    async def release(self, pod: PodRef) -> None:
        """Remove Leeboard's scheduling gate and keep all others. Without the gate, nothing is written."""
        body = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
        await self._transport.write("PATCH", _pod_path(pod), orjson.dumps(body), STRATEGIC_MERGE_PATCH)

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        """Set the condition `PodScheduled` and keep all others."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await self._set_condition(pod, condition)

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Set the condition `DisruptionTarget` and keep all others."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        await self._set_condition(pod, condition)

    async def _set_condition(self, pod: PodRef, condition: Mapping[str, str]) -> None:
        dated = {**condition, "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [dated]}}
        await self._transport.write("PATCH", f"{_pod_path(pod)}/status", orjson.dumps(body), STRATEGIC_MERGE_PATCH)

    async def evict(self, pod: PodRef) -> None:
        """Evict the pod through the Eviction API, which enforces PodDisruptionBudgets (`BudgetError`).

        The request names no grace period, so the pod's own applies. The API server sets `DisruptionTarget` with its own
        text.
        """
        await self._transport.write("POST", f"{_pod_path(pod)}/eviction", orjson.dumps(_eviction(pod)))

    async def tight_budgets(self) -> frozenset[str]:
        """Return the namespaces with a PodDisruptionBudget that allows no disruption now."""
        return frozenset(await self._list(DISRUPTION_BUDGETS, _namespace_if_tight)) - {""}

    async def may_evict(self, pod: PodRef) -> bool:
        """Return whether the Eviction API would evict the pod now, by a dry run."""
        # `dryRun` in the body is for the eviction; in the query it is for the admission webhooks of the request.
        path = f"{_pod_path(pod)}/eviction?dryRun=All"
        try:
            await self._transport.write("POST", path, orjson.dumps(_eviction(pod, dryRun=["All"])))
        except BudgetError:
            return False
        return True

    async def delete_pod(self, pod: PodRef) -> None:
        """Delete this pod with its own grace period. A new pod of the same name is not deleted."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        await self._transport.write("DELETE", _pod_path(pod), orjson.dumps(body))

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        """Create a pod; `ConflictError` when a pod of this name exists."""
        await self._transport.write("POST", namespaced(Resource.PODS.value, namespace), orjson.dumps(pod))

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods of a namespace, including finished ones, page by page. `keep` shrinks each pod at once."""
        return await self._list(namespaced(Resource.PODS.value, namespace), keep)

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        """Read the pod of this name from the store, finished or not; None when it does not exist."""
        try:
            path = path_of_object(Resource.PODS.value, namespace, name)
            found: RawObject = orjson.loads(await self._transport.read(path))
        except NotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise BrokenStreamError("the API server's answer is no pod") from error
        return found

    async def remove_pod(self, pod: PodRef) -> None:
        """Delete this pod without a grace period. A new pod of the same name is not deleted."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        await self._transport.write("DELETE", _pod_path(pod), orjson.dumps(body))

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Merge annotations into those of this pod. A new pod of the same name is not changed."""
        body = {"metadata": {"uid": pod.uid, "annotations": {**annotations}}}
        await self._transport.write("PATCH", _pod_path(pod), orjson.dumps(body), MERGE_PATCH)

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Merge `status` into the status of a Queue (with an empty namespace) or a PodGroup.

        Of a native PodGroup, other conditions stay. Custom resources know no such patch.
        """
        path = f"{path_of_object(resource.value, namespace, name)}/status"
        patch = STRATEGIC_MERGE_PATCH if resource is Resource.NATIVE_POD_GROUPS else MERGE_PATCH
        await self._transport.write("PATCH", path, orjson.dumps({"status": status}), patch)

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Write one event with a note cut to 1,024 bytes; in `default` when the object has no namespace."""
        namespace = regarding.get("namespace") or "default"
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # The API server refuses a generateName that ends in a dot, as other clients write it.
            "metadata": {"generateName": f"{regarding['name'][:200]}-", "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning" if warning else "Normal",
            "action": ACTION,
            "reason": reason,
            "note": note.encode()[:NOTE_BYTES].decode(errors="ignore"),
            "regarding": regarding,
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
        }
        await self._transport.write("POST", namespaced(EVENTS, namespace), orjson.dumps(event))


def _pod_path(pod: PodRef) -> str:
    return path_of_object(Resource.PODS.value, pod.namespace, pod.name)


def _eviction(pod: PodRef, **options: object) -> RawObject:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}, **options},
    }


def _namespace_if_tight(budget: RawObject) -> str:
    """Return the namespace of a budget that allows no disruption now; empty for any other budget."""
    try:
        metadata, status = budget["metadata"], budget.get("status") or {}
        # The Eviction API allows no disruption until a change of the budget was observed.
        uncounted = status.get("observedGeneration", 0) < metadata.get("generation", 0)
        return str(metadata["namespace"]) if uncounted or status.get("disruptionsAllowed", 0) <= 0 else ""
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenStreamError("the API server's answer holds no disruption budget") from error
