"""Limits the pods that kube-scheduler was sent and has not asked about yet: senders of more pods wait."""

import asyncio

from app.model.names import PodUid

ASKED_WITHIN_S = 5.0
"""After this time a pod no longer delays others: kube-scheduler's own filters may refuse it without a question."""

LOOK_S = 0.1
"""How often a waiting sender checks whether kube-scheduler will ask at all about the pods that it waits for."""


class InFlightLimiter:
    """The pods that were sent, and when. No await may be between `room` and `send`, or too many pods are sent.

    kube-scheduler orders pods by the time at which it first saw them, not by the time at which they were sent. So
    without a `span`, the pods that it saw last are overtaken for as long as others are sent, and their gangs wait for
    them.
    """

    def __init__(self, limit: int, *, burst: int = 1, span: int | None = None) -> None:
        """At most `limit` pods are in flight, and a pod in flight is followed by fewer than `span` sent pods.

        After the limit is reached, no more pods are sent until there is room for a `burst` of them.
        """
        self._limit = limit
        self._burst = burst
        self._span = span
        self._is_full = False
        self._sent = 0
        self._unanswered: dict[PodUid, tuple[int, float]] = {}
        """For each pod its number and the time at which it was sent; the oldest first."""
        self._answered = asyncio.Event()

    def send(self, uid: PodUid) -> None:
        """Note that kube-scheduler is about to look at the pod."""
        self._unanswered.pop(uid, None)
        self._unanswered[uid] = self._sent, asyncio.get_running_loop().time()
        self._sent += 1

    def answer(self, uid: PodUid) -> None:
        """Note that kube-scheduler has asked about the pod, or will not."""
        if self._unanswered.pop(uid, None) is not None:
            self._answered.set()

    def withdraw(self, uid: PodUid) -> None:
        """Note that the pod was not sent after all: it has overtaken no other pod."""
        if uid not in self._unanswered:
            return
        number, _ = self._unanswered[uid]
        self.answer(uid)
        self._sent -= 1
        for later, (at, since) in self._unanswered.items():
            if at > number:
                self._unanswered[later] = at - 1, since

    def is_over(self, uid: PodUid) -> bool:
        """Whether kube-scheduler is done with a pod without a question, at least for now; unknown here, so never."""
        del uid
        return False

    async def room(self) -> None:
        """Wait until kube-scheduler has asked about enough of the pods that were sent before."""
        while not self._has_room():
            self._answered.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._answered.wait()
            except TimeoutError:
                self._forget_who_is_over()

    def _has_room(self) -> bool:
        if len(self._unanswered) >= self._limit:
            self._is_full = True
        elif len(self._unanswered) <= self._limit - self._burst:
            self._is_full = False
        if self._is_full:
            return False
        if self._span is None or not self._unanswered:
            return True
        oldest, _ = next(iter(self._unanswered.values()))
        return self._sent - oldest < self._span

    def _forget_who_is_over(self) -> None:
        late = asyncio.get_running_loop().time() - ASKED_WITHIN_S
        self._unanswered = {
            uid: (number, since)
            for uid, (number, since) in self._unanswered.items()
            if since > late and not self.is_over(uid)
        }
