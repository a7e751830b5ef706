"""Limits what pods count for: a pod that requests more GPUs than its node has counts only for those that exist.

A kubelet accepts a pod that requests an extended resource unknown to its node (Kubernetes: "cluster-level resources"),
and runs the pod without it. So an author who sets `spec.nodeName` may request a million GPUs on a node without GPUs. A
pod that was bound with its queue recorded on it has what it requests, whatever its node offers later.
"""

from collections.abc import Collection
from dataclasses import replace

from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod
from app.model.resources import GPU_MILLI, Scalars


class Fitted:
    """Pods with a node, without a record that they were bound with everything they request."""

    def __init__(self) -> None:
        """Start without pods."""
        self._shown: dict[PodUid, Pod] = {}
        self._on: dict[NodeName, dict[PodUid, None]] = {}

    def put(self, pod: Pod, node: Node | None) -> Pod:
        """Store a pod as it is shown; return it as it counts on its node. On an unknown node it counts in full."""
        self.drop(pod.uid)
        # No queue pays for a pod whose author set its node: there may be any number of such pods.
        if pod.node is None or pod.self_placed or pod.bound_queue or not (pod.asks_for_gpus or pod.scalars):
            return pod
        self._shown[pod.uid] = pod
        self._on.setdefault(pod.node, {})[pod.uid] = None
        return pod if node is None else fitted(pod, node)

    def drop(self, uid: PodUid) -> None:
        """Forget a pod."""
        pod = self._shown.pop(uid, None)
        if pod is None or pod.node is None:
            return
        del self._on[pod.node][uid]
        if not self._on[pod.node]:
            del self._on[pod.node]

    def shown(self, uid: PodUid) -> Pod | None:
        """Return a pod as it is shown; None for a pod that counts as it is shown."""
        return self._shown.get(uid)

    def on(self, node: NodeName) -> Collection[Pod]:
        """Return the pods on a node as they are shown: they are judged again when the node changes."""
        return [self._shown[uid] for uid in self._on.get(node, ())]


def fitted(pod: Pod, node: Node) -> Pod:
    """Return a pod that requests no more of any extended resource than its node has."""
    request, scalars, sharing = pod.request, _fitted(pod.scalars, node), pod.sharing
    if request.gpu_milli > node.allocatable.gpu_milli:
        request = replace(request, gpu_milli=node.allocatable.gpu_milli - node.allocatable.gpu_milli % GPU_MILLI)
    has_gpus = node.names_gpus or node.allocatable.gpu_milli > 0
    if sharing is not None and not (pod.devices or has_gpus):
        sharing = None
    if (request, scalars, sharing) == (pod.request, pod.scalars, pod.sharing):
        return pod
    return replace(pod, request=request, scalars=scalars, sharing=sharing)


def _fitted(scalars: Scalars, node: Node) -> Scalars:
    there = dict(node.scalars)
    if all(amount <= there.get(name, 0) for name, amount in scalars):
        return scalars
    least = ((name, min(amount, there.get(name, 0))) for name, amount in scalars)
    return tuple((name, amount) for name, amount in least if amount)
