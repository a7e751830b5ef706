"""The connections of the devices of a machine, where the driver's answers are less tidy than in `test_machines`."""

import pytest

from app.agent.driver import LINKS_EVERY, Driver
from app.agent.readings import DriverFailure
from tests.agent.conftest import Furnish
from tests.agent.machines import NVLINK, UNKNOWN


def test_a_failing_link_is_named_in_every_reading_although_links_are_read_less_often(
    loaded: Furnish, driver: Driver
) -> None:
    machine = loaded("pcie-one-bridge")
    machine.fails("nvmlDeviceGetNvLinkState", UNKNOWN, 0)

    looks = [driver.read() for _ in range(LINKS_EVERY + 1)]

    assert {look.failures for look in looks} == {
        (DriverFailure("nvmlDeviceGetNvLinkState", "Unknown Error", machine.uuid(0)),)
    }
    assert {link.nvlinks for device in looks[0].devices for link in device.links} == {0}


def test_a_link_that_goes_down_is_seen_by_the_next_reading_of_links(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("hgx-h100")
    driver.read()
    machine.tells({"device.0.link.0.down": "1"})

    looks = [driver.read().devices for _ in range(LINKS_EVERY)]

    assert {link.nvlinks for link in looks[-1][0].links} == {17}
    assert sorted(link.nvlinks for link in looks[-1][1].links) == [17, 18, 18, 18, 18, 18, 18]


def test_two_ends_that_disagree_give_the_smaller_value(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    machine.tells({f"device.1.link.{number}.down": "1" for number in range(8)})
    machine.tells({f"pair.1.0.p2p.{NVLINK}": "5"})

    one, other, *_ = driver.read().devices

    assert [(link.nvlinks, link.p2p) for link in one.links if link.uuid == other.uuid] == [(4, "PCIe")]
    assert [(link.nvlinks, link.p2p) for link in other.links if link.uuid == one.uuid] == [(4, "PCIe")]


def test_devices_behind_a_switch_that_do_not_reach_each_other_have_no_links(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("hgx-h100")
    machine.tells({f"pair.0.{other}.p2p.{NVLINK}": "5" for other in range(1, 8)})

    first, second, *_ = driver.read().devices

    assert {link.nvlinks for link in first.links} == {0}
    assert sorted(link.nvlinks for link in second.links) == [0, 18, 18, 18, 18, 18, 18]


def test_an_address_in_another_notation_is_the_same_device(loaded: Furnish, driver: Driver) -> None:
    machine = loaded("pcie-one-bridge")
    machine.tells({f"device.0.link.{number}.pci": "0000:08:00.0" for number in range(12)})

    one, *_ = driver.read().devices

    assert [link.nvlinks for link in one.links] == [12, 0, 0]


@pytest.mark.parametrize(
    ("said", "joined"),
    [({"fabric__state": "2"}, 0), ({"fabric__cluster": "0" * 32}, 0), ({}, 1)],
    ids=["not yet", "not attached", "completed"],
)
def test_a_fabric_counts_once_it_is_joined(said: dict[str, str], joined: int, loaded: Furnish, driver: Driver) -> None:
    machine = loaded("hgx-h100")
    machine.sets(0, **said)

    devices = driver.read().devices

    assert sum(device.fabric is not None for device in devices[:1]) == joined
