"""What readers with one set of rights see of the state. It is encoded once for all of them."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.model.live import SHARES, TABLES, WAITING, Row, table_of, unpacked
from app.model.reason import PHRASES, Reason
from app.model.sentence import Reader
from app.view.kept_state import Delta, KeptState
from app.view.packing import Piece

HIDDEN = "Names of other namespaces are hidden: the right to list pods in a namespace shows its names."
NO_QUEUES = "The queues are hidden: the right to list queues.scheduling.run.ai shows them."
LEFT_OUT = "{count} more PodGroups wait behind those that are shown; GET /api/v1/podgroups lists them."

STATE_LEVEL = 7
"""A state of 1.7 MB becomes 134 kB in 36 ms of CPU time; level 9 takes four times as long for a tenth less."""
END_OF_EVENT = Piece(b"\n\n")
ENCODED = 16
"""So many changes stay encoded for each set of rights."""

QUEUE_OF_SHARE, NAMESPACE_OF_SHARE, SINCE = (SHARES.index(name) for name in ("queue", "namespace", "since"))
QUEUE, NAMESPACE, NAME, PODS = (WAITING.index(name) for name in ("queue", "namespace", "name", "pods"))
REASON, SENTENCE = WAITING.index("reason"), WAITING.index("sentence")


@dataclass(frozen=True, slots=True)
class Sight:
    """One set of rights."""

    namespaces: frozenset[str] | None = None
    """Whose names are shown; None means all."""
    queues: bool = True
    """Whether queues are shown."""
    unknown: str = ""
    """Why more namespaces could be shown than are."""

    @property
    def digest(self) -> str:
        """A text that differs between sets of rights."""
        named = None if self.namespaces is None else sorted(self.namespaces)
        return hashlib.sha256(orjson.dumps([named, self.queues, self.unknown])).hexdigest()[:8]

    def sees(self, namespace: str) -> bool:
        """Whether the names in a namespace are shown."""
        return self.namespaces is None or namespace in self.namespaces

    def share(self, row: Row) -> Row:
        """Return a row of the table of shares for these readers."""
        if self.sees(row[NAMESPACE_OF_SHARE]):
            return row
        hidden = [*row]
        hidden[NAMESPACE_OF_SHARE:SINCE] = ["", "", ""]
        if not self.queues:
            hidden[QUEUE_OF_SHARE] = ""
        return hidden

    def waiting(self, row: Row) -> Row:
        """Return a row of the table of waiting PodGroups for these readers."""
        shown = [*row]
        if self.sees(row[NAMESPACE]):
            shown[SENTENCE] = unpacked(row[SENTENCE], Reader(self.namespaces))
            return shown
        # A sentence names its pods and sub-groups, and repeats what kube-scheduler said of their volumes.
        shown[SENTENCE] = _phrase(row[REASON])
        shown[NAMESPACE] = shown[NAME] = ""
        if not self.queues:
            shown[QUEUE] = ""
        return shown

    def rows(self, table: str, rows: Iterable[Row]) -> Sequence[Row]:
        """Return rows of any table for these readers."""
        redacted: Callable[[Row], Row] | None = {"shares": self.share, "waiting": self.waiting}.get(table)
        if table == "queues" and not self.queues:
            return []
        return list(rows) if redacted is None else [redacted(row) for row in rows]

    def incomplete(self, left_out: int) -> str | None:
        """Return what is missing, and which right shows it."""
        said = [
            HIDDEN if self.namespaces is not None else "",
            "" if self.queues else NO_QUEUES,
            self.unknown,
            LEFT_OUT.format(count=left_out) if left_out else "",
        ]
        return " ".join(filter(None, said)) or None


class Picture:
    """The state for one set of rights, encoded."""

    def __init__(self, kept: KeptState, sight: Sight) -> None:
        """Encode nothing yet."""
        self._kept = kept
        self.sight = sight
        self._digest = sight.digest
        self._state: tuple[str, Piece] = ("", Piece(b""))
        self._packing: asyncio.Future[bytes] | None = None
        self._deltas: dict[int, Piece] = {}
        self._of_epoch = ""

    @property
    def epoch(self) -> str:
        """Another text for each epoch and each set of rights: changes of one do not fit the state of another."""
        return f"{self._kept.epoch}{self._digest}"

    @property
    def id(self) -> str:
        """The id of the present state."""
        return f"{self.epoch}-{self._kept.tick}"

    def state(self) -> Piece:
        """Return the whole state as JSON."""
        if self._state[0] != self.id:
            self._state, self._packing = (self.id, Piece(self._encoded(), level=STATE_LEVEL)), None
        return self._state[1]

    async def packed_state(self) -> Piece:
        """Return the whole state as it is now, compressed in a thread once for all that ask."""
        state = self.state()
        if self._packing is None:
            self._packing = asyncio.ensure_future(asyncio.to_thread(getattr, state, "packed"))
        # One of those that ask may leave.
        await asyncio.shield(self._packing)
        return state

    def _encoded(self) -> bytes:
        kept, sight = self._kept, self.sight
        said = {
            "apiVersion": "leeboard.dev/v1alpha1",
            "kind": "State",
            "epoch": self.epoch,
            "tick": kept.tick,
            **kept.scalars,
            "incomplete": sight.incomplete(kept.scalars["leftOut"]),
            "tables": {
                name: table_of(sight.rows(name, kept.tables[name].values()), columns)
                for name, columns in TABLES.items()
            },
        }
        return orjson.dumps(said)

    def changes(self, after: int, *, most: int) -> Sequence[Piece] | None:
        """Return the events for a client that has the state of this tick; None when it needs the whole state."""
        if self._state[0] != self.id:
            # Nobody asks for an earlier state again, and there may be hundreds of sets of rights.
            self._state, self._packing = ("", Piece(b"")), None
        deltas = self._kept.since(after)
        return None if deltas is None or len(deltas) > most else [*map(self._delta, deltas)]

    def whole(self) -> Sequence[Piece]:
        """Return the event with the whole state."""
        return Piece(_head("state", self.id)), self.state(), END_OF_EVENT

    def _delta(self, delta: Delta) -> Piece:
        if self._of_epoch != self.epoch:
            self._of_epoch = self.epoch
            self._deltas.clear()
        found = self._deltas.get(delta.tick)
        if found is None:
            found = Piece(_head("delta", f"{self.epoch}-{delta.tick}") + orjson.dumps(self._shown(delta)) + b"\n\n")
            self._deltas[delta.tick] = found
            if len(self._deltas) > ENCODED:
                del self._deltas[min(self._deltas)]
        return found

    def _shown(self, delta: Delta) -> Mapping[str, Any]:
        said: dict[str, Any] = {"tick": delta.tick, **delta.scalars}
        if "leftOut" in said:
            said["incomplete"] = self.sight.incomplete(said["leftOut"])
        tables: dict[str, Any] = {}
        for name, (rows, gone) in delta.tables.items():
            if name == "queues" and not self.sight.queues:
                continue
            shown = {"set": self.sight.rows(name, rows), "delete": gone, "move": delta.moved.get(name)}
            tables[name] = {key: value for key, value in shown.items() if value}
        return {**said, "tables": tables}


def _head(name: str, identity: str) -> bytes:
    return b"event: %s\nid: %s\ndata: " % (name.encode(), identity.encode())


def _phrase(reason: str) -> str:
    try:
        phrase = PHRASES[Reason(reason)]
    except (KeyError, ValueError):
        return "It waits."
    return f"{phrase[:1].upper()}{phrase[1:]}."
