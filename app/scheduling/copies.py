"""Copies what-ifs: a class declares every field once, together with the rule by which a copy gets it.

A class that derives from `Copied` writes `free: Owned[Amounts]` for each of its fields. Its slots are these fields
only, so a field that is not declared cannot be set. A declaration without a copy rule makes the import fail. `copy` and
`take_over` are derived from the declarations and are never written by hand.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_origin

T = TypeVar("T")


class Rule(Enum):
    """The rule by which a copy gets a field."""

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
"""The value never changes. Another value may replace it."""
Owned = Annotated[T, Rule.OWNED]
"""The value has a `copy`, and each copy has its own. What a container holds must not change, or be in the `Claims`."""
Lent = Annotated[T, Rule.LENT]
"""The value is copied before it changes, unless the `Claims` say that no copy reads it too."""
Claims = Annotated[T, Rule.CLAIMS]
"""What no copy reads too, and what may change in place. It becomes empty when another copy is made."""
Fresh = Annotated[T, Rule.FRESH]
"""Each copy starts with an empty value."""
Common = Annotated[T, Rule.COMMON]
"""All copies may use the same value, on purpose: what it remembers is true for all of them."""


class _Declared(type):
    """Generates slots, `copy` and `take_over` from the declared fields."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> "_Declared":
        """Refuse a class in which a field has no copy rule."""
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
        raise TypeError(f"{name}.{field} has no copy rule")
    return rules[0]


class Copied(metaclass=_Declared):
    """The base class of the parts of a what-if; see the module."""

    rules: ClassVar[Mapping[str, Rule]]
    """The rules by field name."""

    def copy(self) -> Self:
        """Return an independent copy. A change of one object is not visible in the other, except in `Common` fields."""
        raise NotImplementedError

    def take_over(self, spent: Self) -> None:
        """Take the state of a copy. The copy loses what it owns, so that no code can use it by mistake."""
        raise NotImplementedError


def _copy(fields: Mapping[str, Rule]) -> Callable[..., Any]:
    lines = (line.format(field) for field, rule in fields.items() for line in _LINES[rule])
    return _compiled("copy", "self", ["twin = new(type(self))", *lines, "return twin"])


def _take_over(fields: Mapping[str, Rule]) -> Callable[..., Any]:
    own = [field for field, rule in fields.items() if rule not in {Rule.VALUE, Rule.COMMON}]
    return _compiled("take_over", "self, spent", [f"self.{each} = spent.{each}; del spent.{each}" for each in own])


def _compiled(name: str, parameters: str, lines: Iterable[str]) -> Callable[..., Any]:
    """Return a function compiled from these lines. It must be fast, because one plan makes thousands of copies."""
    found: dict[str, Any] = {"new": object.__new__}
    body = "\n    ".join((f"def {name}({parameters}):", *lines, "pass"))
    exec(body, found)  # noqa: S102 - made of field names only, as `dataclass` does
    function: Callable[..., Any] = found[name]
    return function
