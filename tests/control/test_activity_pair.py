"""Two replicas and the kube-schedulers beside them: whatever these do, both replicas never decide at the same time."""

import asyncio
from collections import Counter
from random import Random

import pytest

from app.control.leadership.leadership import LOOK_EVERY_S, NOTICED_WITHIN_S, Leadership
from app.model.seam import Lease
from app.simulation.cluster import SimulatedCluster

DURATION_S, RETRY_S = 15.0, 2.0
LONG_S = 1000.0
LATENCY_S = 0.4
"""At most this long each way: an answer is read within the second that `NOTICED_WITHIN_S` allows for it."""


class Store(SimulatedCluster):
    """One Lease, as one replica reads it: with delays, and sometimes not at all."""

    def __init__(self, chance: Random) -> None:
        super().__init__(now=lambda: 0.0)
        self.lease = Lease(holder="", duration_s=DURATION_S, renewed="")
        self._chance = chance
        self._renewals = 0

    async def read_lease(self, namespace: str, name: str) -> Lease | None:
        assert (namespace, name) == ("ns", "lease")
        await asyncio.sleep(self._chance.uniform(0, LATENCY_S))
        lease = self.lease
        await asyncio.sleep(self._chance.uniform(0, LATENCY_S))
        return lease

    def write(self, holder: str) -> None:
        self._renewals += 1
        self.lease = Lease(holder=holder, duration_s=DURATION_S, renewed=str(self._renewals))


class Elected:
    """The election of a kube-scheduler: it renews, stops for a while, or releases the lease."""

    def __init__(self, name: str, store: Store, chance: Random) -> None:
        self._name, self._store, self._chance = name, store, chance
        self._seen, self._seen_at = store.lease, 0.0

    async def run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(RETRY_S * self._chance.uniform(1, 2.2))
            if self._store.lease != self._seen:
                self._seen, self._seen_at = self._store.lease, now()
            holder = self._store.lease.holder
            if holder == self._name or not holder or now() >= self._seen_at + DURATION_S:
                self._store.write(self._name)
                await self._err()

    async def _err(self) -> None:
        match self._chance.choice(["crash", "release", *["go on"] * 10]):
            case "crash":
                await asyncio.sleep(self._chance.uniform(0, 40))
            case "release":
                self._store.write("")
                await asyncio.sleep(self._chance.uniform(0, 5))
            case _:
                pass


def replica(name: str, store: Store) -> Leadership:
    clock = asyncio.get_running_loop().time
    return Leadership(store, lease="ns/lease", hostname=name, clock=clock)


@pytest.mark.parametrize("seed", range(5))
async def test_two_replicas_never_decide_at_the_same_time(seed: int) -> None:
    chance = Random(seed)
    store = Store(chance)
    pair = [replica(name, store) for name in ("a", "b")]
    rivals = [Elected(f"{name}_{seed}", store, chance) for name in ("a", "b")]
    running = [asyncio.create_task(run()) for run in (*(each.run for each in pair), *(each.run for each in rivals))]
    found: Counter[tuple[bool, bool]] = Counter()
    changes, before = 0, (False, False)

    while asyncio.get_running_loop().time() < LONG_S:
        await asyncio.sleep(0.1)
        now = (not pair[0].failure(), not pair[1].failure())
        found[now] += 1
        changes, before = changes + (now != before), now

    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert found[True, True] == 0
    # Without changes the test proves nothing.
    assert changes > 10
    assert min(found[True, False], found[False, True]) > 0.2 * found.total()


async def test_a_replica_waits_until_the_other_has_seen_that_the_lease_was_released() -> None:
    store = Store(Random(0))
    ours = replica("a", store)
    running = asyncio.create_task(ours.run())
    for _ in range(10):
        store.write("b_1")
        await asyncio.sleep(1)

    store.write("a_1")
    await asyncio.sleep(LOOK_EVERY_S + 2 * LATENCY_S)
    at_once = ours.failure()
    store.write("a_1")
    await asyncio.sleep(NOTICED_WITHIN_S)
    later = ours.failure()
    running.cancel()

    assert ("until a moment ago" in at_once, later) == (True, "")


async def test_a_replica_does_not_wait_for_the_holder_of_an_expired_lease() -> None:
    store = Store(Random(0))
    ours = replica("a", store)
    running = asyncio.create_task(ours.run())
    store.write("b_1")
    await asyncio.sleep(2 * DURATION_S)

    store.write("a_1")
    await asyncio.sleep(LOOK_EVERY_S + 2 * LATENCY_S)
    at_once = ours.failure()
    running.cancel()

    assert at_once == ""
