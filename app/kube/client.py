"""The real cluster: `app.model.seam.Cluster` over an API server, each write one request; retries are the caller's."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
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
"""More is refused by the API server, which counts bytes."""


class KubeCluster(KubeObjects):
    """An API server; `async with await KubeCluster.connect(kubeconfig) as cluster`."""

    def __init__(
        self, transport: Transport, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, chance: Random
    ) -> None:
        super().__init__(transport, sleep=sleep, chance=chance)
        self._instance = socket.gethostname()[:128]

    @classmethod
    async def connect(
        cls, kubeconfig: str | None = None, context: str | None = None, *, limits: TransportLimits | None = None
    ) -> Self:
        """Read the credentials; None is our pod's service account, or else the user's own kubeconfig.

        Nothing is sent yet. Raises `AccessError`, a `KubeError`.
        """
        credentials = Credentials(kubeconfig=kubeconfig, context=context)
        transport = Transport(credentials, await credentials.read(), limits or TransportLimits())
        return cls(transport, chance=SystemRandom())

    async def __aenter__(self) -> Self:
        """Return the cluster itself."""
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
        """Return what asks for our rights over the same connections, and so learns of every refusal."""
        return KubeReviews(self._transport)

    def installation(self) -> KubeInstallation:
        """Return what keeps our Secret and our webhook configurations, over the same connections."""
        return KubeInstallation(self._transport)

    def watch(self, resource: Resource, keep: Callable[[RawObject], T]) -> AsyncGenerator[WatchEvent[T], None]:
        """Follow a kind for ever: `Listed` first and after every gap, then changes; survives every error."""
        return self._watch(Collection.of(resource), keep)

    async def listed(
        self, resource: Resource, keep: Callable[[RawObject], T], *, depth: Depth, namespace: str = "", name: str = ""
    ) -> list[T]:
        """List what `watch` shows of a kind, page by page, each shrunk at once; or what has one name."""
        collection = Collection.of(resource)
        if name:
            collection = collection.named(namespace, name)
        return await self._list(collection.path, keep, MANY[depth], selector=collection.selector)

    async def bind(self, pod: PodRef, node: NodeName, annotations: Mapping[str, str]) -> None:
        """Bind the pod and set its annotations in one atomic write.

        `ConflictError` also when the pod is gated or being deleted. The node is not checked by the API server.
        """
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": {**annotations}}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._transport.write("POST", f"{_pod_path(pod)}/binding", orjson.dumps(body))

    async def read_pod(self, pod: PodRef) -> RawObject | None:
        """Read the pod from the store, never from a cache; None when it is gone or another of that name has come."""
        try:
            found = orjson.loads(await self._transport.read(_pod_path(pod)))
            return found if found["metadata"]["uid"] == pod.uid else None
        except NotFoundError:
            return None
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise BrokenStreamError("the API server's answer is no pod") from error

    async def finished_pods(self, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods that have succeeded, page by page, each shrunk at once."""
        return await self._list(Resource.PODS.value, keep, selector=FINISHED)

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        """Read a Lease from the store, never from a cache; None when it does not exist."""
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
        """Take our scheduling gate off and leave those of others; nothing is written where it is off already."""
        body = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
        await self._transport.write("PATCH", _pod_path(pod), orjson.dumps(body), STRATEGIC_MERGE_PATCH)

    async def say_unschedulable(self, pod: PodRef, message: str) -> None:
        """Set the condition `PodScheduled` and leave all others alone."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await self._set_condition(pod, condition)

    async def mark_disrupted(self, pod: PodRef, *, reason: str, message: str) -> None:
        """Set the condition `DisruptionTarget` and leave all others alone."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        await self._set_condition(pod, condition)

    async def _set_condition(self, pod: PodRef, condition: Mapping[str, str]) -> None:
        dated = {**condition, "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [dated]}}
        await self._transport.write("PATCH", f"{_pod_path(pod)}/status", orjson.dumps(body), STRATEGIC_MERGE_PATCH)

    async def evict(self, pod: PodRef) -> None:
        """Ask through the Eviction API, which honours PodDisruptionBudgets (`BudgetError`).

        No grace period is named: the pod's own holds. The API server sets `DisruptionTarget` in words of its own.
        """
        await self._transport.write("POST", f"{_pod_path(pod)}/eviction", orjson.dumps(_eviction(pod)))

    async def tight_budgets(self) -> frozenset[str]:
        """Return the namespaces in which some PodDisruptionBudget lets nobody leave now."""
        return frozenset(await self._list(DISRUPTION_BUDGETS, _namespace_if_tight)) - {""}

    async def may_evict(self, pod: PodRef) -> bool:
        """Whether the Eviction API would let the pod leave now: a dry run."""
        # In the body for the eviction itself, in the query for the webhooks that are asked about it.
        path = f"{_pod_path(pod)}/eviction?dryRun=All"
        try:
            await self._transport.write("POST", path, orjson.dumps(_eviction(pod, dryRun=["All"])))
        except BudgetError:
            return False
        return True

    async def delete_pod(self, pod: PodRef) -> None:
        """Delete just this pod, not a later one of its name, with its own grace period."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        await self._transport.write("DELETE", _pod_path(pod), orjson.dumps(body))

    async def create_pod(self, namespace: str, pod: RawObject) -> None:
        """Create a pod; `ConflictError` when there is one of its name."""
        await self._transport.write("POST", namespaced(Resource.PODS.value, namespace), orjson.dumps(pod))

    async def pods_in(self, namespace: str, keep: Callable[[RawObject], T]) -> list[T]:
        """List the pods of a namespace, finished ones too, page by page, each shrunk at once."""
        return await self._list(namespaced(Resource.PODS.value, namespace), keep)

    async def find_pod(self, namespace: str, name: str) -> RawObject | None:
        """Read the pod of this name from the store, finished or not; None when there is none."""
        try:
            path = path_of_object(Resource.PODS.value, namespace, name)
            found: RawObject = orjson.loads(await self._transport.read(path))
        except NotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise BrokenStreamError("the API server's answer is no pod") from error
        return found

    async def remove_pod(self, pod: PodRef) -> None:
        """Delete just this pod, not a later one of its name, without a grace period."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        await self._transport.write("DELETE", _pod_path(pod), orjson.dumps(body))

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> None:
        """Merge annotations into those of just this pod."""
        body = {"metadata": {"uid": pod.uid, "annotations": {**annotations}}}
        await self._transport.write("PATCH", _pod_path(pod), orjson.dumps(body), MERGE_PATCH)

    async def write_status(self, resource: Resource, namespace: str, name: str, status: RawObject) -> None:
        """Merge `status` into the status of a Queue (whose namespace is empty) or PodGroup."""
        path = f"{path_of_object(resource.value, namespace, name)}/status"
        await self._transport.write("PATCH", path, orjson.dumps({"status": status}), MERGE_PATCH)

    async def record_event(self, regarding: RawObject, *, warning: bool, reason: str, note: str) -> None:
        """Write one event; a note is cut to 1,024 bytes, what has no namespace reports in `default`."""
        namespace = regarding.get("namespace") or "default"
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # The API server refuses a generateName that ends in the dot other clients put there.
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
    """Return the namespace of a budget that lets nobody leave now; empty for any other."""
    try:
        metadata, status = budget["metadata"], budget.get("status") or {}
        # Until a budget's change has been counted, the Eviction API lets none of its pods leave.
        uncounted = status.get("observedGeneration", 0) < metadata.get("generation", 0)
        return str(metadata["namespace"]) if uncounted or status.get("disruptionsAllowed", 0) <= 0 else ""
    except (KeyError, TypeError, AttributeError) as error:
        raise BrokenStreamError("the API server's answer holds no disruption budget") from error
