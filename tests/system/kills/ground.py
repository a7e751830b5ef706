"""Shared by the tests of kills: a Leeboard that restarts on its ports, gangs, and the checks of a run."""

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import httpx

from tests.system.api import DEFAULT_PODS, Api, gang, gpu_node
from tests.system.bed import HOST, Bed, free_ports
from tests.system.cluster import start_leeboard, start_own_scheduler
from tests.system.observer import Observer, Rules, Sight, lost, partial_stretches
from tests.system.waiting import eventually

DEFAULT_GROUPS = "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups"
QUEUE = "default-queue"
SEED = int(os.environ.get("LEEBOARD_KILLS_SEED", "20"))
"""It decides the moments of the kills and the workloads; which of them coincide depends on the machine."""

SETTLED_WITHIN_S = 20.0
"""Twice the promised time after the last fault (I3), since the machine may be shared."""

SCHEDULER_BACK_WITHIN_S = 120.0
"""kube-scheduler's own watches pause for up to 30 s after an outage (client-go), and twice as long by chance."""

_node_numbers = count()


class Service:
    """Leeboard and its kube-scheduler on ports that stay the same, so that either can be killed and restarted."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._webhooks, self._operations = free_ports(2)
        self.start_leeboard()
        self.start_scheduler()

    @property
    def webhooks(self) -> str:
        """Return the address of the extender's verbs."""
        return f"http://{HOST}:{self._webhooks}"

    @property
    def operations(self) -> str:
        """Return the address of health and the read API."""
        return f"http://{HOST}:{self._operations}"

    def start_leeboard(self) -> None:
        """Start Leeboard, at once after a kill."""
        start_leeboard(self._bed, webhook_port=str(self._webhooks), operations_port=str(self._operations))

    def start_scheduler(self) -> None:
        """Start the kube-scheduler as shipped."""
        start_own_scheduler(self._bed, self.webhooks)

    def start(self, name: str) -> None:
        """Restart a killed program."""
        again = {
            "leeboard": self.start_leeboard,
            "own-scheduler": self.start_scheduler,
            "kube-apiserver": self._bed._start_apiserver,
        }
        again[name]()

    def is_ready(self) -> bool:
        """Whether Leeboard says that it answers from a complete and fresh cache."""
        try:
            return httpx.get(f"{self.operations}/readyz", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    def state_of(self, name: str) -> tuple[str, str]:
        """Return the uid and the state that Leeboard knows for this name; empty when it knows none."""
        answer = httpx.get(f"{self.operations}/api/v1/pods/default/{name}", headers=self._bed.reading(), timeout=5.0)
        return ("", "") if answer.is_error else (answer.json()["uid"], answer.json()["state"])

    def wait_until_ready(self, *, within_s: float) -> None:
        """Wait until Leeboard is ready; fail at once when its process has ended."""

        def ready() -> bool:
            self._bed.child("leeboard").check_alive()
            return self.is_ready()

        eventually(ready, within_s=within_s, what="Leeboard is ready")


def add_nodes(api: Api, number: int, *, gpus: int) -> dict[str, int]:
    """Create nodes under names that no other test uses; return their GPUs."""
    nodes = [gpu_node(f"k{next(_node_numbers):03}", gpus=gpus) for _ in range(number)]
    api.create_all(nodes)
    return {node["metadata"]["name"]: gpus for node in nodes}


def bound(pods: Iterable[Sight], of: str) -> int:
    """Count the pods of a gang that count for its minimum."""
    return sum(one.counts for one in pods if one.gang == of)


def pass_time(seconds: float) -> None:
    """Let time pass: the moment of a fault is tested, and no condition is waited for."""
    threading.Event().wait(seconds)


def create_gang(api: Api, name: str, size: int) -> None:
    api.create_all(gang(name, size=size, queue=QUEUE))


def delete_gang(api: Api, name: str, size: int, *, grace_s: float = 0.0) -> None:
    """Delete a gang's pods and its PodGroup in any order; bound pods keep their GPUs for the grace period."""
    paths = [f"{DEFAULT_GROUPS}/{name}", *(f"{DEFAULT_PODS}/{name}-{index}" for index in range(size))]
    with ThreadPoolExecutor(8) as pool:
        if grace_s:
            list(pool.map(api.delete, paths))
            pass_time(grace_s)
        list(pool.map(api.delete_now, paths))


def settle(observer: Observer, rules: Rules, *, within_s: float = SETTLED_WITHIN_S) -> None:
    """Wait until no pod is lost."""
    eventually(
        lambda: lost(observer.history(), rules),
        until=lambda found: not found,
        within_s=within_s,
        what="every pod runs, or waits for a cause that it is told",
        every_s=0.2,
    )


def report(observer: Observer, rules: Rules, found: Mapping[str, int], kills_s: Sequence[float] = ()) -> None:
    """Print a summary of a run."""
    for what, number in found.items():
        print(f"  {what}: {number}")
    print(f"  sights {len(observer.history())}, gaps {observer.gaps}; the longest times in part:")
    stretches = partial_stretches(observer.history(), rules.min_members, until_s=time.monotonic())
    for one in sorted(stretches, key=lambda stretch: -stretch.lasted_s)[:3]:
        meanwhile = [f"{at_s - one.since_s:.1f}" for at_s in kills_s if one.since_s <= at_s <= one.until_s]
        print(f"    {one.gang} {one.lasted_s:.2f} s; kills after {', '.join(meanwhile) or 'none'}")


def crew_is_whole(pods: Sequence[Sight]) -> bool:
    return bound(pods, "crew") == 50


def is_gone(pods: Sequence[Sight], name: str) -> bool:
    return not any(one.gang == name for one in pods)
