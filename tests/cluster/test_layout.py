"""The connections between the devices of a node, as far as each device reports them."""

from typing import Any

import pytest

from app.cluster.decode.layout import layout_of


def device(uuid: str, **links: Any) -> dict[str, Any]:
    """Build a device with its links: `b=(2, "Node")` are two NVLinks to b, which shares the NUMA node."""
    stated = [{"uuid": other, "nvlinks": nvlinks, "ancestor": ancestor} for other, (nvlinks, ancestor) in links.items()]
    return {"uuid": uuid, "links": stated}


def scores(*devices: dict[str, Any]) -> list[list[int]] | None:
    found = layout_of(devices)
    return None if found is None else [list(row) for row in found.scores]


def test_the_score_of_a_pair_counts_its_nvlinks_and_what_it_shares_on_the_pcie_tree() -> None:
    assert scores(device("a", b=(2, "Switch")), device("b", a=(2, "Switch"))) == [[0, 250], [250, 0]]


def test_behind_a_switch_every_pair_has_the_links_of_its_devices_to_the_switch() -> None:
    names = "abcdefgh"
    every = [device(name, **{other: (18, "Node") for other in names if other != name}) for name in names]

    assert scores(*every) == [[0 if one == other else 1820 for other in range(8)] for one in range(8)]


def test_the_smaller_value_counts_if_two_devices_disagree() -> None:
    assert scores(device("a", b=(4, "Switch")), device("b", a=(2, "System"))) == [[0, 210], [210, 0]]
    assert scores(device("a", b=(4, "Switch")), device("b")) == [[0, 0], [0, 0]]


def test_an_unreported_connection_scores_zero() -> None:
    found = scores(device("a", b=(1, "Node")), device("b", a=(1, "Node")), device("c"))

    assert found == [[0, 120, 0], [120, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("devices", [[], [device("a"), device("b")], [{"uuid": "a"}, {"uuid": "b", "links": None}]])
def test_there_is_no_layout_if_no_device_reports_connections(devices: list[dict[str, Any]]) -> None:
    assert layout_of(devices) is None


@pytest.mark.parametrize("link", [(-1, "Node"), (37, "Node"), ("4", "Node"), (None, "Node"), (True, "Node")])
def test_an_impossible_number_of_links_counts_as_none(link: tuple[Any, str]) -> None:
    assert scores(device("a", b=link), device("b", a=link)) == [[0, 20], [20, 0]]


@pytest.mark.parametrize("ancestor", ["Moon", None, 7, ["Switch"]])
def test_an_unknown_ancestor_scores_zero(ancestor: Any) -> None:
    assert scores(device("a", b=(1, ancestor)), device("b", a=(1, ancestor))) == [[0, 100], [100, 0]]


def test_a_device_is_not_linked_to_itself_or_to_devices_elsewhere() -> None:
    assert scores(device("a", a=(4, "Switch"), z=(4, "Switch")), device("b")) == [[0, 0], [0, 0]]


def test_machines_of_one_kind_have_equal_layouts_whatever_the_names_of_their_devices() -> None:
    one = layout_of([device("a", b=(2, "Node")), device("b", a=(2, "Node"))])
    other = layout_of([device("c", d=(2, "Node")), device("d", c=(2, "Node"))])

    assert one == other
    assert hash(one) == hash(other)
    assert one != layout_of([device("a", b=(3, "Node")), device("b", a=(3, "Node"))])
