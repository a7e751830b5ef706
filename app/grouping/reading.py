"""Reads fields of owners whose structure is not validated, and records the first problem."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.model.owner import Owner
from app.model.quantity import QuantityError, integer, json_integer, shown

Fields = Mapping[str, Any]
NO_FIELDS: Fields = {}

MAX_MEMBERS = 100_000
"""The limit for a PodGroup, and for each of its sub-groups."""

MOST_ITEMS = 512
"""The limit for one list. Every pod of the owner reads the list again, and a PodGroup has at most 256 sub-groups."""

LONGEST_KEY = 64
"""The limit for a field name that is quoted unchanged in a sentence."""


class OwnerReading:
    """Reads one owner. An absent or null field is never a problem by itself."""

    __slots__ = ("_owner", "problem")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # Only `doubt` writes it, while one pod is grouped.
        self.problem = ""

    def doubt(self, wrong: str) -> None:
        """Record what is wrong with the owner and what to write. Only the first is kept, without a full stop."""
        self.problem = self.problem or f"{self._owner.ref.kind.name} {self._owner.ref.name}: {wrong}"

    def root(self) -> "Block":
        """Return the fields of the owner."""
        return Block(self, (), self._owner.fields)

    def spec(self) -> "Block":
        """Return the `spec` of the owner."""
        return self.root().block("spec")

    def members(self, number: int) -> int:
        """Return how many pods must start together: at least one, and at most the limit of a PodGroup."""
        if number > MAX_MEMBERS:
            self.doubt(f"it needs {number} pods at once; a PodGroup may have {MAX_MEMBERS}; write smaller numbers")
        return min(max(number, 1), MAX_MEMBERS)

    def digits(self, what: str, text: str, *, otherwise: int = 1, minimum: int = 1) -> int:
        """Return the number in a label or an annotation."""
        try:
            return integer(text, minimum=minimum, maximum=MAX_MEMBERS)
        except QuantityError as error:
            self.doubt(f"{what} cannot be read: {error}")
            return otherwise


@dataclass(frozen=True, slots=True)
class Block:
    """A mapping in the fields of an owner, and its path."""

    reading: OwnerReading
    path: tuple[str | int, ...]
    fields: Fields

    @property
    def where(self) -> str:
        """The path for a sentence, such as `spec.groups[0].size`."""
        return "".join(f"[{key}]" if isinstance(key, int) else f".{_plain(key)}" for key in self.path).lstrip(".")

    def block(self, *path: str) -> "Block":
        """Return the mapping at a path; empty when there is none."""
        fields = self.fields
        for depth, key in enumerate(path, start=1):
            value = fields.get(key)
            if isinstance(value, dict):
                fields = value
                continue
            if value is not None:
                there = Block(self.reading, (*self.path, *path[:depth]), NO_FIELDS)
                self.reading.doubt(f"{there.where} is {shown(value)}; write a mapping of names to values")
            fields = NO_FIELDS
        return Block(self.reading, (*self.path, *path), fields)

    def blocks(self, key: str) -> "list[Block]":
        """Return the mappings in a list, without items that are no mapping."""
        value = self.fields.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.reading.doubt(f"{self.where}.{key} is not readable; write a list in which every item is a mapping")
        items = value if isinstance(value, list) else []
        if len(items) > MOST_ITEMS:
            self.reading.doubt(f"{self.where}.{key} has {len(items)} items; write at most {MOST_ITEMS}")
        numbered = enumerate(items[:MOST_ITEMS])
        return [Block(self.reading, (*self.path, key, at), item) for at, item in numbered if isinstance(item, dict)]

    def number(self, key: str, *, otherwise: int, minimum: int = 0) -> int:
        """Return the number of pods, or groups of pods, in a field."""
        value = self.fields.get(key)
        if value is None:
            return otherwise
        try:
            return json_integer(value, minimum=minimum, maximum=MAX_MEMBERS)
        except QuantityError as error:
            self.reading.doubt(f"{self.where}.{key} cannot be read: {error}")
            return otherwise

    def text(self, key: str) -> str:
        """Return a text; empty when there is none."""
        value = self.fields.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            self.reading.doubt(f"{self.where}.{key} is {shown(value)}; write a text in quotes")
        return ""

    def annotation(self, key: str) -> str:
        """Return an annotation of the pods from this template; empty when there is none."""
        return self.block("metadata", "annotations").text(key)


def _plain(key: str) -> str:
    """Return a field name for use in a sentence. Users choose some of the names."""
    return key if key.isascii() and key.isidentifier() and len(key) <= LONGEST_KEY else shown(key)
