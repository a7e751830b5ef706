"""Draws tables, bars and sentences as plain text, never wider than the given width."""

import io

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

BAR_CELLS = 8
MIB_A_GIB = 1024
UNKNOWN = "?"


def table(*headings: str) -> Table:
    """Create a table without lines. Columns whose heading starts with `>` are right-aligned. Long cells are folded."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    for heading in headings:
        is_number = heading.startswith(">")
        made.add_column(Text(heading.lstrip(">")), justify="right" if is_number else "left", overflow="fold")
    return made


def row(lines: Table, *cells: str) -> None:
    """Add a row. Control characters in cells are replaced."""
    lines.add_row(*(Text(plain(cell)) for cell in cells))


def drawn(what: RenderableType, width: int) -> str:
    """Return the text, without spaces at the ends of its lines."""
    page = io.StringIO()
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(what)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def folded(sentences: list[str], width: int) -> str:
    """Return these sentences, each on its own lines."""
    return drawn(Text("\n".join(map(plain, sentences))), width) if sentences else ""


def bar(part: int | None, whole: int | None) -> str:
    """Return a bar for this part of the whole; empty when one of them is unknown."""
    if part is None or not whole:
        return ""
    full = min(BAR_CELLS, (part * BAR_CELLS + whole // 2) // whole)
    return "█" * full + "░" * (BAR_CELLS - full)


def gib(mib: int | None) -> str:
    """Return an amount of memory in GiB, with one decimal."""
    return UNKNOWN if mib is None else f"{mib / MIB_A_GIB:.1f}"


def plain(text: str) -> str:
    """Return the text with all control characters replaced."""
    # Products and messages come from nodes, which may be under foreign control.
    return "".join(char if char.isprintable() else UNKNOWN for char in text)
