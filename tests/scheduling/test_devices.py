"""Shared devices: which of them takes another part, and when one is whole again."""

import numpy as np

from app.model.names import NodeName
from app.model.pod import PPM, Pod, Sharing
from app.model.snapshot import PART, SharedDevice
from app.scheduling.placement.devices import Opened, SharedDevices
from app.settings import PlacementStrategy
from tests import given

MIB = 100
HALF, THIRD, PAIR = (
    Sharing(portion_ppm=PPM // 2),
    Sharing(portion_ppm=333_333),
    Sharing(portion_ppm=PPM // 2, devices=2),
)
TWO_GPUS, NO_GPU = (2000, 2000), (0, 0)


def device(name: str, free_mib: int, releasing_mib: int = 0) -> SharedDevice:
    return SharedDevice(name, free_mib * PART, releasing_mib * PART)


def devices(*shared: SharedDevice, strategy: PlacementStrategy = PlacementStrategy.BINPACK) -> SharedDevices:
    nodes = [given.node("a", device_memory_mib=MIB)]
    return SharedDevices(given.snapshot(nodes, [], [], shared={NodeName("a"): shared}), strategy)


def room(there: SharedDevices, sharing: Sharing, *, now: int = 0, then: int = 0) -> tuple[bool, bool]:
    """Return whether there is room now and later, with this number of whole GPUs free."""
    gpus, future = np.array([now * 1000]), np.array([then * 1000])
    ready = there.room(sharing, gpus, future, later=False)
    return bool(ready[0]), bool(there.room(sharing, future, future, later=True)[0])


def choose(there: SharedDevices, sharing: Sharing, gpus: tuple[int, int], pod: Pod | None = None) -> object:
    return there.choose(pod or given.pod("p"), sharing, 0, gpus)


def test_packing_uses_the_fullest_device_with_room_first_and_a_new_device_last() -> None:
    there = devices(device("full", 20), device("half", 50), device("open", 80))

    assert choose(there, HALF, TWO_GPUS) == (("half",), False)
    assert choose(there, Sharing(portion_ppm=PPM * 9 // 10), TWO_GPUS) == (("uid-p-0",), False)


def test_spreading_uses_new_devices_first_and_then_the_emptiest() -> None:
    there = devices(device("half", 50), device("open", 80), strategy=PlacementStrategy.SPREAD)

    assert choose(there, HALF, TWO_GPUS) == (("uid-p-0",), False)
    assert choose(there, HALF, NO_GPU) == (("open",), False)


def test_a_pod_waits_for_a_part_that_is_being_released() -> None:
    there = devices(device("leaving", 20, releasing_mib=40))

    assert room(there, HALF) == (False, True)
    assert choose(there, HALF, NO_GPU) == (("leaving",), True)


def test_a_device_that_all_its_pods_release_counts_as_a_free_gpu_later() -> None:
    there = devices(device("leaving", 20, releasing_mib=80))

    assert room(there, HALF, then=1) == (False, True)
    assert room(there, PAIR, then=1) == (False, False)
    assert room(there, HALF, then=0) == (False, False)


def test_parts_of_several_devices_are_on_different_devices() -> None:
    there = devices(device("open", 80))

    assert room(there, PAIR) == (False, False)
    assert room(there, PAIR, now=1, then=1) == (True, True)


def test_three_thirds_of_a_device_do_not_exceed_it() -> None:
    there = devices()

    opened = [there.take(THIRD, 0, ("d",), later=False) for _ in range(3)]

    assert opened == [Opened(1, 1), Opened(0, 0), Opened(0, 0)]
    assert room(there, THIRD) == (False, False)


def test_a_device_is_whole_again_after_its_last_pod() -> None:
    there = devices()
    there.take(HALF, 0, ("d",), later=False)
    there.take(HALF, 0, ("d",), later=False)

    assert [there.give_back(HALF, 0, ("d",)) for _ in range(2)] == [0, 1]


def test_a_device_is_idle_after_its_last_pod_regardless_of_which_pod_opened_it() -> None:
    there = devices()
    there.take(HALF, 0, ("uid-p-0",), later=False)
    there.take(THIRD, 0, ("uid-p-0",), later=False)

    assert [there.postpone(HALF, 0, ("uid-p-0",)), there.postpone(THIRD, 0, ("uid-p-0",))] == [0, 1]
    assert room(there, Sharing(portion_ppm=100_000)) == (False, True)


def test_a_new_device_gets_a_name_that_is_not_in_use_on_the_node() -> None:
    assert choose(devices(device("uid-p-0", 10)), HALF, TWO_GPUS) == (("uid-p-1",), False)
