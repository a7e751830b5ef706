"""Stand-ins for the operators of Ray, Kubeflow, JobSet and LeaderWorkerSet, in one thread beside a running bed.

They create the objects and pods of the real operators, with their names, labels and owners, and create them again when
they are deleted; nothing runs in them. After any change they check everything once more.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

import httpx

from tests.system.api import ApiError, Object
from tests.system.bed import Bed
from tests.system.features import HAS_MUTATING_POLICIES
from tests.system.following import GONE, Following
from tests.system.identities import User
from tests.system.workloads import jobsets, kubeflow, leaderworkersets, mpi, ray, trainer
from tests.system.workloads.kinds import JOB, OWNERS, POD, STATEFUL_SET, TRAINING_RUNTIME, Kind
from tests.system.workloads.seen import Seen, is_leaving

Operator = Callable[[Seen], None]
OPERATORS: tuple[Operator, ...] = (
    ray.operate,
    kubeflow.operate,
    mpi.operate,
    trainer.operate,
    jobsets.operate,
    # Its pod webhook is a policy here.
    *((leaderworkersets.operate,) if HAS_MUTATING_POLICIES else ()),
)
FOLLOWED = (*OWNERS, TRAINING_RUNTIME, POD, JOB, STATEFUL_SET)


class Operators:
    """All stand-in operators; use it as a context manager once the CRDs are installed."""

    def __init__(self, bed: Bed) -> None:
        self._api = bed.api(User.OPERATORS)
        self._changed = threading.Event()
        self._ending = threading.Event()
        # Uids by kind, each written by the thread that follows the kind.
        self._there: dict[Kind, set[str]] = {kind: set() for kind in FOLLOWED}
        # Deleted pods, which a list may no longer show; taken out by each round.
        self._departed: deque[Object] = deque()
        self._broken: Exception | None = None
        self._open = ExitStack()
        self._followers = [Following(bed, kind.path, partial(self._see, kind)) for kind in FOLLOWED]
        self._thread = threading.Thread(target=self._run, name="operators", daemon=True)

    def __enter__(self) -> Self:
        """Start; the effect of LeaderWorkerSet's pod webhook is in force when this returns."""
        if HAS_MUTATING_POLICIES:
            leaderworkersets.install_pod_policy(self._api)
        for follower in self._followers:
            self._open.enter_context(follower)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; raise the errors of the threads, unless another one is already raised."""
        self._ending.set()
        self._changed.set()
        self._thread.join()
        self._open.__exit__(kind, error, trace)
        if HAS_MUTATING_POLICIES:
            leaderworkersets.remove_pod_policy(self._api)
        self._api.close()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the errors of the threads."""
        for follower in self._followers:
            follower.check()
        if self._broken is not None:
            raise self._broken

    def _see(self, kind: Kind, event: str, item: Object) -> None:
        uid = item["metadata"]["uid"]
        (self._there[kind].discard if event == GONE else self._there[kind].add)(uid)
        if kind is POD and (event == GONE or is_leaving(item)):
            self._departed.append(item)
        self._changed.set()

    def _run(self) -> None:
        while self._changed.wait() and not self._ending.is_set():
            self._changed.clear()
            try:
                self._look()
            except Exception as broken:  # noqa: BLE001 - a thread's error is raised in the test
                if not _is_unavailable(broken):
                    self._broken = broken
                    return
                self._changed.set()
                self._ending.wait(0.05)

    def _look(self) -> None:
        departed = [self._departed[index] for index in range(len(self._departed))]
        seen = Seen(self._api, {kind for kind, uids in self._there.items() if uids}, departed)
        for operate in OPERATORS:
            operate(seen)
        # Only now: the next round does what an interrupted round has not done.
        for _ in departed:
            self._departed.popleft()


def _is_unavailable(error: Exception) -> bool:
    """Whether the API server, or a webhook that it must call, did not answer for a moment."""
    if isinstance(error, ApiError):
        return error.status >= httpx.codes.INTERNAL_SERVER_ERROR
    return isinstance(error, httpx.TransportError)
