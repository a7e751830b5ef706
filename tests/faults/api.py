"""The API server of the world: the simulated cluster with budgets, a lease, and one hook for every write."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.model.seam import BudgetError, Lease, NotFoundError, PodRef, RawObject, Resource
from app.simulation.cluster import DISRUPTION_TARGET, Ref, SimulatedCluster

JOB_LABEL = "simulation.leeboard.dev/job"


@dataclass(slots=True)
class LeaseRecord:
    """The lease of kube-scheduler in the store."""

    holder: str = ""
    host: str = ""
    renewals: int = 0
    held_since: float = 0.0


class ApiServer(SimulatedCluster):
    """Knows the budgets of jobs, by the job's label: how many of its pods must stay."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        super().__init__(now=now)
        self.lease = LeaseRecord()
        self.budgets: dict[str, int] = {}

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        del namespace, name
        lease = self.lease
        return Lease(holder=lease.holder, duration_s=15.0, renewed=str(lease.renewals))

    async def evict(self, pod: PodRef) -> None:
        current = self._get(ref_of(pod))
        if self._is_guarded(current):
            raise BudgetError("Cannot evict pod as it would violate the pod's disruption budget.")
        if current["spec"].get("nodeName"):
            told = {
                "type": DISRUPTION_TARGET,
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "evicted",
            }
            self._set_condition(pod, told)
        await super().evict(pod)

    async def tight_budgets(self) -> frozenset[str]:
        pods = self.objects(Resource.PODS)
        return frozenset(pod["metadata"]["namespace"] for pod in pods if self._is_guarded(pod))

    async def may_evict(self, pod: PodRef) -> bool:
        return not self._is_guarded(self._get(ref_of(pod)))

    def _is_guarded(self, pod: RawObject) -> bool:
        job = pod["metadata"].get("labels", {}).get(JOB_LABEL)
        if job not in self.budgets:
            return False
        pods = [one for one in self.objects(Resource.PODS) if one["metadata"].get("labels", {}).get(JOB_LABEL) == job]
        return sum(map(is_well, pods)) <= self.budgets[job]

    def pod(self, namespace: str, name: str, uid: str = "") -> RawObject | None:
        """Return a pod as it is stored."""
        try:
            return self._get(Ref(resource=Resource.PODS, namespace=namespace, name=name, uid=uid))
        except NotFoundError:
            return None

    def one(self, resource: Resource, name: str, namespace: str = "") -> RawObject | None:
        """Return an object as it is stored."""
        try:
            return self._get(Ref(resource=resource, name=name, namespace=namespace))
        except NotFoundError:
            return None

    def alter(self, resource: Resource, name: str, change: dict[str, Any], namespace: str = "") -> None:
        """Change an object if it exists."""
        if self.one(resource, name, namespace) is not None:
            self.patch(Ref(resource=resource, name=name, namespace=namespace), change)


def is_well(pod: RawObject) -> bool:
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def ref_of(pod: PodRef) -> Ref:
    return Ref(resource=Resource.PODS, namespace=pod.namespace, name=pod.name, uid=pod.uid)


def pod_ref(pod: RawObject) -> PodRef:
    metadata = pod["metadata"]
    return PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
