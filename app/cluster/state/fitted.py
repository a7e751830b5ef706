"""Remembers the pods that ask for more GPUs than their nodes have, as they are shown: they count for what there is.

A kubelet takes a pod that asks for an extended resource of which its node knows nothing (Kubernetes: "cluster-level
resources"), and runs it without. So an author who writes `spec.nodeName` may ask for a million GPUs on a node without
any. A pod that was bound with its queue noted on it has got what it asks for, whatever its node offers since.
"""

from collections.abc import Collection
from dataclasses import replace

from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod
from app.model.resources import GPU_MILLI, Scalars


class Fitted:
    """Pods that have nodes, of which nothing tells that they were bound with what they ask for."""

    def __init__(self) -> None:
        """Start with none."""
        self._shown: dict[PodUid, Pod] = {}
        self._on: dict[NodeName, dict[PodUid, None]] = {}

    def put(self, pod: Pod, node: Node | None) -> Pod:
        """Note a pod as it is shown; return it as it counts on this node. On an unknown one it counts in full."""
        self.drop(pod.uid)
        # Who is there by its author's word alone pays nothing: there may be any number of them.
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
        """Return a pod as it is shown; None for one that counts as that."""
        return self._shown.get(uid)

    def on(self, node: NodeName) -> Collection[Pod]:
        """Return the pods on a node as they are shown: they are to be judged again when it changes."""
        return [self._shown[uid] for uid in self._on.get(node, ())]


def fitted(pod: Pod, node: Node) -> Pod:
    """Return a pod that asks for no more of any extended resource than its node has."""
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
