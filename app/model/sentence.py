"""Sentences that name objects of tenants, and what of them a reader is told.

A sentence is made from a fixed text and parameters (`say`). Most parameters are numbers and words, which everybody may
read. A `Name` is an object of a tenant: only readers who may see its namespace are told it (`told`).

    said = say("promised to {first}", first=Name("team-a", "train"))
    str(said)                       "promised to a PodGroup in another namespace"
    told(said, EVERYTHING)          "promised to team-a/train"
    told(said, tenant("team-b"))    "promised to a PodGroup in another namespace"

The value of a `Sentence` as a `str` is what everybody may read, so text that is made from it by chance loses names and
never reveals them. A sentence names no queues but those on the line of the queue that it is about.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from string import Formatter
from typing import Self

NAMES_SHOWN = 3
"""Objects that a list names: hundreds may have to leave for one gang."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who reads sentences."""

    namespaces: Container[str] | None = None
    """The namespaces of which the reader may see objects; None means all."""
    unknown: str = ""
    """Why they may see more namespaces, in one sentence; empty when it is known of all that were asked about."""

    def sees(self, namespace: str) -> bool:
        """Whether the reader may be told the names of objects in a namespace."""
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING = Reader()
"""A reader who may see every namespace."""

EVERYBODY = Reader(frozenset())
"""Any reader: what everybody may be told."""


def tenant(namespace: str) -> Reader:
    """Return the reader of what is stored in a namespace."""
    return Reader(frozenset({namespace}))


@dataclass(frozen=True, slots=True)
class Name:
    """An object of a tenant."""

    namespace: str
    name: str
    otherwise: str = "a PodGroup in another namespace"
    """What readers are told who may not know its name."""

    def to(self, reader: Reader) -> str:
        """Return how this reader is told of it."""
        return f"{self.namespace}/{self.name}" if reader.sees(self.namespace) else self.otherwise


@dataclass(frozen=True, slots=True)
class Names:
    """Several objects of tenants; of the first few the names are told, of the others how many there are."""

    names: tuple[Name, ...]

    def to(self, reader: Reader) -> str:
        """Return how this reader is told of them."""
        seen = sorted(each.to(reader) for each in self.names if reader.sees(each.namespace))
        hidden = len(self.names) - len(seen)
        parts, more = seen[:NAMES_SHOWN], len(seen) - NAMES_SHOWN
        return " and ".join(filter(None, [", ".join(parts), f"{more} more" * (more > 0), _of_others(hidden)]))


def _of_others(count: int) -> str:
    return "" if not count else "1 in another namespace" if count == 1 else f"{count} in other namespaces"


Part = str | Name | Names


class Sentence(str):
    """Text of which some parts depend on the reader; as a `str` it is what everybody may read."""

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Self:
        """Join these parts."""
        made = super().__new__(cls, "".join(_to(part, EVERYBODY) for part in parts))
        made.parts = parts
        return made

    def __eq__(self, other: object) -> bool:
        """Compare with a sentence what all readers may read, and with other text what everybody may read."""
        if not isinstance(other, Sentence):
            return str.__eq__(self, other) if isinstance(other, str) else NotImplemented
        return str.__eq__(self, other) and told(self, EVERYTHING) == told(other, EVERYTHING)

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Equal sentences are equal as text, too.
    __hash__ = str.__hash__


def say(template: str, **parameters: str | int | Name | Names) -> Sentence:
    """Return a sentence from a text with `{places}` and what stands there; sentences may stand in sentences."""
    parts: list[Part] = []
    for text, place, _, _ in Formatter().parse(template):
        parts.append(text)
        if place is not None:
            parts += _parts(parameters[place])
    return Sentence(*(part for part in parts if part != ""))


def told(text: str, reader: Reader) -> str:
    """Return a sentence as this reader may read it; text that is no `Sentence` names nobody."""
    return "".join(_to(part, reader) for part in _parts(text))


def counted(count: int | str, noun: str) -> str:
    """Return a number of things, such as `1 node`, `2 nodes` and `0.5 GPUs`."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def joined(text: str, clause: str) -> Sentence:
    """Return a sentence that ends with one more clause."""
    return say("{first}; {clause}.", first=open_ended(text), clause=clause)


def open_ended(text: str) -> Sentence:
    """Return a sentence without its last dot."""
    *parts, last = _parts(text) or [""]
    return Sentence(*parts, last.removesuffix(".") if isinstance(last, str) else last)


def as_clause(text: str) -> Sentence:
    """Return a sentence that begins with a small letter."""
    first, *parts = _parts(text) or [""]
    return Sentence(first[:1].lower() + first[1:] if isinstance(first, str) else first, *parts)


def capital(text: str) -> Sentence:
    """Return text that begins with a capital letter and has no last dot."""
    first, *parts = _parts(text) or [""]
    return open_ended(Sentence(first[:1].upper() + first[1:] if isinstance(first, str) else first, *parts))


def _parts(value: str | int | Name | Names) -> Iterable[Part]:
    match value:
        case Sentence():
            return value.parts
        case str() | Name() | Names():
            return (value,)
        case _:
            return (str(value),)


def _to(part: Part, reader: Reader) -> str:
    return part if isinstance(part, str) else part.to(reader)
