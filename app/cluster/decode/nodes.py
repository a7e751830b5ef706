"""Reads a node: what it can give, its labels and taints, and whether it takes work now."""

from app.cluster.decode.demand import GPU_RESOURCE, gpus_milli
from app.cluster.decode.reading import Fields, Reading, identified
from app.model.names import NodeName
from app.model.node import Node, Taint
from app.model.quantity import milli, whole
from app.model.resources import Resources

BINDING_EFFECTS = ("NoSchedule", "NoExecute")


def node(raw: object) -> Node:
    """Decode a node; one without a Ready condition is not ready."""
    fields, metadata = identified(raw)
    reading = Reading()
    spec, status = reading.mapping(fields, "spec"), reading.mapping(fields, "status")
    return Node(
        name=NodeName(metadata["name"]),
        allocatable=_allocatable(reading, reading.mapping(status, "allocatable")),
        labels=reading.texts(metadata, "labels"),
        taints=_taints(reading, spec),
        ready=_is_ready(reading, status),
        unschedulable=spec.get("unschedulable") is True,
        problem=reading.problem,
    )


def _allocatable(reading: Reading, fields: Fields) -> Resources:
    return Resources(
        cpu_milli=reading.number("allocatable cpu", fields.get("cpu"), milli),
        memory_bytes=reading.number("allocatable memory", fields.get("memory"), whole),
        gpu_milli=reading.number(f"allocatable {GPU_RESOURCE}", fields.get(GPU_RESOURCE), gpus_milli),
        pods=reading.number("allocatable pods", fields.get("pods"), whole),
    )


def _taints(reading: Reading, spec: Fields) -> tuple[Taint, ...]:
    return tuple(
        Taint(reading.text(raw, "key"), reading.text(raw, "value"), raw["effect"])
        for raw in reading.mappings(spec, "taints")
        if raw.get("effect") in BINDING_EFFECTS
    )


def _is_ready(reading: Reading, status: Fields) -> bool:
    conditions = reading.mappings(status, "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
