"""Finds out which fields of an object are read."""

from collections.abc import Iterator
from typing import Any

from tests.recording.readers import Raw


class Watched(dict[str, Any]):
    """A mapping that notes which of its paths are read."""

    def __init__(self, raw: Raw, read: set[str], path: str = "") -> None:
        super().__init__({key: _watched(value, read, f"{path}.{key}") for key, value in raw.items()})
        self.read, self.path = read, path

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(f"{self.path}.{key}")
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(f"{self.path}.{key}")
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.read.add(f"{self.path}.{key}")
        return super().__getitem__(key)


def _watched(value: Any, read: set[str], path: str) -> Any:
    if isinstance(value, dict):
        return Watched(value, read, path)
    return [_watched(one, read, f"{path}[]") for one in value] if isinstance(value, list) else value


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields inside a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from paths(inner, f"{path}.{key}")
    for inner in value if isinstance(value, list) else ():
        yield from paths(inner, f"{path}[]")
