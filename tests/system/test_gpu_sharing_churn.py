"""Random pods that share GPUs while Leeboard is killed: nothing is assigned twice, leaked or forgotten.

A short run by default; `LEEBOARD_GPU_CHURN=1000:20` makes it 1,000 arrivals and 20 kills (about 4 minutes), and
`LEEBOARD_GPU_CHURN_SEED` draws others.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.system.api import DEFAULT_PODS, RUN_FOR, Api, Object
from tests.system.bed import Bed
from tests.system.shares import is_over, node_of
from tests.system.sharing import Ground, SharingCluster, ground, sharer, whole
from tests.system.waiting import eventually, slowness

ARRIVALS, KILLS = map(int, os.environ.get("LEEBOARD_GPU_CHURN", "150:3").split(":"))
SEED = int(os.environ.get("LEEBOARD_GPU_CHURN_SEED", "6"))
"""It decides the pods and the kills; which of them coincide depends on the machine."""

NODES, GPUS = 4, 4
ALIVE = 40
"""At most this many at once: slightly more than have room."""

SETTLED_WITHIN_S = 30.0
GRACE_S = 5
"""After a kill Leeboard does not know the last pod of a GPU, and keeps the GPU for this time (60 s by default)."""

GIVEN_BACK_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def running(session_bed: Bed, session_api: Api) -> Iterator[Ground]:
    with ground(session_bed, session_api, reservation_grace_s=str(GRACE_S)) as running:
        yield running


@pytest.fixture
def cluster(running: Ground) -> Iterator[SharingCluster]:
    with running.cluster() as cluster:
        yield cluster


def fraction(chance: Random) -> str:
    return f"0.{chance.randint(1, 9)}"


KINDS: dict[str, tuple[int, Callable[[str, Random], Object]]] = {
    "fraction": (11, lambda name, chance: sharer(name, fraction(chance))),
    "memory": (4, lambda name, chance: sharer(name, annotations={"gpu-memory": str(chance.randint(1, 60000))})),
    "devices": (
        2,
        lambda name, chance: sharer(
            name, fraction(chance), annotations={"gpu-fraction-num-devices": str(chance.randint(2, 3))}
        ),
    ),
    "whole": (3, lambda name, chance: whole(name, chance.randint(1, 2))),
}
"""The frequency and form of each kind of pod."""


def arrival(name: str, kind: str, chance: Random) -> Object:
    """Build a pod; one in four ends by itself."""
    made = KINDS[kind][1](name, chance)
    if chance.random() < 0.25:
        made["metadata"]["annotations"][RUN_FOR] = f"{chance.randint(200, 3000)}ms"
        made["spec"]["restartPolicy"] = "Never"
    return made


class Churn:
    """Creates and deletes pods, and knows the existing ones."""

    def __init__(self, cluster: SharingCluster, chance: Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self.came: Counter[str] = Counter()

    def run(self, arrivals: int) -> None:
        """Create this number of pods, with deletions between them."""
        kills = {*self._chance.sample(range(5, arrivals), KILLS)}
        there: list[str] = []
        for index in range(arrivals):
            there = self._make_room(there)
            kind = self._chance.choices([*KINDS], [weight for weight, _ in KINDS.values()])[0]
            there.append(f"{kind}-{index}")
            self._cluster.api.create(arrival(there[-1], kind, self._chance))
            self.came[kind] += 1
            # Rates need time; no condition is waited for.
            threading.Event().wait(self._chance.uniform(0, 0.1))
            if index in kills:
                self._cluster.kill_leeboard()
                self._cluster.start_leeboard()

    def _make_room(self, there: list[str]) -> list[str]:
        """Delete some at random, on average as many as were created."""
        if len(there) < ALIVE and (not there or self._chance.random() < 0.7):
            return there
        leaving = {*self._chance.sample(there, min(len(there), self._chance.randint(1, 3)))}
        self._cluster.delete(*leaving)
        return [name for name in there if name not in leaving]

    def drain(self) -> int:
        """Delete running pods until all remaining pods have run; return how many those were.

        Raises AssertionError when a pod is pending although there is room.
        """
        left = len(self._alive())
        last = time.monotonic()
        while alive := self._alive():
            run = [one for one in alive if one["status"]["phase"] == "Running"]
            self._cluster.delete(*(one["metadata"]["name"] for one in run))
            if run:
                last = time.monotonic()
            assert time.monotonic() - last < SETTLED_WITHIN_S * slowness(), (
                f"wait in vain: {[self._state(one) for one in alive]}"
            )
            threading.Event().wait(0.2)
        return left

    def _alive(self) -> list[Object]:
        return [one for one in self._cluster.api.items(DEFAULT_PODS) if not is_over(one)]

    def _state(self, one: Object) -> str:
        name = one["metadata"]["name"]
        return f"{name} on {node_of(one) or 'no node'}: {self._cluster.running.why(name)}"


def test_random_pods_and_kills_leave_no_gpu_overcommitted_and_nothing_behind(
    cluster: SharingCluster,
) -> None:
    print(f"seed {SEED}; {ARRIVALS} arrivals, {KILLS} kills")
    cluster.add_gpu_nodes(NODES, gpus=GPUS)
    churn = Churn(cluster, Random(SEED))

    churn.run(ARRIVALS)
    left = churn.drain()

    cluster.wait_for_reservations(0, within_s=GIVEN_BACK_WITHIN_S)
    failed = [one["metadata"]["name"] for one in cluster.api.items(DEFAULT_PODS) if one["status"]["phase"] == "Failed"]
    print(f"  came {dict(churn.came)}, at most {cluster.observer.most_sharing} shared at once, {left} left at the end")
    cluster.check()
    assert failed == []
    eventually(
        lambda: [
            uuid for one in nodes_of(cluster) for uuid in cluster.plugins.uuids(one) if cluster.plugins.holder(uuid)
        ],
        until=lambda held: not held,
        within_s=10,
        what="every device is free",
    )
    # Otherwise the run has proven nothing.
    assert cluster.observer.most_sharing >= 10
    assert len(churn.came) == len(KINDS)


def nodes_of(cluster: SharingCluster) -> list[str]:
    return [one["metadata"]["name"] for one in cluster.api.items("/api/v1/nodes")]
