"""Keeps the pods as they count, and tells how the watch shows those that count otherwise."""

from collections.abc import Collection
from dataclasses import replace

from app.cluster.state.fitted import Fitted
from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod


class KnownPods:
    """All pods that are known. Only `ClusterCache` calls what changes them."""

    def __init__(self) -> None:
        """Start with none."""
        self._by_uid: dict[PodUid, Pod] = {}
        self._fitted = Fitted()
        self._told_to_leave: dict[PodUid, Pod] = {}
        """As the watch shows them, which may not know yet that they leave."""

    def get(self, uid: PodUid) -> Pod | None:
        """Return the pod of this uid."""
        return self._by_uid.get(uid)

    def as_shown(self, uid: PodUid) -> Pod | None:
        """Return the pod as the watch shows it, which may not know yet that it leaves."""
        return self._told_to_leave.get(uid) or self._fitted.shown(uid) or self._by_uid.get(uid)

    def all(self) -> Collection[Pod]:
        """Return all pods that are known; not to be kept across an await."""
        return self._by_uid.values()

    def fitted_on(self, node: NodeName) -> Collection[Pod]:
        """Return the pods, as they are shown, of which what they count for depends on what this node has."""
        return self._fitted.on(node)

    def put(self, pod: Pod) -> None:
        """Keep a pod as it counts now."""
        self._by_uid[pod.uid] = pod

    def drop(self, uid: PodUid) -> Pod | None:
        """Forget a pod; return it."""
        self._told_to_leave.pop(uid, None)
        self._fitted.drop(uid)
        return self._by_uid.pop(uid, None)

    def fit(self, pod: Pod, node: Node | None) -> Pod:
        """Return a pod as it counts on its node, which asks for no more than there is."""
        return self._fitted.put(pod, node)

    def hear(self, pod: Pod) -> Pod:
        """Return a pod that the watch shows as it counts: one that was told to leave is leaving."""
        if pod.uid not in self._told_to_leave:
            return pod
        self._told_to_leave[pod.uid] = pod
        return replace(pod, deleting=True)

    def tell_to_leave(self, uid: PodUid) -> Pod | None:
        """Count a pod as leaving from now on; return it as it is shown, None when it leaves already or is unknown."""
        pod = self.as_shown(uid)
        if pod is None or pod.deleting:
            return None
        self._told_to_leave[uid] = pod
        return pod

    def let_stay(self, uid: PodUid) -> Pod | None:
        """Count a pod as the watch shows it again, and return that; None when it was not told to leave."""
        return self._told_to_leave.pop(uid, None)
