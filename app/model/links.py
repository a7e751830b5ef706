"""Describes the links between a node's devices in the terms of `nvidia-smi topo -m`, and as cliques."""

from collections.abc import Mapping

from app.model.layout import NVLINK_SCORE, Layout

PATHS: Mapping[int, str] = {10: "SYS", 20: "NODE", 30: "PHB", 40: "PXB", 50: "PIX", 60: "PSB"}
"""The score of a PCIe path and nvidia-smi's name for it. PSB (same board) exists in older versions."""

SELF, UNKNOWN = "X", "?"


def nvlinks(layout: Layout, one: int, other: int) -> int:
    """Return the number of NVLinks between two devices."""
    return layout.scores[one][other] // NVLINK_SCORE


def path(layout: Layout, one: int, other: int) -> str:
    """Return the best path between two devices, as nvidia-smi writes it."""
    if one == other:
        return SELF
    count = nvlinks(layout, one, other)
    return f"NV{count}" if count else PATHS.get(layout.scores[one][other], UNKNOWN)


def cliques(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Divide the devices into sets in which NVLink connects every pair. Devices without NVLink are left out.

    Each device joins the first set that fits. The result is for display only; the largest sets take exponential time.
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
