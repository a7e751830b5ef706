"""Machines with invalid answers of the driver: the rest is still reported, and the API server accepts all of it."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.agent.driver import MOST_DEVICES, Driver
from app.agent.readings import DeviceReading, DriverFailure, Memory, Process
from app.model.device import Health
from tests.agent.conftest import Furnish
from tests.agent.machines import NO_PERMISSION, UNKNOWN, XID, printed
from tests.agent.schema import breaches, status_schema
from tests.agent.test_driver import Attentive, attentive

__all__ = ["attentive"]
NO_NUMBER = str(2**64 - 1)
"""What drivers write where they have no number."""
VERSION_3 = "0x03000028"


def nvlinks(devices: tuple[DeviceReading, ...]) -> set[int]:
    return {link.nvlinks for device in devices for link in device.links}


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ({"device.3.uuid": "GPU-00000002-1234-5678-9abc-00000000abc2"}, "index 3"),
        ({"device.3.uuid": ""}, "index 3"),
        ({"device.3.uuid": "GPU 3?"}, "index 3"),
    ],
    ids=["another's", "empty", "of odd characters"],
)
def test_a_device_without_a_uuid_is_reported_as_a_failure_and_has_no_links(
    said: Mapping[str, str], missing: str, loaded: Furnish
) -> None:
    machine = loaded("dgx-a100")
    machine.tells(said)

    status = printed(machine)["status"]

    assert breaches(status, status_schema()) == []
    assert [device["index"] for device in status["devices"]] == [0, 1, 2, 4, 5, 6, 7]
    assert all(len(device["links"]) == 6 for device in status["devices"])
    assert [(each["call"], each["device"]) for each in status["failures"]] == [("nvmlDeviceGetUUID", missing)]


def test_impossible_numbers_are_left_out_and_named(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    machine.sets(0, memory__used=NO_NUMBER, compute=f"1:{2**63} 2:{2**20}")
    machine.sets(1, memory__total=NO_NUMBER)
    machine.sets(2, memory__reserved=NO_NUMBER)

    look = driver.read()

    first, second, third, _ = look.devices
    assert first.memory == Memory(total_mib=81920, used_mib=None, reserved_mib=512)
    assert first.processes == (Process(1, None), Process(2, 1))
    assert (second.memory, second.health) == (None, Health.UNKNOWN)
    assert third.memory == Memory(total_mib=81920, used_mib=10, reserved_mib=None)
    assert look.failures == tuple(
        DriverFailure("nvmlDeviceGetMemoryInfo_v2", "no device has so much memory", machine.uuid(each))
        for each in range(3)
    )


def test_invalid_texts_are_left_out(loaded: Furnish) -> None:
    machine = loaded("pcie-one-bridge")
    odd = b"driver 55\xff0\ndevice.0.name A\xff100\ndevice.1.pci 0000:08:00.\xff\ndevice.2.uuid GPU-\xff\n"
    machine.path.write_bytes(odd + machine.path.read_bytes())

    status = printed(machine)["status"]

    assert breaches(status, status_schema()) == []
    assert [device.get("pciBusId") for device in status["devices"]] == [
        "00000000:07:00.0",
        "00000000:08:00.0",
        "00000000:0A:00.0",
    ]
    assert "product" not in status["devices"][0]
    assert {each["call"] for each in status["failures"]} == {
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
    }


@pytest.mark.parametrize("count", [100, 4_000_000_000])
def test_of_more_devices_than_fit_in_a_gpunode_the_first_are_reported(
    count: int, loaded: Furnish, driver: Driver
) -> None:
    machine = loaded("hgx-h100")
    machine.tells({"count": str(count)})

    look = driver.read()

    assert [device.index for device in look.devices] == list(range(8))
    assert look.failures == (
        DriverFailure("nvmlDeviceGetCount", f"{count} devices, of which the first {MOST_DEVICES} are read"),
        *sorted(
            DriverFailure("nvmlDeviceGetUUID", "it has no UUID", f"index {index}") for index in range(8, MOST_DEVICES)
        ),
    )


def test_more_instances_than_a_device_can_have_are_not_read(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("mig")
    machine.sets(0, parts=4_000_000_000)

    (device,) = driver.read().devices

    assert device.mig is not None
    assert len(device.mig.instances) == 2


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_driver_that_fails_occasionally_hides_no_device_and_invents_no_link(
    every: int, loaded: Furnish, driver: Driver
) -> None:
    machine = loaded("dgx-a100")
    machine.tells({"every": str(every)})

    looks = [driver.read() for _ in range(3)]

    assert [[device.index for device in look.devices] for look in looks] == [list(range(8))] * 3
    assert all(max(nvlinks(look.devices)) <= 12 for look in looks)
    assert {failure.error for look in looks for failure in look.failures} == {"Unknown Error"}


def test_errors_without_a_text_have_a_number(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("desktop")
    machine.fails("nvmlDeviceGetName", 7777)

    assert driver.read().failures == (DriverFailure("nvmlDeviceGetName", "error 7777", machine.uuid(0)),)


def test_devices_with_one_address_have_no_links_to_it(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    machine.sets(1, pci="00000000:0A:00.0")  # that of device 3
    machine.tells({f"device.0.link.{number}.pci": "00000000:0A:00.0" for number in range(12)})

    assert nvlinks(driver.read().devices) == {0}


def test_the_identity_of_a_device_is_read_again_until_it_is_known(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    for call in ("Name", "PciInfo", "MinorNumber"):
        machine.fails(f"nvmlDeviceGet{call}", UNKNOWN, 1)
    driver.read()
    machine.forgets(*(f"fail.nvmlDeviceGet{call}.1" for call in ("Name", "PciInfo", "MinorNumber")))

    look = driver.read()

    device = look.devices[1]
    assert (device.product, device.pci_bus_id, device.minor) == ("NVIDIA A100 80GB PCIe", "00000000:08:00.0", 1)
    assert look.failures == ()


def test_a_device_that_was_found_late_reports_its_errors_too(loaded: Furnish, attentive: Attentive) -> None:
    machine = loaded("pcie-one-bridge")
    machine.fails("nvmlDeviceGetHandleByIndex", UNKNOWN, 2)
    assert len(attentive.driver.read().devices) == 3
    machine.forgets("fail.nvmlDeviceGetHandleByIndex.2")
    assert len(attentive.driver.read().devices) == 4

    machine.happens(2, XID, 79)

    assert [device.health_reason for device in attentive.devices_after_event()] == [
        "",
        "",
        "it has reported XID 79",
        "",
    ]


def test_events_that_were_refused_once_are_requested_again(loaded: Furnish, attentive: Attentive) -> None:
    machine = loaded("desktop")
    machine.fails("nvmlEventSetCreate", UNKNOWN)
    assert [each.call for each in attentive.driver.read().failures] == ["nvmlEventSetCreate"]
    machine.forgets("fail.nvmlEventSetCreate")
    assert attentive.driver.read().failures == ()

    machine.happens(0, XID, 79)

    assert attentive.devices_after_event()[0].health is Health.UNHEALTHY


def test_links_to_a_lost_gpu_are_not_taken_for_links_to_a_switch(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("dgx-1v")
    whole = {device.uuid: device.links for device in driver.read().devices}
    lost = machine.uuid(4)
    driver.close()
    machine.fails("*", 15, 4)
    machine.fails("nvmlDeviceGetNvLinkRemoteDeviceType", 3)  # as inside virtual machines

    devices = driver.read().devices

    for device in devices:
        left = {link.uuid: link.nvlinks for link in whole[device.uuid] if link.uuid != lost}
        assert {link.uuid: link.nvlinks for link in device.links} == left


def test_a_fabric_is_read_from_a_driver_that_knows_its_third_form_only(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("hgx-h100")
    machine.tells({f"device.{index}.fabric.form": VERSION_3 for index in range(8)})

    look = driver.read()

    assert {device.fabric.clique for device in look.devices if device.fabric} == {7}
    assert look.failures == ()


def test_memory_that_may_not_be_read_does_not_make_a_device_unhealthy(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("mig")
    machine.fails("nvmlDeviceGetMemoryInfo_v2", NO_PERMISSION)

    look = driver.read()

    assert look.devices[0].health is Health.HEALTHY
    assert [(each.call, each.error) for each in look.failures] == [
        ("nvmlDeviceGetMemoryInfo_v2", "Insufficient Permissions")
    ]


def test_remapped_errors_do_not_count_while_the_rows_cannot_be_read(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("dgx-a100")
    machine.sets(0, ecc=3)
    machine.fails("nvmlDeviceGetRemappedRows", UNKNOWN, 0)

    look = driver.read()

    assert look.devices[0].health is Health.HEALTHY
    assert [each.call for each in look.failures] == ["nvmlDeviceGetRemappedRows"]


def test_reports_of_odd_machines_match_the_schema(loaded: Furnish) -> None:
    machine = loaded("mig")
    machine.sets(0, minor=2**32 - 1, ecc=NO_NUMBER, memory__used=NO_NUMBER, compute=f"1:{2**64 - 2}")
    machine.sets(0, part__0__mib=10**17)

    status: dict[str, Any] = printed(machine)["status"]

    assert breaches(status, status_schema()) == []
    assert len(status["devices"][0]["mig"]["instances"]) == 2
