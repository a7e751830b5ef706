"""How what-ifs are copied: a class declares every field once, together with how a copy gets it.

A class that derives from `Copied` writes `free: Owned[Amounts]` for each of its fields. Its slots are these fields and
no others, so a field that is not declared cannot be set. A declaration that does not say how the field is copied stops
the import. `copy` and `take_over` follow from the declarations and are never written by hand.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_origin

T = TypeVar("T")


class Rule(Enum):
    """How a copy gets a field."""

    VALUE = "value"
    OWNED = "owned"
    LENT = "lent"
    CLAIMS = "claims"
    FRESH = "fresh"
    COMMON = "common"


_LINES = {
    Rule.VALUE: ["twin.{0} = self.{0}"],
    Rule.OWNED: ["twin.{0} = self.{0}.copy()"],
    Rule.LENT: ["twin.{0} = self.{0}"],
    Rule.CLAIMS: ["twin.{0} = type(self.{0})()", "self.{0} = type(self.{0})()"],
    Rule.FRESH: ["twin.{0} = type(self.{0})()"],
    Rule.COMMON: ["twin.{0} = self.{0}"],
}


Value = Annotated[T, Rule.VALUE]
"""It never changes; another one may be set in its place."""
Owned = Annotated[T, Rule.OWNED]
"""It has a `copy`, and each copy has its own. What a container holds must not change, or be in the `Claims`."""
Lent = Annotated[T, Rule.LENT]
"""It is copied before it changes, unless the `Claims` say that no copy reads it as well."""
Claims = Annotated[T, Rule.CLAIMS]
"""What no copy reads as well, and may change in place: nothing, as soon as there is another copy."""
Fresh = Annotated[T, Rule.FRESH]
"""Each copy begins with an empty one."""
Common = Annotated[T, Rule.COMMON]
"""All copies may use the same one, on purpose: what it remembers is true for all of them."""


class _Declared(type):
    """Makes slots, `copy` and `take_over` of the declared fields."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> "_Declared":
        """Refuse a class that does not say of each field how it is copied."""
        if not bases:
            return super().__new__(mcs, name, bases, namespace | {"__slots__": ()})
        by_hand = {"copy", "take_over", "__slots__"} & namespace.keys()
        if by_hand:
            raise TypeError(f"{name} writes {', '.join(sorted(by_hand))} by hand")
        rules = {field: _rule(name, field, kind) for field, kind in namespace.get("__annotations__", {}).items()}
        made = {"__slots__": tuple(rules), "rules": rules, "copy": _copy(rules), "take_over": _take_over(rules)}
        return super().__new__(mcs, name, bases, namespace | made)


def _rule(name: str, field: str, kind: object) -> Rule:
    rules = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Rule)]
    if get_origin(kind) is not Annotated or len(rules) != 1:
        raise TypeError(f"{name}.{field} does not say how it is copied")
    return rules[0]


class Copied(metaclass=_Declared):
    """What a what-if consists of; see the module."""

    rules: ClassVar[Mapping[str, Rule]]
    """By the name of the field."""

    def copy(self) -> Self:
        """Return a twin: what becomes of the one does not show in the other, but for what is `Common`."""
        raise NotImplementedError

    def take_over(self, spent: Self) -> None:
        """Become what a copy has become. It loses what it owns, so that nobody can go on with it by mistake."""
        raise NotImplementedError


def _copy(fields: Mapping[str, Rule]) -> Callable[..., Any]:
    lines = (line.format(field) for field, rule in fields.items() for line in _LINES[rule])
    return _compiled("copy", "self", ["twin = new(type(self))", *lines, "return twin"])


def _take_over(fields: Mapping[str, Rule]) -> Callable[..., Any]:
    own = [field for field, rule in fields.items() if rule not in {Rule.VALUE, Rule.COMMON}]
    return _compiled("take_over", "self, spent", [f"self.{each} = spent.{each}; del spent.{each}" for each in own])


def _compiled(name: str, parameters: str, lines: Iterable[str]) -> Callable[..., Any]:
    """Return a function of these lines: as fast as one that is written by hand, of which a plan makes thousands."""
    found: dict[str, Any] = {"new": object.__new__}
    body = "\n    ".join((f"def {name}({parameters}):", *lines, "pass"))
    exec(body, found)  # noqa: S102 - made of the names of fields alone, as `dataclass` does
    function: Callable[..., Any] = found[name]
    return function
