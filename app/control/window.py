"""Counts the pods that kube-scheduler was sent and has not asked about yet, and has whoever sends more wait for it."""

import asyncio

from app.model.names import PodUid

ASKED_WITHIN_S = 5.0
"""After this time a pod no longer holds up others: kube-scheduler's own filters may refuse it without a question."""


class Window:
    """Who was sent, and when. Between `room` and `send` there must be no await, or more are sent than there is room."""

    def __init__(self, limit: int) -> None:
        """At most `limit` pods are on their way at once."""
        self._limit = limit
        self._unanswered: dict[PodUid, float] = {}
        self._answered = asyncio.Event()

    def send(self, uid: PodUid) -> None:
        """Note that kube-scheduler is about to look at the pod."""
        self._unanswered[uid] = asyncio.get_running_loop().time()

    def answer(self, uid: PodUid) -> None:
        """Note that kube-scheduler has asked about the pod, or will not."""
        if self._unanswered.pop(uid, None) is not None:
            self._answered.set()

    async def room(self) -> None:
        """Wait until kube-scheduler has asked about enough of those that were sent before."""
        while len(self._unanswered) >= self._limit:
            self._answered.clear()
            try:
                async with asyncio.timeout(ASKED_WITHIN_S / 5):
                    await self._answered.wait()
            except TimeoutError:
                over = asyncio.get_running_loop().time() - ASKED_WITHIN_S
                self._unanswered = {uid: since for uid, since in self._unanswered.items() if since > over}
