"""The tables of the live view: their columns, and the form in which sentences travel to the process that redacts them.

A row is a list with one value for each column. The first value is its key.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.model.sentence import EVERYBODY, Name, Names, Part, Reader, Sentence, told

Row = list[Any]
Columns = tuple[str, ...]

NODES: Columns = ("key", "model", "gpus", "freeMilli", "domain", "state", "agent", "reason", "by")
DEVICES: Columns = ("key", "node", "index", "model", "memoryMib", "usedMib", "health", "clique", "profile")
SHARES: Columns = ("key", "device", "milli", "state", "queue", "namespace", "pod", "group", "since")
QUEUES: Columns = (
    "key",
    "parent",
    "displayName",
    "priority",
    "deservedMilli",
    "fairShareMilli",
    "allocatedMilli",
    "requestedMilli",
    "limitMilli",
    "waitingGroups",
    "waitingPods",
)
WAITING: Columns = (
    "key",
    "position",
    "queue",
    "namespace",
    "name",
    "pods",
    "minimum",
    "gpuMilli",
    "reason",
    "sentence",
    "since",
)

TABLES: Mapping[str, Columns] = {
    "nodes": NODES,
    "devices": DEVICES,
    "shares": SHARES,
    "queues": QUEUES,
    "waiting": WAITING,
}

GANG_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""The sizes of pods, in whole GPUs, for which `largestGangs` says how many fit."""


def packed(text: str) -> object:
    """Return a sentence as JSON: text, or a list of its parts where it depends on the reader."""
    if not isinstance(text, Sentence) or all(isinstance(part, str) for part in text.parts):
        return str(text)
    return [_packed(part) for part in text.parts]


def unpacked(sentence: object, reader: Reader) -> str:
    """Return the text of a packed sentence for this reader."""
    if isinstance(sentence, str):
        return sentence
    if not isinstance(sentence, list):
        return ""
    return told(Sentence(*(_unpacked(part) for part in sentence)), reader)


def _packed(part: Part) -> object:
    match part:
        case Name():
            return [part.namespace, part.name, part.otherwise]
        case Names():
            return [[one.namespace, one.name, one.otherwise] for one in part.names]
        case _:
            return str(part)


def _unpacked(part: Any) -> Part:
    if isinstance(part, str):
        return part
    if part and isinstance(part[0], list):
        return Names(tuple(Name(*one) for one in part))
    return Name(*part) if part else Names(())


def in_public(text: str) -> str:
    """Return the text of a sentence that every reader may see."""
    return told(text, EVERYBODY)


def changes(before: Mapping[str, Row], now: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that are new or differ, and the keys that are gone."""
    news = [row for key, row in now.items() if before.get(key) != row]
    return news, [key for key in before if key not in now]


def table_of(rows: Sequence[Row], columns: Columns) -> Mapping[str, object]:
    """Return a table as the API shows it."""
    return {"columns": columns, "rows": rows}
