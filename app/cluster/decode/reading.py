"""Reads fields of JSON whose shape is not guaranteed, and keeps the first problem."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from app.cluster.decode.sparing import shared
from app.model.quantity import QuantityError, json_integer, shown
from app.model.seam import RawObject

Fields = Mapping[str, Any]
NO_FIELDS: Fields = {}

LONGEST_NAME = 253
"""Of any Kubernetes object; a longer reference names nothing, and is not stored."""

MOST_ITEMS = 256
"""Of a list without its own limit: each item is read, and no valid object has more."""

LEAST = "this version of Leeboard cannot read it; its log says why"
"""The problem of an object whose complete reading failed because of a bug."""

VERSION_DIGITS = 20

LOWEST_INT32, HIGHEST_INT32 = -(1 << 31), (1 << 31) - 1


def int32(value: object) -> int:
    """Read a JSON integer of the size of Kubernetes' own, such as a priority."""
    return json_integer(value, minimum=LOWEST_INT32, maximum=HIGHEST_INT32)


class DecodeError(ValueError):
    """The object has no name or uid, so a problem cannot be reported for it."""


class ObjectReading:
    """The reading of one object; a field that is absent or null is never wrong by itself."""

    __slots__ = ("problem", "unread")

    def __init__(self) -> None:
        # Written by `doubt` and `miss` only, while one object is decoded.
        self.problem = ""
        self.unread = False
        """Whether the object may hold more than could be read."""

    def doubt(self, sentence: str) -> None:
        """Note what the owner must change; only the first sentence is kept, as one line whatever it quotes."""
        self.problem = self.problem or "".join(sign if sign.isprintable() else "?" for sign in sentence)

    def miss(self, sentence: str) -> None:
        """Note that something cannot be read which the object may hold."""
        self.doubt(sentence)
        self.unread = True

    def flag(self, parent: Fields, key: str) -> bool:
        """Return a boolean, false when there is none."""
        value = parent.get(key)
        if value is not None and not isinstance(value, bool):
            self.doubt(f"field {key} is {shown(value)}; write true or false")
        return value is True

    def mapping(self, parent: Fields, key: str) -> Fields:
        """Return a mapping, empty when there is none."""
        value = parent.get(key)
        if value is None:
            return NO_FIELDS
        if isinstance(value, dict):
            return value
        self.doubt(f"field {key} is {shown(value)}; write a mapping of names to values")
        return NO_FIELDS

    def mappings(self, parent: Fields, key: str, *, most: int = MOST_ITEMS) -> Sequence[Fields]:
        """Return a list of mappings, empty when there is none; other items and excessive items are left out."""
        value = parent.get(key)
        if value is None:
            return ()
        if isinstance(value, list) and len(value) > most:
            self.doubt(f"field {key} has {len(value)} items; write at most {most}")
            value = value[:most]
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return value
        self.doubt(f"field {key} is not readable; write a list in which every item is a mapping")
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()

    def text(self, parent: Fields, key: str) -> str:
        """Return a text, empty when there is none."""
        value = parent.get(key)
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        self.doubt(f"field {key} is {shown(value)}; write a text in quotes")
        return ""

    def name(self, parent: Fields, key: str) -> str:
        """Return the name of another object, empty when there is none."""
        value = self.text(parent, key)
        if len(value) <= LONGEST_NAME:
            return value
        self.doubt(f"field {key} has {len(value)} characters; a name has at most {LONGEST_NAME}")
        return ""

    def texts(self, parent: Fields, key: str) -> dict[str, str]:
        """Return a mapping of texts; values of other types are left out."""
        fields = self.mapping(parent, key)
        if len(fields) > MOST_ITEMS:
            self.doubt(f"field {key} has {len(fields)} entries; write at most {MOST_ITEMS}")
            return {}
        if all(isinstance(value, str) for value in fields.values()):
            return dict(fields)
        self.doubt(f"field {key} has a value that is not a text; write every value in quotes")
        return {name: value for name, value in fields.items() if isinstance(value, str)}

    def entries(self, parent: Fields, key: str, most: int) -> list[tuple[str, Any]]:
        """Return the entries of a mapping by name, none when there are too many."""
        fields = self.mapping(parent, key)
        if len(fields) > most:
            self.doubt(f"field {key} has {len(fields)} entries; write at most {most}")
            return []
        return sorted(fields.items())

    def seconds(self, parent: Fields, key: str) -> float:
        """Return a time in seconds since the epoch, 0 when there is none."""
        value = self.text(parent, key)
        try:
            return _epoch_s(value) if value else 0.0
        except (ValueError, OverflowError):
            self.doubt(f"field {key} is {shown(value)}; write a time such as 2026-01-31T12:00:00Z")
            return 0.0

    def number(self, what: str, value: object, parse: Callable[[object], int], *, otherwise: int = 0) -> int:
        """Return the result of `parse` for the value, or `otherwise` when there is none or it cannot be used."""
        if value is None:
            return otherwise
        try:
            return parse(value)
        except QuantityError as error:
            self.doubt(f"{what} cannot be read: {error}")
            return otherwise


def identified(raw: object) -> tuple[Fields, Fields]:
    """Return the object and its metadata; raise `DecodeError` when it has no name or uid."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(metadata, dict):
        raise DecodeError("the object has no metadata")
    for key in ("name", "uid"):
        if not isinstance(metadata.get(key), str) or not metadata[key]:
            raise DecodeError(f"the object has no metadata.{key}")
    return raw, metadata


def name_of(raw: RawObject) -> str:
    """Return the name of an object; raise `DecodeError` when it has none."""
    name = _text_of(raw, "name")
    if not name:
        raise DecodeError("the object has no metadata.name")
    return name


def identity(raw: RawObject) -> tuple[str, str]:
    """Return the name and the uid of an object, each empty when it has none."""
    return _text_of(raw, "name"), _text_of(raw, "uid")


def namespace_of(raw: RawObject) -> str:
    """Return the namespace of an object, empty when it has none."""
    return _text_of(raw, "namespace")


def full_name(raw: RawObject) -> str:
    """Return the name of an object for the log, as far as it can be read."""
    return f"{namespace_of(raw)}/{_text_of(raw, 'name')}"


def version(raw: RawObject) -> int:
    """Return the resourceVersion of an object; 0 when it is no number, which cannot be compared."""
    text = _text_of(raw, "resourceVersion")
    return int(text) if text.isascii() and text.isdigit() and len(text) < VERSION_DIGITS else 0


def _text_of(raw: RawObject, key: str) -> str:
    metadata = raw.get("metadata")
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""


# Pods are created in bursts, so few different seconds are read at a time.
@shared(1024)
def _epoch_s(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone means nothing")
    return moment.timestamp()
