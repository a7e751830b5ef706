"""Two replicas for a moment, while GPUs are prepared for sharing: each GPU is reserved once and assigned once."""

import signal
from collections.abc import Iterator
from itertools import count

import pytest

from tests.system.agents import GPU_NODES
from tests.system.api import DEFAULT_PODS, Api
from tests.system.bed import Bed
from tests.system.cluster import install
from tests.system.conftest import sweep
from tests.system.gpu_observer import GpuObserver
from tests.system.gpus import DevicePlugins
from tests.system.machines import machine_node
from tests.system.pairs import Pair, allow_election, need_names, two_replicas
from tests.system.rendered import policies_in_force
from tests.system.shares import devices, is_reservation
from tests.system.sharing import RESERVATION_PODS, sharer
from tests.system.waiting import eventually

HALVES = 8
_numbers = count()


@pytest.fixture
def pairs(bed: Bed, api: Api) -> Iterator[tuple[Pair, Pair]]:
    """Run two replicas behind the policies that gate pods; the first is active."""
    need_names()
    install(api)
    allow_election(api)
    with policies_in_force(api):
        with two_replicas(bed, f"gpus-{next(_numbers)}", marked=True) as both:
            yield both
        sweep(api)
        api.empty(GPU_NODES)


def test_replica_that_was_stopped_while_gpus_were_reserved_does_nothing_twice(
    api: Api, bed: Bed, pairs: tuple[Pair, Pair]
) -> None:
    active, standby = pairs
    names = [f"half-{index}" for index in range(HALVES)]

    with DevicePlugins(bed) as plugins, GpuObserver(bed) as observer:
        plugins.report_after(2.0)
        api.create_all(machine_node(f"gpu-standby-{next(_numbers)}", gpus=2) for _ in range(2))
        eventually(lambda: len(api.items(GPU_NODES)) == 2, within_s=20, what="the agents have reported")
        api.create_all(sharer(name, "0.5") for name in names)
        eventually(lambda: api.items(RESERVATION_PODS), within_s=30, what="the first reservation pod", every_s=0.01)
        active.send(signal.SIGSTOP)
        standby.wait_until_active()
        active.send(signal.SIGCONT)
        active.await_end_of_scheduler()

        api.wait_for_phase("Running", *names, within_s=40)
        reservations = [one for one in api.items(RESERVATION_PODS) if is_reservation(one)]
        given = {devices(api.get(f"{DEFAULT_PODS}/{name}")) for name in names}
        found = observer.breaches()

    assert not found, "\n".join(found)
    assert (len(reservations), len(given)) == (HALVES // 2, HALVES // 2)
