"""Evaluates the CEL expressions by which requests and classes select devices, or says that it cannot tell.

It knows the part of CEL that selectors of devices use: comparisons, `&&`, `||`, `!`, `in`, `has`, conditionals,
`cel.bind`, attributes and capacity of the device, versions, quantities and the plain functions of strings. Everything
else, every error and every expression that is too long is `UNKNOWN`. There are no comprehensions, so the work is in
proportion to the length of the expression. That is why no CEL library is used: none of those that exist for Python
bounds the work of an expression that a tenant wrote.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, Final

from app.cluster.decode.resource_slices import version_of
from app.model.dra import AttributeValue, Quantity
from app.model.quantity import QuantityError, whole

IDENTITIES = frozenset(
    {"uuid", "parentuuid", "serial", "index", "minor", "parentindex", "parentminor", "pciaddress", "pcibusid", "pciid"}
    | {"pcieroot", "name", "id", "numanode", "numa"}
)
"""Attributes, in lower case and without their domain, that tell alike devices apart. `DeviceFacts` never have them."""

MOST_TOKENS = 256
MOST_LEVELS = 24
"""Of brackets, operators and functions inside one another."""


class Unknown:
    """The value of what cannot be told."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unknown>"


UNKNOWN: Final = Unknown()

Value = Any
"""A value of an expression: `AttributeValue`, a list, a mapping, or `UNKNOWN`."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^'\\\n]*'|"[^"\\\n]*")|(?P<number>[0-9]{1,18})(?![0-9.a-zA-Z])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!?:.,()\[\]-]))""",
    re.ASCII,
)
_PLAIN = re.compile(r"[A-Za-z0-9 _/-]*", re.ASCII)
"""A part of a regular expression that stands for itself."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What an expression may ask about a device."""

    driver: str
    attributes: Mapping[str, AttributeValue]
    """By qualified name."""
    capacity: Mapping[str, int]
    is_shareable: bool = False


class _Unreadable(Exception):  # noqa: N818 # it never leaves this module
    """The expression is not in the known part of CEL."""


class _Domain:
    """The attributes of one domain."""

    __slots__ = ("domain", "values")

    def __init__(self, values: Mapping[str, Value], domain: str) -> None:
        self.values, self.domain = values, domain

    def get(self, name: str) -> Value:
        return self.values.get(f"{self.domain}/{name}", UNKNOWN)

    def holds(self, name: str) -> Value:
        return f"{self.domain}/{name}" in self.values or (UNKNOWN if name.lower() in IDENTITIES else False)


class _ByDomain:
    """All attributes, or all capacity, of a device."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values

    def get(self, domain: str) -> _Domain:
        return _Domain(self.values, domain)

    def holds(self, domain: str) -> Value:
        # It may have identities only.
        return any(name.startswith(f"{domain}/") for name in self.values) or UNKNOWN


class _Object:
    """The variable `device`."""

    __slots__ = ("fields",)

    def __init__(self, facts: DeviceFacts) -> None:
        capacity = {name: Quantity(amount) for name, amount in facts.capacity.items()}
        attributes = {name: UNKNOWN if value is None else value for name, value in facts.attributes.items()}
        self.fields: Mapping[str, Value] = {
            "driver": facts.driver,
            "attributes": _ByDomain(attributes),
            "capacity": _ByDomain(capacity),
            "allowMultipleAllocations": facts.is_shareable,
        }

    def get(self, name: str) -> Value:
        return self.fields.get(name, UNKNOWN)

    def holds(self, name: str) -> bool:
        return name in self.fields


Scope = Mapping[str, Value]
Node = Callable[[Scope], Value]
"""A part of an expression: it returns its value, given the variables."""


def selects(expression: str, device: DeviceFacts) -> bool | None:
    """Return whether an expression selects a device; None when that cannot be told."""
    try:
        value = _parsed(expression)({"device": _Object(device)})
    except _Unreadable:
        return None
    return value if isinstance(value, bool) else None


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> Node:
    try:
        return _Parser(_tokens(expression)).whole()
    except _Unreadable:
        return _unknown


def _unknown(scope: Scope) -> Value:
    del scope
    return UNKNOWN


Token = tuple[str, str]


def _tokens(expression: str) -> Sequence[Token]:
    found: list[Token] = []
    at, end = 0, len(expression.rstrip())
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None or len(found) == MOST_TOKENS:
            raise _Unreadable
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


class _Parser:
    """Reads tokens by recursive descent, the operators that bind least first."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._level = 0

    def whole(self) -> Node:
        node = self._conditional()
        if self._at != len(self._tokens):
            raise _Unreadable
        return node

    def _is(self, sign: str) -> bool:
        """Whether the next token is this sign; then it is consumed."""
        if self._at < len(self._tokens) and self._tokens[self._at] == ("sign", sign):
            self._at += 1
            return True
        return False

    def _need(self, sign: str) -> None:
        if not self._is(sign):
            raise _Unreadable

    def _next(self, kind: str) -> str:
        if self._at == len(self._tokens) or self._tokens[self._at][0] != kind:
            raise _Unreadable
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _conditional(self) -> Node:
        self._level += 1
        if self._level > MOST_LEVELS:
            raise _Unreadable
        node = self._either()
        if self._is("?"):
            first = self._conditional()
            self._need(":")
            node = _choice(node, first, self._conditional())
        self._level -= 1
        return node

    def _either(self) -> Node:
        nodes = [self._both()]
        while self._is("||"):
            nodes.append(self._both())
        return nodes[0] if len(nodes) == 1 else _junction(nodes, decisive=True)

    def _both(self) -> Node:
        nodes = [self._relation()]
        while self._is("&&"):
            nodes.append(self._relation())
        return nodes[0] if len(nodes) == 1 else _junction(nodes, decisive=False)

    def _relation(self) -> Node:
        node = self._unary()
        for sign in ("==", "!=", *_COMPARISONS):
            if self._is(sign):
                return _relation(sign, node, self._unary())
        if self._at < len(self._tokens) and self._tokens[self._at] == ("name", "in"):
            self._at += 1
            return _membership(node, self._unary())
        return node

    def _unary(self) -> Node:
        if self._is("!"):
            node = self._unary()
            return lambda scope: not value if isinstance(value := node(scope), bool) else UNKNOWN
        if self._is("-"):
            number = -int(self._next("number"))
            return lambda _: number
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._is("."):
                name = self._next("name")
                node = _method(name, node, self._arguments()) if self._is("(") else _field(node, name)
            elif self._is("["):
                index = self._conditional()
                self._need("]")
                node = _item(node, index)
            else:
                return node

    def _arguments(self) -> list[Node]:
        if self._is(")"):
            return []
        nodes = [self._conditional()]
        while self._is(","):
            nodes.append(self._conditional())
        self._need(")")
        return nodes

    def _primary(self) -> Node:
        if self._is("("):
            node = self._conditional()
            self._need(")")
            return node
        if self._is("["):
            return self._list()
        if self._at == len(self._tokens):
            raise _Unreadable
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "text":
            literal = text[1:-1]
            return lambda _: literal
        if kind == "number":
            number = int(text)
            return lambda _: number
        if kind == "name":
            return self._named(text)
        raise _Unreadable

    def _list(self) -> Node:
        nodes: list[Node] = []
        while not self._is("]"):
            nodes.append(self._conditional())
            if not self._is(","):
                self._need("]")
                break
        return lambda scope: [node(scope) for node in nodes]

    def _named(self, name: str) -> Node:
        if name in ("true", "false"):
            flag = name == "true"
            return lambda _: flag
        if name == "cel" and self._is("."):
            return self._bind()
        if not self._is("("):
            return lambda scope: scope.get(name, UNKNOWN)
        if name == "has":
            return self._has()
        nodes = self._arguments()
        if name not in _FUNCTIONS or len(nodes) != 1:
            raise _Unreadable
        function, node = _FUNCTIONS[name], nodes[0]
        return lambda scope: function(text) if isinstance(text := node(scope), str) else UNKNOWN

    def _bind(self) -> Node:
        if self._next("name") != "bind":
            raise _Unreadable
        self._need("(")
        name = self._next("name")
        self._need(",")
        value = self._conditional()
        self._need(",")
        body = self._conditional()
        self._need(")")
        return lambda scope: body({**scope, name: value(scope)})

    def _has(self) -> Node:
        node = self._primary()
        steps: list[Node | str] = []
        while not self._is(")"):
            if self._is("["):
                steps.append(self._conditional())
                self._need("]")
            else:
                self._need(".")
                steps.append(self._next("name"))
        if not steps or not isinstance(steps[-1], str):
            raise _Unreadable
        *before, last = steps
        for step in before:
            node = _field(node, step) if isinstance(step, str) else _item(node, step)
        return lambda scope: _holds(node(scope), last)


def _choice(test: Node, first: Node, second: Node) -> Node:
    def node(scope: Scope) -> Value:
        value = test(scope)
        if not isinstance(value, bool):
            return UNKNOWN
        return first(scope) if value else second(scope)

    return node


def _junction(nodes: Sequence[Node], *, decisive: bool) -> Node:
    """Return `||`, or `&&`: a decisive value decides, whatever the others are."""

    def node(scope: Scope) -> Value:
        values = [each(scope) for each in nodes]
        if any(value is decisive for value in values):
            return decisive
        return not decisive if all(isinstance(value, bool) for value in values) else UNKNOWN

    return node


def _relation(sign: str, left: Node, right: Node) -> Node:
    def node(scope: Scope) -> Value:
        one, other = left(scope), right(scope)
        # Booleans are integers in Python, and a version equals no text in CEL.
        if type(one) is not type(other) or isinstance(one, Unknown | _Domain | _ByDomain | _Object | list):
            return UNKNOWN
        if sign in _COMPARISONS:
            return _COMPARISONS[sign](one, other) if isinstance(one, int | str) else UNKNOWN
        return (one == other) == (sign == "==")

    return node


def _membership(item: Node, group: Node) -> Node:
    def node(scope: Scope) -> Value:
        value, values = item(scope), group(scope)
        if isinstance(values, list):
            if any(type(each) is type(value) and each == value for each in values):
                return True
            return UNKNOWN if value is UNKNOWN or UNKNOWN in values else False
        return _holds(values, value) if isinstance(value, str) else UNKNOWN

    return node


def _holds(holder: Value, name: object) -> Value:
    if isinstance(holder, _Domain | _ByDomain | _Object) and isinstance(name, str):
        return holder.holds(name)
    return UNKNOWN


def _get(holder: Value, name: object) -> Value:
    if isinstance(holder, _Domain | _ByDomain | _Object) and isinstance(name, str):
        return holder.get(name)
    return UNKNOWN


def _field(holder: Node, name: str) -> Node:
    return lambda scope: _get(holder(scope), name)


def _item(holder: Node, index: Node) -> Node:
    return lambda scope: _get(holder(scope), index(scope))


def _method(name: str, receiver: Node, arguments: Sequence[Node]) -> Node:
    if name not in _METHODS:
        raise _Unreadable
    method, number = _METHODS[name]
    if len(arguments) != number:
        raise _Unreadable

    def node(scope: Scope) -> Value:
        values = [receiver(scope), *(each(scope) for each in arguments)]
        return method(*values) if len({type(value) for value in values}) == 1 else UNKNOWN

    return node


def _compared(one: Value, other: Value) -> Value:
    if isinstance(one, Quantity):
        one, other = one.amount, other.amount
    elif not isinstance(one, tuple):
        return UNKNOWN
    return (one > other) - (one < other)


def _is_compared(sign: int) -> Callable[[Value, Value], Value]:
    return lambda one, other: UNKNOWN if (found := _compared(one, other)) is UNKNOWN else found == sign


def _of_texts(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda *texts: function(*texts) if isinstance(texts[0], str) else UNKNOWN


def _matches(text: str, pattern: str) -> Value:
    """Match a regular expression of plain texts and `.*`; any other takes unbounded work, or another dialect."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$")
    parts = pattern.removeprefix("^").removesuffix("$").split(".*")
    if not all(_PLAIN.fullmatch(part) for part in parts):
        return UNKNOWN
    first, *middle = [*parts] if begins else ["", *parts]
    if not middle:
        return text == first if ends else text.startswith(first)
    last = middle.pop() if ends else ""
    if not text.startswith(first):
        return False
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - len(last) >= at and text.endswith(last)


def _quantity(text: str) -> Value:
    try:
        return Quantity(whole(text)) if not text.endswith(("m", "u", "n")) and "." not in text else UNKNOWN
    except QuantityError:
        return UNKNOWN


def _version(text: str) -> Value:
    found = version_of(text)
    return UNKNOWN if found is None else found


_FUNCTIONS: Mapping[str, Callable[[str], Value]] = {"quantity": _quantity, "semver": _version}

_METHODS: Mapping[str, tuple[Callable[..., Value], int]] = {
    "compareTo": (_compared, 1),
    "isGreaterThan": (_is_compared(1), 1),
    "isLessThan": (_is_compared(-1), 1),
    "startsWith": (_of_texts(str.startswith), 1),
    "endsWith": (_of_texts(str.endswith), 1),
    "contains": (_of_texts(str.__contains__), 1),
    "matches": (_of_texts(_matches), 1),
    "lowerAscii": (_of_texts(str.lower), 0),
    "upperAscii": (_of_texts(str.upper), 0),
}
