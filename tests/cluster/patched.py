"""Applies a JSON patch as the API server does: slow and plain; it fails on what RFC 6902 calls an error."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from app.model.admission import PatchOperation
from tests.cluster.raw import Raw


def patched(raw: Raw, patch: Iterable[PatchOperation]) -> Raw:
    result = deepcopy(raw)
    for operation in patch:
        _apply(result, **operation)
    return result


def _apply(target: Any, *, op: Any, path: Any, value: object = None) -> None:
    *way, last = [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]
    for key in way:
        target = target[int(key)] if isinstance(target, list) else target[key]
    match op, target:
        case "add", list():
            position = len(target) if last == "-" else int(last)
            assert position <= len(target)
            target.insert(position, deepcopy(value))
        case "add", dict():
            target[last] = deepcopy(value)
        case "remove", list():
            del target[int(last)]
        case "remove", dict():
            del target[last]
        case _:
            raise AssertionError(f"{op} at {path} of {target!r}")
