"""Reads a node: its allocatable resources, its labels and taints, and whether it accepts work now."""

from collections.abc import Mapping
from itertools import chain, islice
from sys import intern

from app.cluster.decode.demand import GPU_RESOURCE, OF_DEVICES, gpus_milli, is_extended, scalars
from app.cluster.decode.reading import Fields, ObjectReading, identified
from app.model.names import NodeName
from app.model.node import Node, Taint
from app.model.quantity import QuantityError, integer, milli, shown, whole
from app.model.resources import MAX_AMOUNT, Resources, Scalars, is_gpu

GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
"""Written by NVIDIA's feature discovery, in MiB."""

IN_BYTES_FROM = 1 << 20
"""KAI: no GPU has a TiB of memory, so a number from here on counts bytes."""

MEMORY_STEP_MIB = 100
"""KAI: GPUs of one kind differ by a few MiB; they must count as equal."""

PRESENT_LABEL = "nvidia.com/gpu.present"
"""Written by NVIDIA's operator on nodes with GPUs, before their device plugins run."""

MIG_LABEL = "node-role.kubernetes.io/mig-enabled"

REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""How often the device plugin gives out each GPU: more than once with time-slicing or its own MPS."""

UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
"""Set by the node lifecycle controller when a kubelet does not report for too long."""

MOST_EXTENDED = 128
"""Extended resources of one node: each needs a column of all nodes, and a kubelet may report any number."""

BINDING_EFFECTS = ("NoSchedule", "NoExecute")


def node(raw: object) -> Node:
    """Decode a node; a node without a Ready condition, or an unreachable node, is not ready."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec, status = reading.mapping(fields, "spec"), reading.mapping(fields, "status")
    allocatable, labels = reading.mapping(status, "allocatable"), _labels(reading, metadata)
    taints = _taints(reading, spec)
    return Node(
        name=NodeName(metadata["name"]),
        allocatable=_allocatable(reading, allocatable),
        scalars=_scalars(reading, allocatable),
        device_memory_mib=_device_memory_mib(labels),
        names_gpus=_names_gpus(labels, allocatable, status),
        shares_devices=labels.get(MIG_LABEL) != "true" and not _is_replicated(labels),
        labels=labels,
        taints=taints,
        ready=_is_ready(reading, status) and all(taint.key != UNREACHABLE_TAINT for taint in taints),
        unschedulable=reading.flag(spec, "unschedulable"),
        problem=reading.problem,
    )


def _allocatable(reading: ObjectReading, fields: Fields) -> Resources:
    return Resources(
        cpu_milli=reading.number("allocatable cpu", fields.get("cpu"), milli),
        memory_bytes=reading.number("allocatable memory", fields.get("memory"), whole),
        gpu_milli=reading.number(f"allocatable {GPU_RESOURCE}", fields.get(GPU_RESOURCE), gpus_milli),
        pods=reading.number("allocatable pods", fields.get("pods"), whole),
    )


def _scalars(reading: ObjectReading, fields: Fields) -> Scalars:
    names = list(filter(is_extended, fields))
    if len(names) > MOST_EXTENDED:
        reading.doubt(
            f"it has {len(names)} extended resources, so nothing is placed on it; have at most {MOST_EXTENDED}"
        )
        # Resources of device plugins are first, as in pods.
        names = sorted(names, key=lambda name: not name.startswith(OF_DEVICES))[:MOST_EXTENDED]
    return scalars((name, reading.number(f"allocatable {shown(name)}", fields[name], whole)) for name in names)


def _labels(reading: ObjectReading, metadata: Fields) -> Mapping[str, str]:
    # Most nodes have the same labels, and comparing all of them is twice as fast where equal values are one object.
    return {intern(key): intern(value) for key, value in reading.texts(metadata, "labels").items()}


def _names_gpus(labels: Mapping[str, str], allocatable: Fields, status: Fields) -> bool:
    """Whether the node has GPUs: device plugins may offer none while they start, or while all GPUs are unhealthy."""
    capacity = status.get("capacity")
    names = chain(allocatable, capacity if isinstance(capacity, dict) else ())
    return labels.get(PRESENT_LABEL) == "true" or any(
        name == GPU_RESOURCE or (is_extended(name) and is_gpu(name)) for name in islice(names, MOST_EXTENDED)
    )


def _device_memory_mib(labels: Mapping[str, str]) -> int:
    """Return the memory of each GPU; 0 when the label is missing or cannot be read."""
    try:
        amount = integer(labels.get(GPU_MEMORY_LABEL, "0"), maximum=MAX_AMOUNT)
    except QuantityError:
        return 0
    mib = amount >> 20 if amount >= IN_BYTES_FROM else amount
    return mib - mib % MEMORY_STEP_MIB


def _is_replicated(labels: Mapping[str, str]) -> bool:
    # A pod with one of several replicas shares a GPU with unknown pods: no part of this GPU can be reserved.
    return labels.get(REPLICAS_LABEL, "") not in ("", "0", "1")


def _taints(reading: ObjectReading, spec: Fields) -> tuple[Taint, ...]:
    return tuple(
        Taint(reading.text(raw, "key"), reading.text(raw, "value"), raw["effect"])
        for raw in reading.mappings(spec, "taints")
        if reading.text(raw, "effect") in BINDING_EFFECTS
    )


def _is_ready(reading: ObjectReading, status: Fields) -> bool:
    conditions = reading.mappings(status, "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
