"""Draws tables, bars and sentences as plain text, never wider than the given width."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

BAR_CELLS = 8
MIB_A_GIB = 1024
UNKNOWN = "?"
GAP = 2
LEAST_CELL = 8
"""A column is not made narrower than this, whatever the width of the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How much a table shows."""

    is_wide: bool = False
    """Whether it has more columns."""
    has_headings: bool = True
    """Whether it has headings, and notes below."""


USUAL = Look()


class Table:
    """Rows of text in aligned columns without lines.

    Columns whose heading starts with `>` are right-aligned. Of a cell that is too long, the rest is on the next line;
    below a heading that starts with `-`, it is left out.
    """

    def __init__(self, *headings: str, has_headings: bool = True) -> None:
        self._right = [heading.startswith(">") for heading in headings]
        self._cut = [heading.startswith("-") for heading in headings]
        self._rows = [[heading.lstrip(">-") for heading in headings]] if has_headings else []

    def add(self, *cells: str) -> None:
        """Add a row. Control characters in cells are replaced."""
        self._rows.append([plain(cell) for cell in cells])

    def drawn(self, width: int) -> str:
        """Return the text, without spaces at the ends of its lines."""
        widths = self._widths(width)
        return "\n".join(line for row in self._rows for line in self._lines(row, widths))

    def _widths(self, width: int) -> list[int]:
        """Return the width of each column. When there is too little room, the widest columns become narrower first."""
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        room = width - GAP * (len(widths) - 1)
        over = sum(widths) - room
        while over > 0 and max(widths) > LEAST_CELL:
            widest = max(widths)
            columns = [at for at, each in enumerate(widths) if each == widest]
            next_widest = max((each for each in widths if each < widest), default=0)
            taken = min(max(1, over // len(columns)), widest - max(next_widest, LEAST_CELL)) or 1
            for at in columns:
                cut = min(taken, over)
                widths[at] -= cut
                over -= cut
        return widths

    def _lines(self, row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        columns = zip(row, widths, self._cut, strict=True)
        folded_cells = [[_shortened(cell, wide)] if cut else _folded(cell, wide) for cell, wide, cut in columns]
        for number in range(max(map(len, folded_cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in folded_cells]
            aligned = (
                f"{part:>{wide}}" if right else f"{part:<{wide}}"
                for part, wide, right in zip(parts, widths, self._right, strict=True)
            )
            yield (" " * GAP).join(aligned).rstrip()


def folded(sentences: Sequence[str], width: int) -> str:
    """Return these sentences, each on its own lines."""
    return "\n".join(line for each in sentences for line in _folded(plain(each), width))


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


def few(names: Collection[str], most: int = 5) -> str:
    """Return the first of these names, and how many more there are."""
    shown = sorted(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def _folded(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text.rstrip()]
    lead = len(text) - len(text.lstrip())
    indent = " " * min(lead, width // 2)
    # A name is not broken at its hyphens, only where it is too long.
    lines = wrap(text.strip(), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [line.rstrip() for line in lines]
