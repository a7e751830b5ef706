"""Every kind of pod with GPUs at once: the books of Leeboard equal the allocations, and nothing is given away twice.

A short run by default; `LEEBOARD_MIXED_LOAD=600` runs for ten minutes, and `LEEBOARD_MIXED_LOAD_SEED`
draws others.
"""

import os
import time
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from tests.system import native_podgroups
from tests.system.allocations import AllocationObserver, Allocations
from tests.system.api import gpu_node, queue
from tests.system.arrivals import EVERY_KIND, templates
from tests.system.bed import Bed
from tests.system.dra_driver import (
    H100,
    L40S,
    device_classes,
    partitioned_gpu,
    publish,
    resource_slices,
    whole_gpus,
)
from tests.system.features import HAS_DEVICE_FEATURES
from tests.system.mixed_load import Books, MixedLoad
from tests.system.sharing import SharingCluster, ground
from tests.system.waiting import eventually

SECONDS = float(os.environ.get("LEEBOARD_MIXED_LOAD", "20"))
SEED = int(os.environ.get("LEEBOARD_MIXED_LOAD_SEED", "24"))
"""It decides what comes and goes; what coincides depends on the machine."""

LOADED_FOR_S = 8.0
"""The time between two rests."""

FEWEST_RESTS = 2
RESTS_PER_CRASH = 3
GRACE_S = 5
"""After a crash Leeboard does not know the last pod of a GPU, and keeps the GPU for this time (60 s by default)."""

LIMIT = 10
QUEUES = ("left", "right", "default-queue")
_numbers = count()


@pytest.fixture(scope="module")
def mixed_bed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """A control plane that serves native PodGroups, if this version can."""
    if native_podgroups.ARE_THERE:
        with native_podgroups.serving_bed(tmp_path_factory.mktemp("mixed-load")) as bed:
            yield bed
    else:
        yield request.getfixturevalue("session_bed")


@pytest.fixture
def cluster(mixed_bed: Bed) -> Iterator[SharingCluster]:
    with mixed_bed.api() as api, ground(mixed_bed, api, reservation_grace_s=str(GRACE_S)) as running:
        api.create_all([*device_classes(), *templates()])
        api.create_all([queue("left", deserved=8, limit=LIMIT), queue("right", deserved=8)])
        with running.cluster() as cluster:
            yield cluster
        api.empty(native_podgroups.GROUPS)


def add_claimed_nodes(cluster: SharingCluster) -> dict[str, int]:
    """Create nodes whose GPUs only claims can get; return how many GPUs each has."""
    found = {}
    for model, number in ((H100, 4), (L40S, 4), (H100, 2)):
        name = f"mixed{next(_numbers):03}"
        found[name] = number
        cluster.api.create(gpu_node(name, gpus=0))
        if number == 2 and HAS_DEVICE_FEATURES:
            parted = [partitioned_gpu(name, index) for index in range(number)]
            devices = [one for devices, _ in parted for one in devices]
            publish(cluster.api, resource_slices(name, devices, counter_sets=[counters for _, counters in parted]))
        else:
            publish(cluster.api, resource_slices(name, whole_gpus(name, number, model)))
    return found


def test_books_equal_the_allocations_under_mixed_load_and_crashes(cluster: SharingCluster) -> None:
    print(f"seed {SEED}, {SECONDS:g} s")
    plugins = dict.fromkeys(cluster.add_gpu_nodes(3, gpus=4), 4)
    claimed = add_claimed_nodes(cluster)
    books = Books(cluster, plugins=plugins, claimed=claimed)
    load = MixedLoad(cluster, books, QUEUES, Random(SEED))

    with AllocationObserver(cluster.running.bed, limits={"left": LIMIT}, plugins=plugins) as observer:
        ends = time.monotonic() + SECONDS
        while len(load.rests_s) < FEWEST_RESTS or time.monotonic() < ends:
            load.run(LOADED_FOR_S / 2)
            if len(load.rests_s) % RESTS_PER_CRASH == 1:
                load.crash()
            load.run(LOADED_FOR_S / 2)
            load.rest()
        load.drain()
        eventually(
            lambda: (Allocations.read(cluster.api).allocated(), *books.differences()),
            until=lambda found: found == ([],),
            within_s=60,
            what="nothing is allocated, and the books say so",
        )
    cluster.wait_for_reservations(0)

    print(f"  came {dict(load.came)}; {load.crashes} crashes")
    print(f"  {observer.bindings} bindings, at most {observer.most_claimed} devices of claims at once")
    print(f"  {len(load.rests_s)} rests without a difference, the slowest after {max(load.rests_s):.1f} s")
    observer.check()
    assert load.failed() == []
    reached = plugins | claimed if HAS_DEVICE_FEATURES else plugins
    assert {node: books.has_room(node, number) for node, number in reached.items()} == dict.fromkeys(reached, True)
    # Otherwise the run has proven nothing.
    assert (len(load.came), load.crashes > 0) == (len(EVERY_KIND), True)
    assert min(observer.bindings - load.number // 2, observer.most_claimed - 5) > 0
