"""Frames without a socket: what the deciding process tells the view, as it arrives there."""

from typing import Any

import orjson

from app.control.report.live_state import LiveState, Tables
from app.model.live import TABLES, Row
from app.service.shell import Shell
from app.view.kept_state import EMPTY, KeptState
from app.view.messages import written
from app.view.sight import Picture


def through(message: dict[str, Any]) -> Any:
    """Return a message as the other process reads it."""
    return orjson.loads(written(message)[4:])


def tell(shell: Shell, live: LiveState, kept: KeptState, *, is_full: bool) -> None:
    """Make a frame and take it in."""
    tables: Tables = {}
    with shell.reading():
        if is_full:
            live.begin()
        live.note()
        while live.advance(tables):
            pass
        line = live.line()
    live.take_line(line(), tables)
    kept.add_part(through(dict(tables)))
    scalars = {**EMPTY, "standby": "", "active": True, "summary": live.summary(), "leftOut": live.left_out}
    kept.take(through({"full": is_full, **scalars}))


def frame(*, full: bool = False, **scalars: Any) -> dict[str, Any]:
    return {"full": full, "standby": "", **EMPTY, **scalars}


def events(picture: Picture, after: int, *, most: int) -> bytes:
    """Return what a client is sent that has the state of this tick."""
    changes = picture.changes(after, most=most)
    return b"".join(piece.plain for piece in (picture.whole() if changes is None else changes))


class Client:
    """A client of the stream: it has a state, and applies changes to it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.tables: dict[str, dict[str, Row]] = {}
        self.id = ""
        self.states = self.deltas = 0

    def hear(self, events: bytes) -> None:
        for event in events.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in event.splitlines() if not line.startswith(":"))
            if lines:
                self.id = lines["id"]
                {"state": self._take, "delta": self._change}[lines["event"]](orjson.loads(lines["data"]))

    def _take(self, data: dict[str, Any]) -> None:
        tables = data.pop("tables")
        assert {name: tuple(table["columns"]) for name, table in tables.items()} == TABLES
        self.tables = {name: {row[0]: row for row in table["rows"]} for name, table in tables.items()}
        self.state = data
        self.states += 1

    def _change(self, data: dict[str, Any]) -> None:
        assert data["tick"] == self.state["tick"] + 1
        for name, change in data.pop("tables").items():
            table = self.tables[name]
            for key in change.get("delete", ()):
                del table[key]
            table.update((row[0], row) for row in change.get("set", ()))
            for key, position in change.get("move", ()):
                table[key] = [key, position, *table[key][2:]]
        self.state |= data
        self.deltas += 1

    @property
    def whole(self) -> dict[str, Any]:
        return {**self.state, "tables": self.tables}
