"""The state of the cluster as the last frame showed it, unredacted, and the changes that led to it."""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.model.live import SHARES, TABLES, WAITING, Row

KEPT = 120
"""So many changes are kept for clients that come back: a minute at two a second."""

QUIET = 10
"""One in so many frames is told although it changes nothing but the time: five seconds at two a second."""

SCALARS = ("time", "stale", "active", "plan", "summary", "leftOut")
NAMESPACED = {"shares": SHARES.index("namespace"), "waiting": WAITING.index("namespace")}
"""The tables whose rows belong to namespaces, and the column with the namespace."""
POSITION = WAITING.index("position")

EMPTY: Mapping[str, Any] = {
    "time": None,
    "stale": None,
    "active": False,
    "plan": {"at": None, "milliseconds": None},
    "summary": {
        "gpuMilli": dict.fromkeys(("total", "free", "allocated", "reserved", "unhealthy", "unmanaged"), 0),
        "largestGangs": [],
    },
    "leftOut": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one frame changed."""

    tick: int
    scalars: Mapping[str, Any]
    """Those that have changed."""
    tables: Mapping[str, tuple[Sequence[Row], Sequence[str]]] = field(default_factory=dict)
    """By table: whole rows that are new or differ, and keys of rows that are gone."""
    moved: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    """By table: the keys of rows that differ only in their position, and the position: one start moves many."""


class KeptState:
    """One state. Only the task that reads the frames changes it."""

    def __init__(self) -> None:
        """Start without a state: `tick` is 0 until the first frame."""
        self.epoch = secrets.token_hex(6)
        """Another text whenever the state does not follow from the one before."""
        self.tick = 0
        self.standby = ""
        """Why there is no state, while another replica decides."""
        self.scalars: Mapping[str, Any] = EMPTY
        self.tables: dict[str, dict[str, Row]] = {name: {} for name in TABLES}
        self._namespaces = Counter[str]()
        self._ring: deque[Delta] = deque(maxlen=KEPT)
        self._pending: list[Mapping[str, Any]] = []
        self._moved = asyncio.Event()
        self._quiet = 0
        """How many frames in a row have changed nothing but the time."""

    # Changing ---------------------------------------------------------------------------------------------------------

    def add_part(self, tables: Mapping[str, Any]) -> None:
        """Keep a part of the next frame."""
        self._pending.append(tables)

    def drop_parts(self) -> None:
        """Forget the parts of a frame that was never completed."""
        self._pending.clear()

    def take(self, frame: Mapping[str, Any]) -> None:
        """Take in the parts and this frame at once."""
        parts, self._pending = self._pending, []
        self.standby = frame["standby"]
        if self.standby:
            self._end()
            return
        if frame["full"] or not self.tick:
            self._begin()
        changed: dict[str, tuple[list[Row], list[str]]] = {}
        moved: dict[str, list[tuple[str, int]]] = {}
        for part in parts:
            for name, (rows, gone) in part.items():
                found = changed.setdefault(name, ([], []))
                news, moves = self._split(name, rows)
                found[0].extend(news)
                found[1].extend(gone)
                if moves:
                    moved.setdefault(name, []).extend(moves)
                self._put(name, rows, gone)
        scalars = {name: frame[name] for name in SCALARS}
        is_news = bool(changed) or any(scalars[name] != self.scalars.get(name) for name in SCALARS[1:])
        self._quiet = 0 if is_news else self._quiet + 1
        if is_news or self._quiet >= QUIET:
            self._quiet = 0
            self._advance(scalars, changed, moved)

    def note_silence(self, stale: Mapping[str, Any]) -> None:
        """Note that no frames arrive any more."""
        if self.tick and self.scalars["stale"] != stale:
            self._advance({**self.scalars, "stale": stale}, {}, {})

    def _end(self) -> None:
        """Forget a state that only the deciding replica could continue."""
        self._begin()
        self.tick, self.scalars = 0, EMPTY
        self._tell()

    def _begin(self) -> None:
        self.epoch = secrets.token_hex(6)
        self.tables = {name: {} for name in TABLES}
        self._namespaces.clear()
        self._ring.clear()
        self.scalars = {}

    def _split(self, name: str, rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[tuple[str, int]]]:
        """Return the rows of which more differs than the position, and the moves of the others."""
        if name != "waiting":
            return rows, ()
        news, moves, table = list[Row](), list[tuple[str, int]](), self.tables[name]
        for row in rows:
            before = table.get(row[0])
            if before is not None and before[POSITION + 1 :] == row[POSITION + 1 :]:
                moves.append((row[0], row[POSITION]))
            else:
                news.append(row)
        return news, moves

    def _put(self, name: str, rows: Iterable[Row], gone: Iterable[str]) -> None:
        table, column = self.tables[name], NAMESPACED.get(name)
        for row in rows:
            before = table.get(row[0])
            table[row[0]] = row
            if column is not None:
                self._count(before, row, column)
        for key in gone:
            before = table.pop(key, None)
            if column is not None:
                self._count(before, None, column)

    def _count(self, before: Row | None, now: Row | None, column: int) -> None:
        if now is not None:
            self._namespaces[now[column]] += 1
        if before is not None:
            self._namespaces[before[column]] -= 1
            if self._namespaces[before[column]] <= 0:
                del self._namespaces[before[column]]

    def _advance(
        self,
        scalars: Mapping[str, Any],
        tables: Mapping[str, tuple[list[Row], list[str]]],
        moved: Mapping[str, Sequence[tuple[str, int]]],
    ) -> None:
        before, self.scalars = self.scalars, scalars
        self.tick += 1
        changed = {name: value for name, value in scalars.items() if before.get(name, self) != value}
        self._ring.append(Delta(tick=self.tick, scalars=changed, tables=tables, moved=moved))
        self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces that are named in any row."""
        return frozenset(self._namespaces) - {""}

    def since(self, tick: int) -> Sequence[Delta] | None:
        """Return the changes after this tick of the present epoch; None when they are not kept any more."""
        if tick == self.tick:
            return ()
        if not self._ring or not self._ring[0].tick - 1 <= tick <= self.tick:
            return None
        return [delta for delta in self._ring if delta.tick > tick]

    async def moved(self) -> None:
        """Return after the next change."""
        await self._moved.wait()
