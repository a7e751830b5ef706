"""Builds objects as large as the API server stores them, one field at a time: all that a tenant or an agent may write.

The fields come from the schemas, so a new field is tried as soon as its schema is known here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from kubernetes_asyncio.client import models

Raw = dict[str, Any]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The content of a field: one of object, list, map, text, number, any; `fields` of an object, `item` of a list."""

    kind: str
    fields: Mapping[str, "Shape"] = field(default_factory=dict)
    item: "Shape | None" = None


TEXT, NUMBER, ANY = Shape("text"), Shape("number"), Shape("any")
TEXTS = Shape("map", item=TEXT)

_LIST, _MAP = re.compile(r"list\[(.+)\]"), re.compile(r"dict\(str, (.+)\)")
_NATIVE = {"str": TEXT, "datetime": TEXT, "int": NUMBER, "float": NUMBER, "bool": NUMBER, "object": ANY}


def of_model(name: str) -> Shape:
    """Return the shape of a type of Kubernetes, such as V1Pod."""
    if name in _NATIVE:
        return _NATIVE[name]
    if found := _LIST.fullmatch(name):
        return Shape("list", item=of_model(found[1]))
    if found := _MAP.fullmatch(name):
        return Shape("map", item=of_model(found[1]))
    model = getattr(models, name)
    return Shape("object", {model.attribute_map[key]: of_model(kind) for key, kind in model.openapi_types.items()})


def of_schema(schema: Raw) -> Shape:
    """Return the shape of a part of an OpenAPI schema."""
    match schema:
        case {"properties": properties}:
            return Shape("object", {key: of_schema(one) for key, one in properties.items()})
        case {"items": item}:
            return Shape("list", item=of_schema(item))
        case {"additionalProperties": dict() as item}:
            return Shape("map", item=of_schema(item))
        case {"type": "string"}:
            return TEXT
        case {"type": "integer" | "number" | "boolean"}:
            return NUMBER
        case _:
            return ANY


def of_crd(text: str) -> Shape:
    """Return the shape of the objects of a CustomResourceDefinition, with the metadata that every object has."""
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    shape = of_schema(schema)
    return Shape("object", {**shape.fields, "metadata": of_model("V1ObjectMeta")})


@dataclass(frozen=True, slots=True)
class Hostile:
    """One object, and which fields of it are too large."""

    paths: tuple[Path, ...]
    raw: Raw

    def __repr__(self) -> str:
        return " and ".join(".".join(path) for path in self.paths)


def hostile(shape: Shape, base: Raw, size: int) -> Iterator[Hostile]:
    """Yield the object once for each field and each way in which the field may take `size` bytes."""
    for path, value in _worst(shape, size):
        yield Hostile((path,), merged(base, value))


def together(objects: Iterable[Hostile], most: int) -> list[Hostile]:
    """Return fewer objects, each with up to this many of the fields; none is lost, since none is inside another."""
    batches: list[Hostile] = []
    opened: list[Hostile] = []
    for one in objects:
        into = next((at for at, other in enumerate(opened) if not _overlap(one, other)), None)
        if into is None:
            opened.append(one)
            continue
        joined = Hostile((*opened[into].paths, *one.paths), merged(opened[into].raw, one.raw))
        if len(joined.paths) < most:
            opened[into] = joined
        else:
            batches.append(joined)
            del opened[into]
    return [*batches, *opened]


def _overlap(one: Hostile, other: Hostile) -> bool:
    return any(_is_within(mine[:-1], theirs[:-1]) for mine in one.paths for theirs in other.paths)


def _is_within(one: Path, other: Path) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _worst(shape: Shape, size: int) -> Iterator[tuple[Path, Any]]:
    if shape.item is None:
        for key, inner in shape.fields.items():
            for path, value in _worst(inner, size):
                yield (key, *path), {key: value}
        for number, value in enumerate(_of_size(shape, size)):
            yield (f"={number}",), value
        return
    # One item with a large field, and many small items.
    is_list = shape.kind == "list"
    for path, value in _worst(shape.item, size):
        yield ("[]", *path), [value] if is_list else {"k": value}
    for number, item in enumerate((_least(shape.item), _most(shape.item))):
        items = _times(item, size)
        yield (f"={number}",), items if is_list else {f"k{at}": one for at, one in enumerate(items)}


def _of_size(shape: Shape, size: int) -> Iterator[Any]:
    match shape.kind:
        case "text":
            yield from ("x" * size, "9" * size, "1," * (size // 2))
        case "any":
            yield [[]] * (size // 3)
            yield {f"k{number}": {} for number in range(size // 12)}
            yield _deep(min(size // 8, 200))
        case "number":
            yield (1 << 63) - 1


def _times(item: Any, size: int) -> list[Any]:
    length = max(len(repr(item)), 3)
    return [_numbered(item, number) for number in range(size // length)]


def _numbered(item: Any, number: int) -> Any:
    """Return an item whose name differs from that of the others, if it has one."""
    if isinstance(item, str):
        return f"{item}{number}"
    if isinstance(item, dict):
        return {
            key: f"{value}{number}" if key in {"name", "key", "uuid", "uid"} else value for key, value in item.items()
        }
    return item


def _least(shape: Shape) -> Any:
    return {"object": {}, "list": [], "map": {}, "text": "a", "number": 1, "any": {}}[shape.kind]


USUAL = {"operator": "In", "key": "zone", "nodeLabel": "zone", "topologyKey": "zone", "cpu": "1"}


def _most(shape: Shape, name: str = "", depth: int = 4) -> Any:
    """Return a value with every field down to a depth, each as short as possible."""
    match shape.kind:
        case "object" if depth:
            return {key: _most(inner, key, depth - 1) for key, inner in shape.fields.items()}
        case "list" if shape.item is not None and depth:
            return [_most(shape.item, name, depth - 1)]
        case "text":
            return USUAL.get(name, "a")
        case _:
            return _least(shape)


def _deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"k": value}
    return value


def merged(base: Any, value: Any) -> Any:
    """Return the value with the fields of the base beside it: an object that is right elsewhere is read closely."""
    if isinstance(base, dict) and isinstance(value, dict):
        return {**base, **{key: merged(base.get(key), inner) for key, inner in value.items()}}
    if isinstance(base, list) and isinstance(value, list) and len(base) == len(value) == 1:
        return [merged(base[0], value[0])]
    return value
