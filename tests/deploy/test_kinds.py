"""The kinds that the chart installs: `kubectl explain` leaves no field unsaid, and no column shows JSON."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import CHART

Schema = Mapping[str, Any]
KINDS = [
    kind
    for path in sorted((CHART / "files" / "crds").glob("*.yaml"))
    for kind in yaml.load_all(path.read_text(), yaml.CSafeLoader)
]
NAMES = [kind["spec"]["names"]["kind"] for kind in KINDS]
OF_EVERY_OBJECT = {"apiVersion", "kind", "metadata"}
"""The API server describes them itself, and lets no kind describe its metadata."""

METADATA: Schema = {"properties": {"creationTimestamp": {"type": "string"}}}


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_field_is_described(kind: Schema) -> None:
    fields = [*_fields(_schema(kind), "")]

    assert len(fields) > 3
    assert [path for path, one in fields if not one.get("description", "").strip()] == []


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_kind_is_found_by_a_short_name_and_in_our_category(kind: Schema) -> None:
    names = kind["spec"]["names"]

    assert names["categories"] == ["leeboard"]
    assert len(names["shortNames"]) == 1


def test_short_names_are_not_those_of_kubernetes_kueue_or_volcano() -> None:
    others = {"po", "svc", "no", "ns", "pdb", "pc", "cq", "lq", "queue", "queues", "wl", "rf", "q", "vcjob", "jf"}
    ours = [name for kind in KINDS for name in kind["spec"]["names"]["shortNames"]]

    assert sorted(ours) == ["gn", "gq", "pg", "topo"]
    assert not others & {*ours}


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_columns_show_single_values_and_end_with_the_age(kind: Schema) -> None:
    columns = kind["spec"]["versions"][0]["additionalPrinterColumns"]

    for column in columns:
        at = _at({**_schema(kind), "properties": {**_schema(kind)["properties"], "metadata": METADATA}}, column)
        assert at.get("type") in {"string", "integer", "boolean", "number", None}, column
        assert at.get("type") or at.get("x-kubernetes-int-or-string"), column
    assert columns[-1]["name"] == "Age"


def _schema(kind: Schema) -> Schema:
    (version,) = kind["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, one in schema.get("properties", {}).items():
        if path or name not in OF_EVERY_OBJECT:
            yield from _fields(one, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        below = schema.get(inner)
        for name, one in below.get("properties", {}).items() if isinstance(below, dict) else ():
            yield from _fields(one, f"{path}[].{name}")


def _at(schema: Schema, column: Schema) -> Schema:
    """Return the schema of what a column shows."""
    path = column["jsonPath"].replace(r"\.", "\0")
    for part in re.findall(r"\[[^\]]*\]|[^.\[]+", path):
        name = part.replace("\0", ".")
        if part.startswith("["):
            schema = schema["items"]
        else:
            schema = schema.get("properties", {}).get(name) or schema["additionalProperties"]
    return schema
