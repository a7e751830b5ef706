"""What the store of the API server says is used of nodes, GPUs and queues: slow and obvious sums."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from app.model.marks import DEVICES_ANNOTATION, MEMORY_ANNOTATION, RESERVATION_APP
from app.model.seam import RawObject, Resource
from app.simulation.admission import FRACTION, MEMORY
from app.simulation.cluster import FINISHED
from app.simulation.manifests import GROUP_ANNOTATION, MEMORY_LABEL, PRIORITIES, QUEUE_LABEL
from app.simulation.stock import GPU, Amounts, barred, lacking, milli, requests
from tests.faults.api import JOB_LABEL, ApiServer

Group = tuple[str, str]
NON_PREEMPTIBLE_FROM = 100
"""The priority from which a pod is not preemptible (KAI)."""


class Truth:
    """Reads the store at every call: nothing here can be out of date."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def pods(self) -> list[RawObject]:
        return [pod for pod in self._api.objects(Resource.PODS) if pod["status"].get("phase") not in FINISHED]

    def bound(self) -> Iterator[RawObject]:
        return (pod for pod in self.pods() if pod["spec"].get("nodeName"))

    def pending(self) -> list[RawObject]:
        """Return the pods of jobs that wait."""
        return [pod for pod in self.pods() if is_of_job(pod) and not pod["spec"].get("nodeName") and not leaves(pod)]

    def used(self) -> Mapping[str, Amounts]:
        """Return what is used of each node, in thousandths."""
        found: dict[str, Amounts] = defaultdict(Counter)
        for pod in self.bound():
            found[pod["spec"]["nodeName"]].update(requests(pod))
        return found

    def unread_nodes(self) -> set[str]:
        """Return the nodes with a pod that holds amounts that nobody can read: how much room they have is unknown."""
        return {pod["spec"]["nodeName"] for pod in self.bound() if is_unreadable(pod)}

    def parts(self) -> Mapping[str, int]:
        """Return the memory that is given away of each shared GPU, in MiB."""
        found: Counter[str] = Counter()
        for pod in self.bound():
            annotations = pod["metadata"].get("annotations", {})
            for uuid in filter(None, annotations.get(DEVICES_ANNOTATION, "").split(",")):
                found[uuid] += int(annotations.get(MEMORY_ANNOTATION, "0"))
        return found

    def gpu_milli(self, pod: RawObject, node: str | None = None) -> int:
        """Return what a pod costs its queue on a node."""
        annotations = pod["metadata"].get("annotations", {})
        devices = int(annotations.get("gpu-fraction-num-devices", "1"))
        if FRACTION in annotations:
            return round(float(annotations[FRACTION]) * 1000) * devices
        if MEMORY in annotations:
            found = self._api.one(Resource.NODES, node or pod["spec"].get("nodeName", ""))
            whole = int(found["metadata"]["labels"].get(MEMORY_LABEL, "0")) if found else 0
            return int(annotations[MEMORY]) * 1000 * devices // whole if whole else 0
        return int(requests(pod)[GPU])

    def queues(self) -> Mapping[str, RawObject]:
        return {one["metadata"]["name"]: one["spec"] for one in self._api.objects(Resource.QUEUES)}

    def line(self, queue: str) -> list[str]:
        """Return a queue and its ancestors."""
        queues, found = self.queues(), list[str]()
        while queue in queues and queue not in found:
            found.append(queue)
            queue = queues[queue].get("parentQueue", "")
        return found

    def usage(self, *, firm: bool = False) -> Mapping[str, int]:
        """Return the GPUs that each queue holds with its descendants, in thousandths; only non-preemptible ones."""
        found: Counter[str] = Counter()
        ready = {node["metadata"]["name"] for node in self._api.objects(Resource.NODES) if is_ready(node)}
        for pod in self.bound():
            on_dead_node = leaves(pod) and pod["spec"]["nodeName"] not in ready
            if is_of_job(pod) and not on_dead_node and (is_firm(pod) or not firm):
                for name in self.line(queue_of(pod)):
                    found[name] += self.gpu_milli(pod)
        return found

    def over(self, pod: RawObject, node: str | None, more_milli: int = 0) -> str:
        """Return the queue rule that is broken when this pod, and more of its kind, is added; empty for none."""
        queues, cost = self.queues(), more_milli + self.gpu_milli(pod, node)
        usage, firm = self.usage(), self.usage(firm=True)
        for name in self.line(queue_of(pod)):
            gpu = queues[name]["resources"]["gpu"]
            limit, quota = int(gpu["limit"]), int(gpu["quota"])
            if cost and limit >= 0 and usage[name] + cost > 1000 * limit:
                return f"queue {name} holds {usage[name]} m of its limit of {limit} GPUs, and {cost} m more"
            if cost and is_firm(pod) and quota >= 0 and firm[name] + cost > 1000 * quota:
                return f"queue {name} holds {firm[name]} m non-preemptible of its {quota} GPUs, and {cost} m more"
        return ""

    def members(self, group: Group) -> list[RawObject]:
        return [pod for pod in self.pods() if group_of(pod) == group]

    def min_member(self, group: Group) -> int:
        found = self._api.one(Resource.POD_GROUPS, group[1], group[0])
        return found["spec"]["minMember"] if found else 1

    def room(self, pod: RawObject, node: RawObject, used: Mapping[str, Amounts]) -> bool:
        """Return whether kube-scheduler's own filters accept a node."""
        return not barred(pod, node) and not lacking(requests(pod), node, used[node["metadata"]["name"]])

    def overcommitted(self, node: RawObject, used: Amounts) -> list[str]:
        allocatable = node["status"]["allocatable"]
        return [name for name, amount in used.items() if amount > milli(allocatable.get(name, "0"))]


def is_of_job(pod: RawObject) -> bool:
    return JOB_LABEL in pod["metadata"].get("labels", {})


def is_unreadable(pod: RawObject) -> bool:
    """Whether the overhead of a pod is no amount, as that of some hostile pods; this kube-scheduler ignores it."""
    try:
        return any(milli(str(amount)) < 0 for amount in pod["spec"].get("overhead", {}).values())
    except (KeyError, ValueError):
        return True


def is_reservation(pod: RawObject) -> bool:
    return bool(pod["metadata"].get("labels", {}).get("app") == RESERVATION_APP)


def shares(pod: RawObject) -> bool:
    return bool(pod["metadata"].get("annotations", {}).keys() & {FRACTION, MEMORY})


def leaves(pod: RawObject) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def queue_of(pod: RawObject) -> str:
    return str(pod["metadata"]["labels"].get(QUEUE_LABEL, ""))


def is_firm(pod: RawObject) -> bool:
    return PRIORITIES.get(pod["spec"].get("priorityClassName", ""), 0) >= NON_PREEMPTIBLE_FROM


def is_ready(node: RawObject) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ()))


def group_of(pod: RawObject) -> Group:
    metadata = pod["metadata"]
    return metadata["namespace"], metadata.get("annotations", {}).get(GROUP_ANNOTATION, metadata["uid"])
