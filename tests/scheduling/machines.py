"""Machines whose devices are connected as on real ones, and the choices of go-gpuallocator on them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.model.layout import Layout

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "nvlink.json").read_text())


def layout(rows: Iterable[Iterable[int]]) -> Layout:
    return Layout(tuple(tuple(row) for row in rows))


def machine(name: str) -> Layout:
    return layout(RECORDED["scores"][name])


def mask(devices: Iterable[int]) -> int:
    return sum(1 << device for device in devices)


def devices(mask: int) -> list[int]:
    return [device for device in range(mask.bit_length()) if mask >> device & 1]
