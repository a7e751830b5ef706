"""Draws the links between a node's devices as `nvidia-smi topo -m` does, in blocks within the given width."""

from collections.abc import Mapping, Sequence
from typing import Any

Links = Mapping[str, Any]
"""The `links` of `/api/v1/gpus/{node}`."""

LEGEND = {
    "NV": "NV#: connected by # NVLinks",
    "PSB": "PSB: on one board",
    "PIX": "PIX: one PCIe switch",
    "PXB": "PXB: several PCIe switches",
    "PHB": "PHB: the PCIe host bridge",
    "NODE": "NODE: within a NUMA node",
    "SYS": "SYS: between NUMA nodes",
    "?": "?: unknown",
}
"""Nearest first."""

GAP = 2


def links_picture(names: Sequence[int], links: Links, *, width: int) -> str:
    """Return the matrix, its legend, and the cliques. `names` are the devices' numbers, in order."""
    if len(names) != len(links["paths"]) or len(names) <= 1:
        return ""
    return "\n".join([*_blocks(names, links, width), *_legend(links, width), _cliques(names, links)])


def _blocks(names: Sequence[int], links: Links, width: int) -> list[str]:
    first = max(len(_label(name)) for name in names)
    cell = max(len(each) for row in (*links["paths"], tuple(map(str, names))) for each in row) + GAP
    fitting = max(1, (width - first) // cell)
    lines: list[str] = []
    for start in range(0, len(names), fitting):
        columns = range(start, min(start + fitting, len(names)))
        lines += [""] if lines else []
        lines += ["".join([" " * first, *(f"{names[column]:>{cell}}" for column in columns)])]
        for row, name in enumerate(names):
            lines += ["".join([f"{_label(name):<{first}}", *(f"{links['paths'][row][at]:>{cell}}" for at in columns)])]
    return lines


def _label(name: int) -> str:
    return f"GPU {name}"


def _legend(links: Links, width: int) -> list[str]:
    """Return the legend of the words that occur, with as many entries per line as fit."""
    seen = {"NV" if path.startswith("NV") else path for row in links["paths"] for path in row}
    lines = [""]
    for word, text in LEGEND.items():
        if word in seen:
            longer = f"{lines[-1]}, {text}" if lines[-1] else text
            lines = [*lines[:-1], longer] if len(longer) <= width else [*lines, text]
    return lines


def _cliques(names: Sequence[int], links: Links) -> str:
    if not links["cliques"]:
        return "No two GPUs are connected by NVLink."
    return "All connected by NVLink: " + ", ".join(_span([names[one] for one in each]) for each in links["cliques"])


def _span(numbers: Sequence[int]) -> str:
    """Return the numbers of a clique; as a range when they are consecutive."""
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return "+".join(map(str, numbers))
