"""Measures what admission costs clients that create pods, and how a large release of held pods delays other pods."""

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from app.model.marks import GATE
from loadtest.scenarios import QUEUE, Size, node_objects
from tests.system.api import NODES, PODS, QUEUES, Api, Object, pod, queue
from tests.system.bed import PLAIN_SCHEDULER, Bed
from tests.system.forms import Form, deployed
from tests.system.observer import Observer, Sight
from tests.system.waiting import eventually

UNMANAGED_EVERY_S = 0.05
IDLE_S = 10.0
OTHERS, HELD = "other", "held"
WAITING, STARTING = "waits", "starts at once"
"""What becomes of a pod while others are created: one that starts costs the API server three writes more."""

_names = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """How fast pods were created."""

    what: str
    pods_per_s: Sequence[float]
    """One a run."""

    @property
    def median(self) -> float:
        """Return the median of all runs."""
        return statistics.median(self.pods_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """How unmanaged pods fared for a while: pods bound a second, and seconds from first seen to bound."""

    when: str
    pods_per_s: float
    median_s: float
    p99_s: float


def creations(bed: Bed, size: Size, repeats: int) -> Sequence[Creation]:
    """Measure how fast pods are created, on a bed with a control plane and the plain kube-scheduler."""
    with bed.api() as api:
        return _creations(bed, api, PLAIN_SCHEDULER, pods=size.pods, repeats=repeats)


def others(bed: Bed, size: Size) -> Sequence[Others]:
    """Measure on such a bed how others fare while held pods are released."""
    with bed.api() as api:
        return _others(bed, api, PLAIN_SCHEDULER, node_count=size.nodes, pods=size.pods)


# Creation -----------------------------------------------------------------------------------------------------------


def _creations(bed: Bed, api: Api, plain_scheduler: str, *, pods: int, repeats: int) -> Sequence[Creation]:
    runs: dict[str, list[float]] = {}

    def run(what: str, make: Callable[[], Object]) -> None:
        runs.setdefault(what, []).append(_rate(api, pods, make))

    for _ in range(repeats):
        # Interleaved, not in blocks: on a shared machine the noise of one minute then hits every case.
        run(f"{WAITING}: of no scheduler, without Leeboard", _nobodys)
        with _room_for(api, pods):
            run(f"{STARTING}: kube-scheduler's own, without Leeboard", _others_pod)
        with deployed(bed, api, Form.HELD, plain_scheduler):
            run(f"{WAITING}: of no scheduler, with Leeboard", _nobodys)
            run(f"{WAITING}: managed, held", _managed)
            with _room_for(api, pods):
                run(f"{STARTING}: kube-scheduler's own, with Leeboard", _others_pod)
                run(f"{STARTING}: managed", _managed)
    return [Creation(what=what, pods_per_s=tuple(rates)) for what, rates in runs.items()]


@contextmanager
def _room_for(api: Api, pods: int) -> Iterator[None]:
    api.create_all(node_objects(pods // 8 + 1))
    # Without Leeboard the kind may be missing; it is not needed then.
    if api.find(QUEUES) is not None:
        api.create(queue(QUEUE))
    try:
        yield
    finally:
        for collection in (QUEUES, NODES):
            api.empty(collection)


def _nobodys() -> Object:
    # Its scheduler does not exist, so it stays pending.
    return pod(f"{OTHERS}-{next(_names)}", scheduler="nobody", gpus=0)


def _others_pod() -> Object:
    return pod(f"{OTHERS}-{next(_names)}", scheduler="default-scheduler")


def _managed() -> Object:
    return pod(f"ours-{next(_names)}", queue=QUEUE)


def _rate(api: Api, pods: int, make: Callable[[], Object]) -> float:
    items = [make() for _ in range(pods)]
    started = time.monotonic()
    api.create_all(items)
    rate = pods / (time.monotonic() - started)
    api.empty(PODS)
    return rate


# A great release ----------------------------------------------------------------------------------------------------


def _others(bed: Bed, api: Api, plain_scheduler: str, *, node_count: int, pods: int) -> Sequence[Others]:
    with deployed(bed, api, Form.HELD, plain_scheduler), Observer(bed) as observer:
        api.create_all(node_objects(node_count))
        api.create_all(_held_pods(pods))
        with _users(api):
            idle_from = time.monotonic()
            eventually(lambda: time.monotonic() >= idle_from + IDLE_S, within_s=2 * IDLE_S, what="an idle while")
            released_at = time.monotonic()
            api.create(queue(QUEUE))
            # From what the observer is told anyhow: to list them all again and again would be a load of our own.
            eventually(lambda: _are_bound(observer, pods), within_s=300, what=f"{pods} held pods are bound")
            over_at = time.monotonic()
        spans = {"before the release": (idle_from, released_at), f"while {pods:,} are released": (released_at, over_at)}
        return [fared(observer.history(), when, *span) for when, span in spans.items()]


def _are_bound(observer: Observer, pods: int) -> bool:
    return sum(bool(sight.node) and sight.name.startswith(HELD) for sight in observer.present()) == pods


def _held_pods(count: int) -> Sequence[Object]:
    gates = {"schedulingGates": [{"name": GATE}]}
    return [pod(f"{HELD}-{index:05}", queue=QUEUE, spec=gates) for index in range(count)]


@contextmanager
def _users(api: Api) -> Iterator[None]:
    """Create pods for kube-scheduler alone all the time; raises in the end what kept it from that."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(UNMANAGED_EVERY_S):
            api.create(pod(f"{OTHERS}-{next(_names)}", scheduler="default-scheduler", gpus=0))

    with ThreadPoolExecutor(max_workers=1) as pool:
        users = pool.submit(run)
        try:
            yield
        finally:
            ended.set()
        users.result()


def fared(history: Iterable[Sight], when: str, since: float, until: float) -> Others:
    """Return how others fared between two moments; who still waits at the second has waited so long by then."""
    first: dict[str, float] = {}
    bound_at: dict[str, float] = {}
    for sight in history:
        if sight.name.startswith(OTHERS) and sight.at_s < until:
            first.setdefault(sight.uid, sight.at_s)
            if sight.node:
                bound_at.setdefault(sight.uid, sight.at_s)
    took = sorted(bound_at.get(uid, until) - began for uid, began in first.items() if bound_at.get(uid, until) >= since)
    bound = sum(since <= at < until for at in bound_at.values())
    return Others(
        when=when,
        pods_per_s=bound / (until - since),
        median_s=took[len(took) // 2] if took else 0.0,
        p99_s=took[min(len(took) - 1, len(took) * 99 // 100)] if took else 0.0,
    )
