"""Checks a status against the schema of our CRD."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CRD = Path(__file__).parents[2] / "deploy" / "leeboard" / "files" / "crds" / "gpunodes.yaml"
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
RULES: Mapping[str, Callable[[Any, Any], bool]] = {
    "maxLength": lambda value, most: len(value) <= most,
    "minLength": lambda value, least: len(value) >= least,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "maxItems": lambda value, most: len(value) <= most,
    "minimum": lambda value, least: value >= least,
    "maximum": lambda value, most: value <= most,
    "enum": lambda value, words: value in words,
    "required": lambda value, names: set(names) <= set(value),
}


def status_schema() -> Mapping[str, Any]:
    """Return the schema of `status`."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return schema


def breaches(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Return the violations in a value."""
    return list(_breaches(value, schema, "status"))


def _breaches(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, TYPES[schema["type"]]):
        yield f"{where} is {type(value).__name__}"
        return
    for rule, holds in RULES.items():
        if rule in schema and not holds(value, schema[rule]):
            yield f"{where} breaks {rule} {schema[rule]}: {value!r}"[:200]
    for name, part in (value if isinstance(value, dict) else {}).items():
        if name not in schema["properties"]:
            yield f"{where}.{name} is unknown"
        else:
            yield from _breaches(part, schema["properties"][name], f"{where}.{name}")
    for number, part in enumerate(value if isinstance(value, list) else []):
        yield from _breaches(part, schema["items"], f"{where}[{number}]")
    keys = schema.get("x-kubernetes-list-map-keys")
    names = [tuple(part[key] for key in keys) for part in _mappings(value)] if keys else []
    if len(set(names)) != len(names):
        yield f"{where} names one twice"


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)]
