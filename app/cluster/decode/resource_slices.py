"""Reads ResourceSlices and DeviceTaintRules of `resource.k8s.io`, v1 to v1beta1. Drivers on the nodes write slices."""

import re
from collections.abc import Iterator
from functools import partial

from app.cluster.decode.reading import NO_FIELDS, Fields, ObjectReading, identified
from app.model.dra import AttributeValue, DeviceTaintRule, ResourceSlice, SliceDevice, Version
from app.model.names import NodeName
from app.model.quantity import QuantityError, json_integer, whole
from app.model.resources import UNLIMITED

MOST_DEVICES = 128
"""Kubernetes' own limit, as the following ones."""
MOST_ATTRIBUTES = 32
MOST_COUNTER_SETS = 8
MOST_COUNTERS = 32
MOST_TAINTS = 16
LONGEST_VALUE = 64

HARMLESS = ("None", "")
"""Effects of a taint that keep no pod away. An unknown effect does."""

_VERSION = re.compile(
    r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(?:\+[0-9A-Za-z.-]{1,64})?", re.ASCII
)

number = partial(json_integer, minimum=-UNLIMITED, maximum=UNLIMITED)


def resource_slice(raw: object) -> ResourceSlice:
    """Decode a ResourceSlice. A value that cannot be read makes its pool offer nothing new."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec = reading.mapping(fields, "spec")
    pool, driver = reading.mapping(spec, "pool"), reading.name(spec, "driver")
    return ResourceSlice(
        name=metadata["name"],
        driver=driver,
        pool=reading.name(pool, "name"),
        generation=reading.number("pool.generation", pool.get("generation"), number),
        slices=reading.number("pool.resourceSliceCount", pool.get("resourceSliceCount"), number, otherwise=1),
        node=_node(reading, spec),
        counters=tuple(_counters(reading, spec, "sharedCounters", "name")),
        devices=tuple(_device(reading, each, driver) for each in reading.mappings(spec, "devices", most=MOST_DEVICES)),
        problem=reading.problem,
    )


def device_taint_rule(raw: object) -> DeviceTaintRule:
    """Decode a DeviceTaintRule."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec = reading.mapping(fields, "spec")
    selector, taint = reading.mapping(spec, "deviceSelector"), reading.mapping(spec, "taint")
    effect = reading.text(taint, "effect")
    return DeviceTaintRule(
        name=metadata["name"],
        driver=reading.name(selector, "driver"),
        pool=reading.name(selector, "pool"),
        device=reading.name(selector, "device"),
        # Versions before v1 also select by class and by expression: such a rule counts for every device that its other
        # fields select.
        is_effective=bool(reading.problem) or (effect not in HARMLESS and spec.get("deviceSelector") is not None),
        problem=reading.problem,
    )


def _node(reading: ObjectReading, parent: Fields) -> NodeName | None:
    name = reading.name(parent, "nodeName")
    return NodeName(name) if name else None


def _device(reading: ObjectReading, raw: Fields, driver: str) -> SliceDevice:
    # v1beta1 states the fields in `basic`.
    stated = reading.mapping(raw, "basic") if raw.get("basic") is not None else raw
    taints = reading.mappings(stated, "taints", most=MOST_TAINTS)
    return SliceDevice(
        name=reading.name(raw, "name"),
        attributes=tuple(
            (_qualified(name, driver), _value(reading, value))
            for name, value in reading.entries(stated, "attributes", MOST_ATTRIBUTES)
        ),
        capacity=tuple(
            (_qualified(name, driver), _whole(reading, value))
            for name, value in reading.entries(stated, "capacity", MOST_ATTRIBUTES)
        ),
        consumes=tuple(_counters(reading, stated, "consumesCounters", "counterSet")),
        is_shareable=stated.get("allowMultipleAllocations") is True,
        is_tainted=any(reading.text(each, "effect") not in HARMLESS for each in taints),
        node=_node(reading, stated),
    )


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _value(reading: ObjectReading, value: object) -> AttributeValue:
    stated = value if isinstance(value, dict) else NO_FIELDS
    match stated:
        case {"string": str(text)}:
            return text[:LONGEST_VALUE]
        case {"bool": bool(flag)}:
            return flag
        case {"int": int(count)} if not isinstance(count, bool):
            return count if abs(count) <= UNLIMITED else None
        case {"version": str(text)}:
            return version_of(text)
    if not isinstance(value, dict):
        reading.doubt("an attribute of a device is not readable; write a mapping of its type to its value")
    return None


def version_of(text: str) -> Version | None:
    """Return a semantic version; None for one with a pre-release, or that is none."""
    match = _VERSION.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def _whole(reading: ObjectReading, value: object) -> int:
    try:
        return whole(reading.mapping({"capacity": value}, "capacity").get("value"))
    except QuantityError as error:
        reading.doubt(f"capacity of a device cannot be read: {error}")
        return 0


def _counters(reading: ObjectReading, parent: Fields, key: str, named: str) -> Iterator[tuple[str, str, int]]:
    for each in reading.mappings(parent, key, most=MOST_COUNTER_SETS):
        name = reading.name(each, named)
        for counter, amount in reading.entries(each, "counters", MOST_COUNTERS):
            yield name, counter, _whole(reading, amount)
