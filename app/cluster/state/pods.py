"""Keeps the pods as they count, and the watch's version of pods that count differently."""

from collections.abc import Collection
from dataclasses import replace

from app.cluster.state.fitted import Fitted
from app.model.names import NodeName, PodUid
from app.model.node import Node
from app.model.pod import Pod


class KnownPods:
    """All known pods. Only `ClusterCache` calls the methods that change them."""

    def __init__(self) -> None:
        """Start without pods."""
        self._by_uid: dict[PodUid, Pod] = {}
        self._fitted = Fitted()
        self._with_claims: dict[PodUid, Pod] = {}
        """The watch's version of pods that count with what their claims demand."""
        self._told_to_leave: dict[PodUid, Pod] = {}
        """The watch's version of pods whose eviction is ordered; it may not show the deletion yet."""

    def get(self, uid: PodUid) -> Pod | None:
        """Return the pod of this uid."""
        return self._by_uid.get(uid)

    def as_shown(self, uid: PodUid) -> Pod | None:
        """Return the pod as the watch shows it, which may not show its deletion yet."""
        shown = self._told_to_leave.get(uid) or self._with_claims.get(uid)
        return shown or self._fitted.shown(uid) or self._by_uid.get(uid)

    def all(self) -> Collection[Pod]:
        """Return all known pods; the caller must not keep the value across an await."""
        return self._by_uid.values()

    def fitted_on(self, node: NodeName) -> Collection[Pod]:
        """Return the pods, as they are shown, whose counted amounts depend on the capacity of this node."""
        return [self._with_claims.get(pod.uid, pod) for pod in self._fitted.on(node)]

    def put(self, pod: Pod) -> None:
        """Store a pod as it counts now."""
        self._by_uid[pod.uid] = pod

    def drop(self, uid: PodUid) -> Pod | None:
        """Forget a pod; return it."""
        self._told_to_leave.pop(uid, None)
        self._with_claims.pop(uid, None)
        self._fitted.drop(uid)
        return self._by_uid.pop(uid, None)

    def keep_shown(self, pod: Pod) -> None:
        """Keep the watch's version of a pod: it counts with what its claims demand."""
        self._with_claims[pod.uid] = pod

    def fit(self, pod: Pod, node: Node | None) -> Pod:
        """Return a pod as it counts on its node: it requests no more than the node has."""
        return self._fitted.put(pod, node)

    def hear(self, pod: Pod) -> Pod:
        """Return a pod of the watch as it counts: a pod whose eviction is ordered counts as being deleted."""
        if pod.uid not in self._told_to_leave:
            return pod
        self._told_to_leave[pod.uid] = pod
        return replace(pod, deleting=True)

    def tell_to_leave(self, uid: PodUid) -> Pod | None:
        """Count a pod as being deleted from now on; return it as shown, None when it is being deleted or unknown."""
        pod = self.as_shown(uid)
        if pod is None or pod.deleting:
            return None
        self._told_to_leave[uid] = pod
        return pod

    def let_stay(self, uid: PodUid) -> Pod | None:
        """Count a pod as the watch shows it again, and return that version; None when its eviction was not ordered."""
        return self._told_to_leave.pop(uid, None)
