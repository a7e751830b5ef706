"""Draws the report: for each scenario a bar for each scheduler, with minimum and maximum."""

from pathlib import Path
from typing import Any

from loadtest.report import Report

COLUMNS = 2
OURS, OTHERS = "tab:blue", "tab:gray"


class MatplotlibMissingError(RuntimeError):
    """Nothing can be drawn; the message is one sentence."""


def draw(report: Report, to: Path) -> None:
    """Write the picture; raises `MatplotlibMissingError` where the package is not installed."""
    plt = pyplot()
    names = [name for name in report.scenarios if any(row.scenario == name for row in report.rows)]
    if not names:
        return
    height = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(height, COLUMNS, figsize=(14, 1 + 3 * height), squeeze=False, layout="constrained")
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        _draw_scenario(axis, report, name)
    figure.savefig(to, dpi=100)
    plt.close(figure)


def _draw_scenario(axis: Any, report: Report, name: str) -> None:
    found = [row for row in report.rows if row.scenario == name]
    for place, row in enumerate(found):
        spread = row.spread("pods_per_s")
        if spread is None:
            axis.text(0, place, " failed", va="center")
            continue
        whiskers = [[spread.median - spread.low], [spread.high - spread.median]]
        color = OURS if row.contender.startswith("Leeboard") else OTHERS
        axis.barh(place, spread.median, xerr=whiskers, color=color, capsize=3)
    axis.set_yticks(range(len(found)), [row.contender for row in found])
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlabel("pods/s")
    axis.set_title(f"{name}: {report.scenarios[name]}", fontsize=9, wrap=True)


def pyplot() -> Any:
    """Return matplotlib for files; raises `MatplotlibMissingError` where the package is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - of the group `load`, which few commands install
    except ImportError as missing:
        sentence = "No picture was drawn, since matplotlib is not installed; `make bench-cluster` installs it."
        raise MatplotlibMissingError(sentence) from missing
    # Without a display.
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above, and only after the line above

    return plt
