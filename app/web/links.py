"""Draws how the devices of a node reach each other: in the words of `nvidia-smi topo -m`, and as cliques."""

from collections.abc import Mapping

from app.model.layout import NVLINK_SCORE, Layout

PATHS: Mapping[int, str] = {10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "PSB"}
"""From what a PCIe path is worth to what nvidia-smi calls it; PSB (one board) is of older versions."""

SELF, UNKNOWN = "X", "?"


def nvlinks(layout: Layout, one: int, other: int) -> int:
    """Return how many NVLink connections there are between two devices."""
    return layout.scores[one][other] // NVLINK_SCORE


def path(layout: Layout, one: int, other: int) -> str:
    """Return the best path between two devices, as nvidia-smi writes it."""
    if one == other:
        return SELF
    count = nvlinks(layout, one, other)
    return f"NV{count}" if count else PATHS.get(layout.scores[one][other], UNKNOWN)


def cliques(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Divide the devices into sets in which every two are connected by NVLink, in order; who has no such is left out.

    Each device joins the first set that it can: this is a picture, and the largest sets take exponential time.
    """
    sets: list[list[int]] = []
    for device in range(layout.size):
        fitting = (each for each in sets if all(nvlinks(layout, device, other) for other in each))
        first = next(fitting, None)
        if first is None:
            sets.append([device])
        else:
            first.append(device)
    return tuple(tuple(each) for each in sets if len(each) > 1)
