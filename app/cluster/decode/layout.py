"""Reads how the devices of a node are connected, from the links that each of them reports."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from app.cluster.decode.reading import Fields
from app.model.layout import NVLINK_SCORE, Layout, Scores

PCIE_SCORES: Mapping[str, int] = {
    "System": 10,
    "Node": 20,
    "HostBridge": 30,
    "Switches": 40,
    "Switch": 50,
    "Board": 60,
}
"""The score of the nearest common point of two devices on the PCIe tree (go-gpuallocator's P2P link scores)."""

MOST_LINKS = 64
"""Of one device: one to each other."""

MOST_NVLINKS = 36


def layout_of(devices: Sequence[Fields]) -> Layout | None:
    """Return the connections between the devices, in their order; None when no device reports any.

    If the two devices of a pair report different links, the lower score counts: an asymmetric matrix crashed HAMi.
    """
    stated = [_stated(each) for each in devices]
    if not any(stated):
        return None
    uuids = [str(each.get("uuid")) for each in devices]
    rows = [tuple(_pair(stated, uuids, one, other) for other in range(len(uuids))) for one in range(len(uuids))]
    return _shared(tuple(rows))


def _stated(device: Fields) -> dict[str, int]:
    links = device.get("links")
    if not isinstance(links, list):
        return {}
    return {str(link.get("uuid")): _worth(link) for link in links[:MOST_LINKS] if isinstance(link, dict)}


def _worth(link: Fields) -> int:
    nvlinks, ancestor = link.get("nvlinks"), link.get("ancestor")
    count = nvlinks if type(nvlinks) is int and 0 <= nvlinks <= MOST_NVLINKS else 0  # JSON: true is no number
    return NVLINK_SCORE * count + (PCIE_SCORES.get(ancestor, 0) if isinstance(ancestor, str) else 0)


def _pair(stated: Sequence[Mapping[str, int]], uuids: Sequence[str], one: int, other: int) -> int:
    if one == other:
        return 0
    return min(stated[one].get(uuids[other], 0), stated[other].get(uuids[one], 0))


# Machines of one kind share one value.
@lru_cache(maxsize=256)
def _shared(scores: Scores) -> Layout:
    return Layout(scores)
