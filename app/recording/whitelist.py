"""Builds functions that copy the known fields of JSON and nothing else: what has no rule is left out.

A value of the wrong type stays wrong in the copy: a reader reports the type of such a value, its truth, or its length.
So a mapping or list where a text belongs becomes one without content. Texts and paddings are cut at 65,536 characters
or items: beyond that, a message that quotes a length states the shorter one.
"""

from collections.abc import Callable, Mapping
from typing import Any

Cut = Callable[[Any], Any]
"""Returns what is kept of a value, without changing the value. It raises nothing."""

MOST = 1 << 16
"""Characters of a text, and items of a padding: far above every limit of a reader."""

LARGEST = (1 << 63) - 1
"""Of an integer: readers treat every integer above 2^62 alike, and JSON libraries write no larger ones."""

OTHER = ""
"""The key that stands for all keys without a rule, where a reader compares whole mappings."""


def plain(value: Any) -> Any:
    """Keep a text, a number, a boolean or null; of a mapping or list, only its type and whether it has content."""
    if isinstance(value, str):
        return value if len(value) <= MOST else value[:MOST]
    if isinstance(value, dict):
        return {OTHER: None} if value else {}
    if isinstance(value, list):
        return [None] if value else []
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return LARGEST if value > 0 else -LARGEST
    return value


def sized(value: Any) -> Any:
    """Keep a value as `plain` does, and the length of a mapping or list: some readers count the wrong type as well."""
    if isinstance(value, list):
        return [None] * min(len(value), MOST)
    return padding(len(value)) if isinstance(value, dict) else plain(value)


def padding(length: int) -> dict[str, None]:
    """Return a mapping of this length whose keys no reader knows."""
    return dict.fromkeys(map(str, range(min(length, MOST))))


def truth(value: Any) -> bool:
    """Keep whether a value counts as true."""
    return bool(value)


def presence(value: Any) -> bool | None:
    """Keep whether there is a value."""
    return None if value is None else True


def fields(rules: Mapping[str, Cut], *, otherwise: Cut = plain) -> Cut:
    """Return what keeps the fields of a mapping that have a rule, in their order."""

    def cut(value: Any) -> Any:
        if not isinstance(value, dict):
            return otherwise(value)
        return {key: rules[key](inner) for key, inner in value.items() if key in rules}

    return cut


def compared(rules: Mapping[str, Cut]) -> Cut:
    """Return what keeps the fields that have a rule, and whether there are others: readers compare the whole."""
    known = fields(rules)

    def cut(value: Any) -> Any:
        kept = known(value)
        return kept | {OTHER: None} if isinstance(value, dict) and value.keys() - rules.keys() else kept

    return cut


def copied(levels: int) -> Cut:
    """Return what keeps everything down to this many levels."""

    def cut(value: Any) -> Any:
        if levels and isinstance(value, dict):
            return {key: inner(one) for key, one in value.items()}
        return [inner(one) for one in value] if levels and isinstance(value, list) else plain(value)

    inner = copied(levels - 1) if levels else plain
    return cut


def texts(*names: str) -> Mapping[str, Cut]:
    """Return the rules for fields that hold a text, a number or a boolean."""
    return dict.fromkeys(names, plain)


def items(item: Cut, most: int) -> Cut:
    """Return what keeps the first items of a list, and the length of the list."""

    def cut(value: Any) -> Any:
        if not isinstance(value, list):
            return sized(value)
        if len(value) <= most:
            return [item(one) for one in value]
        return [*map(item, value[:most]), *({} for _ in range(min(len(value), MOST) - most))]

    return cut


def first(item: Cut, most: int) -> Cut:
    """Return what keeps the first items of a list; its length does not matter beyond them."""

    def cut(value: Any) -> Any:
        return [item(one) for one in value[:most]] if isinstance(value, list) else plain(value)

    return cut


def picked(item: Cut, most: int) -> Cut:
    """Return what leaves out the items of which `item` keeps nothing, as long as the list has at most `most` items.

    The items of a longer list stay, because its length is reported. So does an item that is no mapping.
    """

    def cut(value: Any) -> Any:
        if not isinstance(value, list):
            return sized(value)
        kept = [item(one) for one in value]
        is_readable = len(kept) <= most and all(isinstance(one, dict) for one in value)
        return [one for one in kept if one] if is_readable else kept

    return cut


def entries(item: Cut = plain, *, most: int = MOST) -> Cut:
    """Return what keeps a mapping with keys that its author chooses; only the length of one with more than `most`."""

    def cut(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > most:
            return sized(value)
        return {key: item(inner) for key, inner in value.items()}

    return cut


def chosen(keeps: Callable[[str], bool], *, most: int) -> Cut:
    """Return what keeps some entries of a mapping, and its length if that is more than `most`."""

    def cut(value: Any) -> Any:
        if not isinstance(value, dict):
            return sized(value)
        kept = {key: plain(inner) for key, inner in value.items() if keeps(key)}
        return kept | padding(len(value) - len(kept)) if len(value) > most else kept

    return cut


def like(example: Any, *, volatile: frozenset[str]) -> Cut:
    """Return what keeps values in the form of an example; mappings also keep the `volatile` fields."""
    if isinstance(example, dict):
        rules = {key: like(inner, volatile=volatile) for key, inner in example.items()}
        return compared({**rules, **dict.fromkeys(volatile, plain)})
    if isinstance(example, list):
        return items(like(example[0], volatile=volatile) if example else plain, MOST)
    return plain
