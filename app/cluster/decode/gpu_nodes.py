"""Reads a GpuNode: the devices of a node as its agent reports them. The node writes it, so it is not trusted."""

from collections.abc import Sequence
from functools import partial

from app.cluster.decode.layout import layout_of
from app.cluster.decode.reading import Fields, ObjectReading, identified
from app.model.device import Device, DeviceUuid, GpuNode, Health, Holder
from app.model.names import NodeName, PodUid
from app.model.quantity import json_integer

MOST_MIB = 1 << 40
"""A TiB in MiB: more than any device has."""

MOST_DEVICES = 63
"""The number of bits in a mask of devices: an int64 without its sign."""

MOST_FAILURES = 64

MOST_PODS = 256
"""Pods with processes on one device."""

MOST_HOLDERS = 4096
"""On all devices of a node: each device of 16 may have `MOST_PODS`, of more devices each may have fewer."""

mib = partial(json_integer, minimum=0, maximum=MOST_MIB)
small = partial(json_integer, minimum=0, maximum=1023)


def gpu_node(raw: object) -> GpuNode:
    """Decode a GpuNode without the time of its report, so that equal reports are equal."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    status = reading.mapping(fields, "status")
    kubelet = reading.mapping(status, "kubelet")
    stated = _first(reading, status, "devices", MOST_DEVICES)
    return GpuNode(
        name=NodeName(metadata["name"]),
        uid=metadata["uid"],
        devices=tuple(_device(reading, each, min(MOST_PODS, MOST_HOLDERS // len(stated))) for each in stated),
        kubelet_answers=reading.flag(kubelet, "answers"),
        kubelet_reason=reading.text(kubelet, "reason"),
        boot_id=reading.text(status, "bootId"),
        driver_version=reading.text(status, "driverVersion"),
        failures=tuple(_failure(reading, each) for each in _first(reading, status, "failures", MOST_FAILURES)),
        message=reading.text(status, "message"),
        layout=layout_of(stated),
        problem=reading.problem,
    )


def _first(reading: ObjectReading, parent: Fields, key: str, most: int) -> Sequence[Fields]:
    """Return the first items of a list: items beyond the possible number on a node are ignored."""
    value = parent.get(key)
    return reading.mappings({key: value[:most]} if isinstance(value, list) else parent, key)


def _device(reading: ObjectReading, raw: Fields, most_pods: int) -> Device:
    memory, mig = reading.mapping(raw, "memoryMiB"), reading.mapping(raw, "mig")
    total = reading.number("memoryMiB.total", memory.get("total"), mib)
    return Device(
        uuid=DeviceUuid(reading.text(raw, "uuid")),
        index=reading.number("index", raw.get("index"), small),
        product=reading.text(raw, "product"),
        memory_mib=total,
        used_mib=None if memory.get("used") is None else reading.number("memoryMiB.used", memory["used"], mib),
        foreign_mib=reading.number("memoryMiB.foreign", memory.get("foreign"), mib),
        health=_health(raw.get("health")),
        health_reason=reading.text(raw, "healthReason"),
        is_mig=reading.flag(mig, "enabled") or reading.flag(mig, "pending"),
        mig_profiles=tuple(reading.text(each, "profile") for each in _first(reading, mig, "instances", MOST_DEVICES)),
        numa_node=None if raw.get("numaNode") is None else reading.number("numaNode", raw["numaNode"], small),
        holders=tuple(_holder(reading, each) for each in _first(reading, raw, "pods", most_pods)),
        processes=tuple(_process(reading, each) for each in _first(reading, raw, "processes", most_pods)),
    )


def _health(value: object) -> Health:
    # The value is absent where the driver cannot state it: that does not make the device unhealthy. An unknown word
    # does.
    if value is None:
        return Health.HEALTHY
    return Health(value) if isinstance(value, str) and value in set(Health) else Health.UNKNOWN


def _failure(reading: ObjectReading, raw: Fields) -> str:
    device = reading.text(raw, "device")
    return f"{reading.text(raw, 'call')}{f' of {device}' if device else ''}: {reading.text(raw, 'error')}"


def _process(reading: ObjectReading, raw: Fields) -> tuple[PodUid, int | None]:
    memory = raw.get("memoryMiB")
    used = None if memory is None else reading.number("processes.memoryMiB", memory, mib)
    return PodUid(reading.text(raw, "podUid")), used


def _holder(reading: ObjectReading, raw: Fields) -> Holder:
    return Holder(
        namespace=reading.text(raw, "namespace"),
        name=reading.text(raw, "name"),
        uid=reading.text(raw, "uid"),
        memory_mib=None if raw.get("memoryMiB") is None else reading.number("memoryMiB", raw["memoryMiB"], mib),
    )
