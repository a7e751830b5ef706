"""Whether a waiting group could start now: a slow and careful search that only says yes when it is certain."""

from collections.abc import Mapping, Sequence

from app.model.seam import RawObject, Resource
from app.simulation.manifests import GROUP_ANNOTATION
from app.simulation.stock import requests
from tests.faults.api import ApiServer
from tests.faults.truth import Group, Truth, is_ready, leaves, queue_of, shares


def servable(
    api: ApiServer, truth: Truth, group: Group, pods: Sequence[RawObject], waiting: Mapping[Group, Sequence[RawObject]]
) -> bool:
    """Return whether the least of a group that must start together fits into free room and within its queue's shares.

    A group has a claim if it waits alone, or if it has waited the longest and stays within its queue's quota: others
    may be owed what is free, or it is kept for a group that has waited for long.
    """
    bound = sum(bool(pod["spec"].get("nodeName")) and not leaves(pod) for pod in truth.members(group))
    least = max(1, truth.min_member(group) - bound)
    if (
        least > len(pods)
        or any(shares(pod) for pod in pods)
        or _has_topology(api, group)
        or _lacks_podgroup(api, pods[0])
    ):
        return False
    some = list(pods[:least])
    if truth.over(some[0], None, sum(truth.gpu_milli(pod) for pod in some[1:])):
        return False
    if len(waiting) > 1 and not (_within_quota(truth, some) and group == oldest(waiting)):
        return False
    return _fits(api, truth, some)


def oldest(waiting: Mapping[Group, Sequence[RawObject]]) -> Group:
    """Return the group whose first pod was created first."""
    return min(waiting, key=lambda group: min(pod["metadata"]["creationTimestamp"] for pod in waiting[group]))


def _lacks_podgroup(api: ApiServer, pod: RawObject) -> bool:
    """Whether the pod names a PodGroup that its user has deleted."""
    name = pod["metadata"].get("annotations", {}).get(GROUP_ANNOTATION)
    return name is not None and api.one(Resource.POD_GROUPS, name, pod["metadata"]["namespace"]) is None


def _has_topology(api: ApiServer, group: Group) -> bool:
    found = api.one(Resource.POD_GROUPS, group[1], group[0])
    return found is not None and "topologyConstraint" in found["spec"]


def _within_quota(truth: Truth, pods: Sequence[RawObject]) -> bool:
    queues, usage = truth.queues(), truth.usage()
    cost = sum(truth.gpu_milli(pod) for pod in pods)
    line = truth.line(queue_of(pods[0]))
    return all(usage.get(name, 0) + cost <= 1000 * int(queues[name]["resources"]["gpu"]["quota"]) for name in line)


def _fits(api: ApiServer, truth: Truth, pods: Sequence[RawObject]) -> bool:
    used, closed = truth.used(), truth.unread_nodes()
    for pod in pods:
        nodes = (
            node
            for node in api.objects(Resource.NODES)
            if is_ready(node) and not _is_odd(api, node) and node["metadata"]["name"] not in closed
        )
        place = next((node for node in nodes if truth.room(pod, node, used)), None)
        if place is None:
            return False
        used[place["metadata"]["name"]].update(requests(pod))
    return True


def _is_odd(api: ApiServer, node: RawObject) -> bool:
    """Whether a GPU of the node may not be used, whatever its kubelet says."""
    report = api.one(Resource.GPU_NODES, node["metadata"]["name"])
    return report is not None and any(device["health"] != "Healthy" for device in report["status"]["devices"])
