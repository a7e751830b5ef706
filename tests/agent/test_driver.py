"""A driver that is loaded, unloaded and reports while the agent runs; in this process, through pynvml's own loading."""

import queue
import threading
from collections.abc import Iterator
from contextlib import closing

import pynvml
import pytest

from app.agent import events
from app.agent.driver import LINKS_EVERY, Driver
from app.agent.readings import DeviceReading, DriverFailure, Memory, Process
from app.model.device import Health
from tests.agent.conftest import Furnish
from tests.agent.machines import GPU_IS_LOST, MIB, RECOVERY_ACTION, UNKNOWN, XID

XID_OFF_THE_BUS = 79


class Attentive:
    """A driver whose events are waited for."""

    def __init__(self, *ignored: int) -> None:
        self.reported = threading.Event()
        self.driver = Driver(ignored_xids=frozenset(ignored), reported=self.reported)

    def devices_after_event(self) -> tuple[DeviceReading, ...]:
        """Wait until the driver has reported an event, and read the devices."""
        assert self.reported.wait(timeout=10)
        self.reported.clear()
        return self.driver.read().devices


@pytest.fixture
def attentive(loaded: Furnish) -> Iterator[Attentive]:  # noqa: ARG001 - closed before the library is looked at
    attentive = Attentive(32)
    with closing(attentive.driver):
        yield attentive


def test_a_driver_that_is_unloaded_and_loaded_is_read_again(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    assert len(driver.read().devices) == 1

    machine.unloads_driver()
    gone = [driver.read() for _ in range(3)]
    machine.loads_driver()
    back = driver.read()

    assert [(look.message, look.devices) for look in gone] == [("the NVIDIA driver is not loaded", ())] * 3
    assert (back.message, len(back.devices)) == ("", 1)


def test_a_driver_restart_between_two_readings_is_noticed(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    driver.read()
    machine.fails("nvmlSystemGetDriverVersion", 1)

    uninitialized = driver.read()
    machine.forgets("fail.nvmlSystemGetDriverVersion")

    assert uninitialized.message == "the NVIDIA driver is gone: Uninitialized"
    assert len(driver.read().devices) == 1


def test_devices_added_while_the_driver_was_open_are_found(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    machine.tells({"count": "3"})
    assert len(driver.read().devices) == 3

    machine.tells({"count": "4"})

    assert [device.uuid for device in driver.read().devices] == [machine.uuid(index) for index in range(4)]


def test_a_gpu_that_is_lost_during_a_reading_keeps_its_name(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    driver.read()

    machine.fails("*", GPU_IS_LOST, 2)
    look = driver.read()

    assert [(device.uuid, device.health) for device in look.devices] == [
        (machine.uuid(0), Health.HEALTHY),
        (machine.uuid(1), Health.HEALTHY),
        (machine.uuid(2), Health.UNHEALTHY),
        (machine.uuid(3), Health.HEALTHY),
    ]
    assert look.failures == (DriverFailure("nvmlDeviceGetMemoryInfo_v2", "GPU is lost", machine.uuid(2)),)


def test_a_device_whose_memory_cannot_be_read_is_not_trusted(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    machine.fails("nvmlDeviceGetMemoryInfo_v2", UNKNOWN)

    (device,) = driver.read().devices

    assert (device.health, device.health_reason) == (Health.UNKNOWN, "its memory cannot be read: Unknown Error")


def test_an_xid_makes_a_device_unhealthy_at_once_and_for_good(loaded: Furnish, attentive: Attentive) -> None:
    machine = loaded("pcie-one-bridge")
    attentive.driver.read()

    machine.happens(1, XID, XID_OFF_THE_BUS)
    attentive.devices_after_event()
    machine.happens(1, XID, 48)
    devices = attentive.devices_after_event()

    assert [device.health_reason for device in devices] == ["", "it has reported XID 48, 79", "", ""]
    assert devices[1].health is Health.UNHEALTHY


def test_a_driver_that_is_loaded_again_has_forgotten_its_xids(loaded: Furnish, attentive: Attentive) -> None:
    machine = loaded("desktop")
    attentive.driver.read()
    machine.happens(0, XID, XID_OFF_THE_BUS)
    attentive.devices_after_event()

    machine.unloads_driver()
    attentive.driver.read()
    machine.loads_driver()

    assert [device.health for device in attentive.driver.read().devices] == [Health.HEALTHY]


def test_an_xid_without_a_device_counts_for_all(loaded: Furnish, attentive: Attentive) -> None:
    machine = loaded("pcie-one-bridge")
    attentive.driver.read()

    machine.happens(-1, XID, XID_OFF_THE_BUS)

    assert {device.health for device in attentive.devices_after_event()} == {Health.UNHEALTHY}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 32])
def test_xids_of_applications_and_ignored_xids_mean_nothing(xid: int, loaded: Furnish, attentive: Attentive) -> None:
    machine = loaded("desktop")
    attentive.driver.read()

    machine.happens(0, XID, xid)
    machine.happens(0, RECOVERY_ACTION)  # comes after it, and is not ignored

    assert [device.health for device in attentive.devices_after_event()] == [Health.HEALTHY]


def test_events_that_cannot_be_waited_for_cause_only_one_reading(
    loaded: Furnish, attentive: Attentive, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = loaded("desktop")
    waits: queue.SimpleQueue[None] = queue.SimpleQueue()
    wait = pynvml.nvmlEventSetWait_v2

    def counted(events: object, timeout_ms: int) -> object:
        waits.put(None)
        return wait(events, timeout_ms)

    # Counts failed waits, which are not reported: this shows when the next one has begun.
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", counted)
    monkeypatch.setattr(events, "WAIT_MS", 1)
    machine.fails("nvmlEventSetWait", UNKNOWN)

    attentive.driver.read()
    attentive.devices_after_event()
    for _ in range(4):
        waits.get(timeout=10)

    assert not attentive.reported.is_set()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"rows": "0 1 0 1"}, "a row of its memory could not be remapped"),
        ({"rows": "0 1 1 0"}, "a row of its memory is to be remapped: it must be reset"),
        ({"rows": "1 0 1 0"}, ""),  # what was corrected waits for no reset
        ({"rows": "0 1 0 0", "ecc": "5"}, ""),  # remapped: mended
        ({"ecc": "2"}, "2 uncorrected memory errors since the driver was loaded"),
        ({"retiring": "1"}, "a page of its memory is to be retired: it must be reset"),
        ({"field__230": "0"}, ""),
        ({"field__230": "2"}, "the driver requests recovery: reboot the node"),
        (
            {"field__230": "1", "rows": "0 1 0 1"},
            "the driver requests recovery: reset the GPU; a row of its memory could not be remapped",
        ),
    ],
)
def test_health_follows_from_the_counters(said: dict[str, str], reason: str, loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    machine.sets(0, **said)

    (device,) = driver.read().devices

    assert device.health_reason == reason
    assert device.health is (Health.UNHEALTHY if reason else Health.HEALTHY)


def test_processes_of_all_three_lists_are_counted_once(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    sizes = {"compute": f"10:{100 * MIB} 11:{5 * MIB + 1}", "graphics": f"10:{100 * MIB} 12", "mps": f"13:{MIB}"}
    machine.sets(0, **sizes)

    (device,) = driver.read().devices

    assert device.processes == (Process(10, 100), Process(11, 6), Process(12, None), Process(13, 1))


def test_memory_is_rounded_so_that_free_memory_is_never_overstated(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    machine.sets(0, memory__total=10 * MIB - 1, memory__used=2 * MIB + 1, memory__reserved=1)

    (device,) = driver.read().devices

    assert device.memory == Memory(total_mib=9, used_mib=3, reserved_mib=1)


def test_a_failure_of_every_device_is_reported_once(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    machine.fails("nvmlDeviceGetName", UNKNOWN)
    machine.fails("nvmlDeviceGetMinorNumber", UNKNOWN, 2)

    looks = [driver.read().failures for _ in range(LINKS_EVERY + 1)]

    assert set(looks) == {
        (
            DriverFailure("nvmlDeviceGetMinorNumber", "Unknown Error", machine.uuid(2)),
            DriverFailure("nvmlDeviceGetName", "Unknown Error"),
        )
    }
