"""Knows which pods kube-scheduler will not ask about again by itself, and which of them are to be patched."""

import asyncio

from app.cluster.state.cache import ClusterCache
from app.model.names import PodUid


class ParkedPods:
    """The parked pods, and the queue of those to be woken or revoked. Only the event loop calls in here."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start with no pod parked."""
        self._cache = cache
        self._uids: set[PodUid] = set()
        self.patches: asyncio.Queue[PodUid] = asyncio.Queue()
        """Pods to be woken or revoked; which, and with what node, is decided when the patch is written."""

    def __contains__(self, uid: PodUid) -> bool:
        """Return whether a pod is parked."""
        return uid in self._uids

    def add(self, uid: PodUid) -> None:
        """Note that kube-scheduler will not ask about this pod again on its own."""
        self._uids.add(uid)

    def forget(self, uid: PodUid) -> None:
        """Note that kube-scheduler asks about the pod, or is about to."""
        self._uids.discard(uid)

    def forget_gone(self) -> None:
        """Forget pods that are no more."""
        self._uids = {uid for uid in self._uids if self._cache.pods.get(uid) is not None}

    def wake(self, uid: PodUid) -> None:
        """Have a pod nominated that is parked, if a node is promised to it."""
        if uid in self._uids and self._cache.reservations.promised(uid) is not None:
            self.patches.put_nowait(uid)
