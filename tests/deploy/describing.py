"""Reads what `values.yaml` says of each value: the comments that begin with `# --`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import yaml

KEY = re.compile(r"( *)([A-Za-z]+):")
COMMENT = re.compile(r" *# ?(-- )?(.*)")

WHOLE = frozenset(
    {
        *("resources", "updateStrategy", "labels"),
        *("podSecurityContext", "containerSecurityContext"),
        *("livenessProbe", "readinessProbe", "startupProbe"),
    }
)
"""Values that are maps, and are described as a whole."""


def described(values: str) -> Mapping[str, str]:
    """Return the text about each value by its path, such as `image.tag`."""
    found, text, above = dict[str, str](), list[str](), list[str]()
    for line in values.splitlines():
        if comment := COMMENT.fullmatch(line):
            text = [comment[2]] if comment[1] else [*text, comment[2]] if text else []
        elif key := KEY.match(line):
            above = [*above[: len(key[1]) // 2], key[2]]
            if text:
                found[".".join(above)] = " ".join(text)
            text = []
        else:
            text = []
    return found


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the path and the default of each value that is set as a whole."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in WHOLE:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def table(values: str) -> str:
    """Return the table of all values for README.md."""
    texts = described(values)
    rows = [f"| `{path}` | `{_written(value)}` | {texts[path]} |" for path, value in leaves(yaml.safe_load(values))]
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *rows, ""])


def _written(value: object) -> str:
    return orjson.dumps(value).decode()
