"""Remembers the pods that kube-scheduler will not ask about again by itself, and which of them need a patch."""

import asyncio

from app.cluster.state.cache import ClusterCache
from app.model.names import PodUid


class ParkedPods:
    """The parked pods, and the queue of pods to wake or revoke. Only the event loop calls in here."""

    def __init__(self, cache: ClusterCache) -> None:
        """Start with no pod parked."""
        self._cache = cache
        self._uids: set[PodUid] = set()
        self.patches: asyncio.Queue[PodUid] = asyncio.Queue()
        """Pods to wake or revoke. Which of the two, and with which node, is decided when the patch is written."""

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
        """Forget pods that no longer exist."""
        self._uids = {uid for uid in self._uids if self._cache.pods.get(uid) is not None}

    def wake(self, uid: PodUid) -> None:
        """Queue a nomination for the pod, if the pod is parked and a node is reserved for it."""
        if uid in self._uids and self._cache.reservations.promised(uid) is not None:
            self.patches.put_nowait(uid)
