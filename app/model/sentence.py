"""Sentences that name objects of tenants. Each reader sees only the names that it may see.

`say` makes a sentence from a fixed text and parameters. Most parameters are numbers and words, which every reader may
see. A `Name` is an object of a tenant: `told` shows it only to readers who may see its namespace.

    said = say("promised to {first}", first=Name("team-a", "train"))
    str(said)                       "promised to a PodGroup in another namespace"
    told(said, EVERYTHING)          "promised to team-a/train"
    told(said, tenant("team-b"))    "promised to a PodGroup in another namespace"

As a `str`, a `Sentence` has the text that every reader may see. Text that is built from it by mistake loses names and
never reveals them. Names of queues are not hidden: a sentence names the queue that it is about, its
ancestors and child queues, and a queue that the user may have meant.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from string import Formatter
from typing import Self

NAMES_SHOWN = 3
"""The most objects that a list names. Hundreds of pods may have to leave for one gang."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of sentences."""

    namespaces: Container[str] | None = None
    """The namespaces whose objects the reader may see; None means all."""
    unknown: str = ""
    """One sentence why the reader may be allowed to see more namespaces; empty when all were checked."""

    def sees(self, namespace: str) -> bool:
        """Return whether the reader may see the names of objects in a namespace."""
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING = Reader()
"""A reader who may see every namespace."""

EVERYBODY = Reader(frozenset())
"""Any reader: it sees only what every reader may see."""


def tenant(namespace: str) -> Reader:
    """Return the reader of data that is stored in a namespace."""
    return Reader(frozenset({namespace}))


@dataclass(frozen=True, slots=True)
class Name:
    """An object of a tenant."""

    namespace: str
    name: str
    otherwise: str = "a PodGroup in another namespace"
    """The text for readers who may not see the name."""

    def to(self, reader: Reader) -> str:
        """Return the text for this reader."""
        return f"{self.namespace}/{self.name}" if reader.sees(self.namespace) else self.otherwise


@dataclass(frozen=True, slots=True)
class Names:
    """Several objects of tenants. The first few are named, the others counted."""

    names: tuple[Name, ...]

    def to(self, reader: Reader) -> str:
        """Return the text for this reader."""
        seen = sorted(each.to(reader) for each in self.names if reader.sees(each.namespace))
        hidden = len(self.names) - len(seen)
        parts, more = seen[:NAMES_SHOWN], len(seen) - NAMES_SHOWN
        return " and ".join(filter(None, [", ".join(parts), f"{more} more" * (more > 0), _of_others(hidden)]))


def _of_others(count: int) -> str:
    return "" if not count else "1 in another namespace" if count == 1 else f"{count} in other namespaces"


Part = str | Name | Names


class Sentence(str):
    """Text with parts that depend on the reader. As a `str` it is the text that every reader may see."""

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> Self:
        """Join these parts."""
        made = super().__new__(cls, "".join(_to(part, EVERYBODY) for part in parts))
        made.parts = parts
        return made

    def __eq__(self, other: object) -> bool:
        """Compare two sentences by their full text, and a sentence with other text by what every reader may see."""
        if not isinstance(other, Sentence):
            return str.__eq__(self, other) if isinstance(other, str) else NotImplemented
        return str.__eq__(self, other) and told(self, EVERYTHING) == told(other, EVERYTHING)

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Sentences that are equal are equal as text, too.
    __hash__ = str.__hash__


def say(template: str, **parameters: str | int | Name | Names) -> Sentence:
    """Return a sentence from a text with `{places}` and their values. A value may be a sentence."""
    parts: list[Part] = []
    for text, place, _, _ in Formatter().parse(template):
        parts.append(text)
        if place is not None:
            parts += _parts(parameters[place])
    return Sentence(*(part for part in parts if part != ""))


def told(text: str, reader: Reader) -> str:
    """Return the text of a sentence for this reader. Plain text contains no names."""
    return "".join(_to(part, reader) for part in _parts(text))


def counted(count: int | str, noun: str) -> str:
    """Return a count with its noun, such as `1 node`, `2 nodes` and `0.5 GPUs`."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def joined(text: str, clause: str) -> Sentence:
    """Return a sentence extended by one clause."""
    return say("{first}; {clause}.", first=open_ended(text), clause=clause)


def open_ended(text: str) -> Sentence:
    """Return a sentence without its full stop."""
    *parts, last = _parts(text) or [""]
    return Sentence(*parts, last.removesuffix(".") if isinstance(last, str) else last)


def as_clause(text: str) -> Sentence:
    """Return a sentence that starts with a small letter."""
    first, *parts = _parts(text) or [""]
    return Sentence(first[:1].lower() + first[1:] if isinstance(first, str) else first, *parts)


def capital(text: str) -> Sentence:
    """Return text that starts with a capital letter and has no full stop."""
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
