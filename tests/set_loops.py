"""Finds the places that iterate over a set, with the types that mypy infers.

The order of a set of texts depends on PYTHONHASHSEED, that of other objects on their addresses. Neither may reach a
decision. Not listed is what has the same result in any order: membership, set algebra, `len`, `any`, `all`, further
sets, `sorted`, `min` and `max` without a key, and sums of integers.
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import mypy.build
from mypy.argmap import map_actuals_to_formals
from mypy.modulefinder import BuildSource
from mypy.nodes import ARG_NAMED, ARG_POS, ARG_STAR, ARG_STAR2, ArgKind
from mypy.options import Options
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    Overloaded,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

A_SET = "typing.AbstractSet"
VIEWS = ("typing.KeysView", "typing.ItemsView")
"""A view has the order of its dict; what `-`, `&` and `|` make of views has none."""
ITERABLES = {
    "typing.Iterable",
    "typing.Collection",
    "typing.Iterator",
    "builtins._SupportsIter",
    "_typeshed.SupportsIter",
}
ORDERLESS = {"any", "all", "len", "set", "frozenset", "isinstance", "bool"}
ORDERLESS_WITHOUT_KEY = {"sorted", "min", "max", "sum"}
LAZY = {"map", "filter", "zip", "chain", "from_iterable"}
"""What depends on the order only if its consumer does."""
OF_MAPPINGS = {"get", "pop", "setdefault"}
NUMBERS = {"builtins.int", "builtins.bool", "builtins.float"}
TEXTS = {"str", "repr", "format"}

Span = tuple[int, int, int | None, int | None]
Types = Mapping[Span, Type]
"""What mypy infers, by the place in the text."""


@dataclass(frozen=True, slots=True)
class SetLoop:
    """A place that iterates over a set, in a function of a module."""

    function: str
    line: int
    way: str
    """A for loop, a comprehension, or what the set is passed to."""

    def __str__(self) -> str:
        return f"{self.function}:{self.line} {self.way}"


def set_loops(texts: Mapping[str, str], *, cache_dir: str) -> list[SetLoop]:
    """Return the places in these modules, given as name and text; ValueError where mypy finds errors."""
    options = Options()
    options.export_types = True
    options.explicit_package_bases = options.namespace_packages = options.ignore_missing_imports = True
    options.cache_dir = cache_dir
    # mypy does not tell of which module an expression is, so no two modules have the same lines.
    starts = accumulate((text.count("\n") + 1 for text in texts.values()), initial=0)
    moved = {name: "\n" * start + text for (name, text), start in zip(texts.items(), starts, strict=False)}
    # A module with a text is checked again; other modules may come from the cache, which has no types of expressions.
    result = mypy.build.build([BuildSource(None, name, text) for name, text in moved.items()], options)
    if result.errors:
        raise ValueError("\n".join(result.errors))
    types: dict[Span, Type] = {}
    for each, type_ in result.types.items():
        span = each.line, each.column, each.end_line, each.end_column
        types[span] = type_
    return [loop for name, text in moved.items() for loop in _found(name, text, types)]


def _found(name: str, text: str, types: Types) -> Iterator[SetLoop]:
    finder = _Finder(name, types)
    finder.visit(ast.parse(text))
    start = len(text) - len(text.lstrip("\n"))
    return (SetLoop(loop.function, loop.line - start, loop.way) for loop in finder.found)


class _Finder(ast.NodeVisitor):
    """Visits one module."""

    def __init__(self, module: str, types: Types) -> None:
        self.found: dict[SetLoop, None] = {}
        self._types = types
        self._within = [module]
        self._returns: list[ast.expr | None] = [None]
        self._orderless: set[ast.expr] = set()
        """The expressions that are consumed in any order."""

    # Where ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        self._within.append(name)
        yield
        self._within.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        with self._inside(node.name):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._returns.append(node.returns)
        with self._inside(node.name):
            self.generic_visit(node)
        self._returns.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    # What iterates ----------------------------------------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> None:
        self._iterated(node.iter, "for")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._iterated(node.iter, "comprehension")
        self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> None:
        if node in self._orderless or isinstance(node, ast.SetComp):
            self._orderless.update(each.iter for each in node.generators)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self.visit_GeneratorExp(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self.visit_GeneratorExp(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._iterated(node.value, "*")
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._orderless.update(item.value for item in node.elts if isinstance(item, ast.Starred))
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._iterated(node.value, "yield from")
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self._iterated(node.value, "text")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Tuple | ast.List) and len(target.elts) > 1 for target in node.targets):
            self._iterated(node.value, "unpacking")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        returns = self._returns[-1]
        if node.value is not None and returns is not None and ast.unparse(returns).startswith(("Iter", "Collection")):
            self._iterated(node.value, "returned as an iterable")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if self._is_orderless(node, name):
            self._orderless.update(_arguments(node))
        for argument in _arguments(node):
            if name in TEXTS or any(map(_is_iterable, self._formals(node, argument))):
                self._iterated(argument, f"{name}()")
        if isinstance(node.func, ast.Attribute) and name == "pop":
            self._iterated(node.func.value, "pop()")
        self.generic_visit(node)

    # Judgement --------------------------------------------------------------------------------------------------------

    def _iterated(self, node: ast.expr, way: str) -> None:
        if node not in self._orderless and self._is_set(node):
            self.found[SetLoop(".".join(self._within), node.lineno, way)] = None

    def _is_orderless(self, call: ast.Call, name: str) -> bool:
        """Return whether the result of the call does not depend on the order of the arguments' items."""
        if isinstance(call.func, ast.Attribute) and self._is_set(call.func.value):
            return name != "pop"
        if name == "sum":
            return "float" not in str(self._type(call))
        is_plain = all(each.arg != "key" for each in call.keywords)
        return (
            name in ORDERLESS
            or (name in ORDERLESS_WITHOUT_KEY and is_plain)
            or (name in LAZY and call in self._orderless)
        )

    def _formals(self, call: ast.Call, argument: ast.expr) -> Iterator[Type]:
        """Return the types of the parameter that gets an argument, one for each overload."""
        called = get_proper_type(self._type(call.func))
        for signature in called.items if isinstance(called, Overloaded) else (called,):
            if isinstance(signature, CallableType):
                for formal, actuals in enumerate(_actuals(call, signature)):
                    if any(_arguments(call)[actual] is argument for actual in actuals):
                        yield signature.arg_types[formal]

    def _is_set(self, node: ast.expr) -> bool:
        # The type of a condition, and of `get` with a default, may be that of the context, such as Iterable.
        if isinstance(node, ast.IfExp):
            return self._is_set(node.body) or self._is_set(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(map(self._is_set, node.values))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_MAPPINGS:
            values = [args[1] for one in _instances(self._type(node.func.value)) if len(args := one.args) > 1]
            if any(map(_is_set_type, values)):
                return True
        return _is_set_type(self._type(node))

    def _type(self, node: ast.expr) -> Type | None:
        return self._types.get((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset))


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _actuals(call: ast.Call, signature: CallableType) -> list[list[int]]:
    """Return for each parameter of a signature the numbers of its arguments."""
    kinds: list[ArgKind] = [ARG_STAR if isinstance(each, ast.Starred) else ARG_POS for each in call.args]
    kinds += [ARG_STAR2 if each.arg is None else ARG_NAMED for each in call.keywords]
    names = [None for _ in call.args] + [each.arg for each in call.keywords]
    unknown = AnyType(TypeOfAny.special_form)
    return map_actuals_to_formals(kinds, names, signature.arg_kinds, signature.arg_names, lambda _: unknown)


def _name(called: ast.expr) -> str:
    return getattr(called, "id", "") or getattr(called, "attr", "")


def _is_set_type(of: Type | None) -> bool:
    return any(
        one.type.has_base(A_SET) and not any(map(one.type.has_base, VIEWS)) and not all(map(_is_of_numbers, one.args))
        for one in _instances(of)
    )


def _is_of_numbers(item: Type) -> bool:
    """Return whether the hashes of such items follow from their values alone."""
    proper = get_proper_type(item)
    if isinstance(proper, TupleType):
        return all(map(_is_of_numbers, proper.items))
    if not isinstance(proper, Instance):
        return False
    return proper.type.fullname in NUMBERS or (
        proper.type.fullname == "builtins.tuple" and _is_of_numbers(proper.args[0])
    )


def _is_iterable(formal: Type) -> bool:
    """Return whether a set that is passed as this is no longer known as a set."""
    return any(one.type.fullname in ITERABLES for one in _instances(formal))


def _instances(of: Type | None) -> Iterator[Instance]:
    proper = get_proper_type(of)
    if isinstance(proper, UnionType):
        for item in proper.items:
            yield from _instances(item)
    elif isinstance(proper, Instance):
        yield proper
