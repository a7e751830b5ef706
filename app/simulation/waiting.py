"""kube-scheduler's queue: pods that are next, parked until a change, or backing off after an error."""

import asyncio
import heapq
import itertools
from enum import Enum, auto


class Waits(Enum):
    """What a pending pod waits for."""

    ITS_TURN = auto()
    THE_CYCLE = auto()
    A_CHANGE = auto()
    ITS_BACKOFF = auto()


class SchedulingQueue:
    """Pending pods by uid: by priority, then by arrival."""

    def __init__(self) -> None:
        # Only the methods change these, on the event loop. A heap entry is stale when its pod waits for something else.
        self._waits: dict[str, Waits] = {}
        self._priority: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._arrival = itertools.count()
        self._woken: set[str] = set()
        self._something_is_active = asyncio.Event()

    def add(self, uid: str, *, priority: int) -> None:
        """Add a new pod. A known pod keeps what it waits for."""
        if uid not in self._waits:
            self._priority[uid] = priority
            self._activate(uid)

    def remove(self, uid: str) -> None:
        """Remove a pod, if it is known."""
        self._waits.pop(uid, None)
        self._priority.pop(uid, None)
        self._woken.discard(uid)

    async def pop(self) -> str:
        """Wait for a pod that is next, and start its cycle."""
        while True:
            while self._heap:
                _, _, uid = heapq.heappop(self._heap)
                if self._waits.get(uid) is Waits.ITS_TURN:
                    self._waits[uid] = Waits.THE_CYCLE
                    return uid
            self._something_is_active.clear()
            await self._something_is_active.wait()

    def park(self, uid: str) -> None:
        """End the cycle of a refused pod. After a change during the cycle the pod is next again at once."""
        if uid in self._woken:
            self._activate(uid)
        elif uid in self._waits:
            self._waits[uid] = Waits.A_CHANGE

    def back_off(self, uid: str) -> None:
        """End the cycle of a pod after an error. No change wakes the pod before `resume`."""
        if uid in self._waits:
            self._waits[uid] = Waits.ITS_BACKOFF

    def resume(self, uid: str) -> None:
        """Make a pod that backed off active again."""
        if self._waits.get(uid) is Waits.ITS_BACKOFF:
            self._activate(uid)

    def wake(self, uid: str) -> None:
        """Handle a change for this pod. During its cycle the change is recorded; a pod that backs off is not woken."""
        match self._waits.get(uid):
            case Waits.A_CHANGE:
                self._activate(uid)
            case Waits.THE_CYCLE:
                self._woken.add(uid)
            case _:
                pass

    def wake_all(self) -> None:
        """Handle a change for all pods, such as the end of a pod."""
        for uid in list(self._waits):
            self.wake(uid)

    def _activate(self, uid: str) -> None:
        self._woken.discard(uid)
        self._waits[uid] = Waits.ITS_TURN
        heapq.heappush(self._heap, (-self._priority[uid], next(self._arrival), uid))
        self._something_is_active.set()
