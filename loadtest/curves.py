"""Draws how the allocation grows with the arrivals: a picture for each trace, a line for each policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.plot import COLUMNS, pyplot

Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""By trace and policy: the allocation in percent by the percentage of GPUs that was requested so far, from 0 on."""


def draw_curves(curves: Curves, to: Path, *, start: int) -> None:
    """Draw from this percentage on; raises `MatplotlibMissingError` where the package is not installed."""
    plt = pyplot()
    height = -(-len(curves) // COLUMNS)
    figure, axes = plt.subplots(height, COLUMNS, figsize=(12, 1 + 4 * height), squeeze=False, layout="constrained")
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    for axis, (trace, lines) in zip(axes.flat, curves.items(), strict=False):
        _draw_trace(axis, trace, lines, start)
    figure.savefig(to)
    plt.close(figure)


def _draw_trace(axis: Any, trace: str, lines: Mapping[str, Sequence[float]], start: int) -> None:
    for policy, curve in lines.items():
        axis.plot(range(start, len(curve)), curve[start:], label=policy)
    axis.set_title(trace)
    axis.set_xlabel("requested GPUs, % of the cluster")
    axis.set_ylabel("allocated GPUs, %")
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
