"""Reads ResourceClaims and DeviceClasses of `resource.k8s.io`, v1 to v1beta1."""

from collections.abc import Sequence

from app.cluster.decode.parts import items
from app.cluster.decode.pods import QUEUE_LABELS
from app.cluster.decode.reading import MOST_ITEMS, DecodeError, Fields, ObjectReading, identified
from app.model.dra import AllocatedDevice, ClaimKey, DeviceClaim, DeviceClass, DeviceId, DeviceRequest
from app.model.names import NO_QUEUE, NodeName, PodUid, QueueName
from app.model.quantity import QuantityError, json_integer, whole

MOST_REQUESTS = 32
"""Kubernetes' own limit, as the following ones."""
MOST_SELECTORS = 32
MOST_ALTERNATIVES = 8
MOST_RESULTS = 32
MOST_DEVICES_ASKED = 1 << 20
LONGEST_EXPRESSION = 10 * 1024

FOR_EXTENDED_RESOURCE = "resource.kubernetes.io/extended-resource-claim"


def resource_claim(raw: object) -> DeviceClaim:
    """Decode a ResourceClaim. Of one that cannot be read, the allocated devices are still read."""
    fields, metadata = identified(raw)
    key, reading = claim_key(metadata), ObjectReading()
    spec, status = reading.mapping(fields, "spec"), reading.mapping(fields, "status")
    devices = reading.mapping(spec, "devices")
    constraints = reading.mappings(devices, "constraints", most=MOST_REQUESTS)
    held = ObjectReading()
    allocation = None if status.get("allocation") is None else held.mapping(status, "allocation")
    allocated = None if allocation is None else _allocated(held, allocation)
    return DeviceClaim(
        key=key,
        queue=_queue(reading, metadata),
        requests=tuple(_request(reading, each) for each in reading.mappings(devices, "requests", most=MOST_REQUESTS)),
        matched=tuple(filter(None, (reading.name(each, "matchAttribute") for each in constraints))),
        allocated=allocated,
        node=None if allocation is None else _node(held, allocation),
        is_allocation_unread=bool(held.problem) or not isinstance(fields.get("status"), dict | None),
        owner=_owner(metadata),
        for_extended_resource=reading.mapping(metadata, "annotations").get(FOR_EXTENDED_RESOURCE) == "true",
        problem=reading.problem or held.problem,
    )


def claim_key(metadata: Fields) -> ClaimKey:
    """Return the key of a claim; raise `DecodeError` when it has none."""
    namespace = metadata.get("namespace")
    if not isinstance(namespace, str) or not namespace:
        raise DecodeError("the object has no metadata.namespace")
    return ClaimKey(namespace, metadata["name"])


def device_class(raw: object) -> DeviceClass:
    """Decode a DeviceClass."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec = reading.mapping(fields, "spec")
    return DeviceClass(
        name=metadata["name"],
        selectors=_selectors(reading, spec),
        extended_resource=reading.name(spec, "extendedResourceName"),
        created_at=reading.seconds(metadata, "creationTimestamp"),
        problem=reading.problem,
    )


def _queue(reading: ObjectReading, metadata: Fields) -> QueueName:
    labels = reading.mapping(metadata, "labels")
    for label in QUEUE_LABELS:
        if name := reading.name(labels, label):
            return QueueName(name)
    return NO_QUEUE


def _owner(metadata: Fields) -> PodUid | None:
    for each in items(metadata, "ownerReferences")[:MOST_ITEMS]:
        if each.get("kind") == "Pod" and each.get("controller") is True and isinstance(each.get("uid"), str):
            return PodUid(each["uid"])
    return None


def _request(reading: ObjectReading, raw: Fields) -> DeviceRequest:
    alternatives = reading.mappings(raw, "firstAvailable", most=MOST_ALTERNATIVES)
    if alternatives:
        choices = tuple(_exactly(reading, each, each) for each in alternatives)
        return DeviceRequest(name=reading.name(raw, "name"), alternatives=choices)
    # v1beta1 states the fields in the request itself.
    exactly = reading.mapping(raw, "exactly") if raw.get("exactly") is not None else raw
    return _exactly(reading, raw, exactly)


def _exactly(reading: ObjectReading, named: Fields, raw: Fields) -> DeviceRequest:
    mode = reading.text(raw, "allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        reading.doubt(f"allocationMode {mode[:32]!a} is not known; write ExactCount or All")
    return DeviceRequest(
        name=reading.name(named, "name"),
        device_class=reading.name(raw, "deviceClassName"),
        selectors=_selectors(reading, raw),
        count=reading.number("count", raw.get("count"), _count, otherwise=1) or 1,
        is_all=mode == "All",
        is_admin=raw.get("adminAccess") is True,
        capacity=_amounts(reading, reading.mapping(raw, "capacity"), "requests"),
    )


def _count(value: object) -> int:
    return json_integer(value, minimum=0, maximum=MOST_DEVICES_ASKED)


def _selectors(reading: ObjectReading, parent: Fields) -> tuple[str, ...]:
    found = reading.mappings(parent, "selectors", most=MOST_SELECTORS)
    return tuple(reading.text(reading.mapping(each, "cel"), "expression")[:LONGEST_EXPRESSION] for each in found)


def _amounts(reading: ObjectReading, parent: Fields, key: str) -> tuple[tuple[str, int], ...]:
    """Read quantities by name; one that cannot be read is noted and left out."""
    found: list[tuple[str, int]] = []
    for name, value in reading.entries(parent, key, MOST_ITEMS):
        try:
            found.append((name, whole(value)))
        except QuantityError as error:
            reading.doubt(f"capacity cannot be read: {error}")
    return tuple(found)


def _allocated(reading: ObjectReading, allocation: Fields) -> tuple[AllocatedDevice, ...]:
    results: Sequence[Fields] = reading.mappings(reading.mapping(allocation, "devices"), "results", most=MOST_RESULTS)
    return tuple(
        AllocatedDevice(
            device=DeviceId(reading.name(each, "driver"), reading.name(each, "pool"), reading.name(each, "device")),
            is_admin=each.get("adminAccess") is True,
            consumed=_amounts(reading, each, "consumedCapacity"),
        )
        for each in results
    )


def _node(reading: ObjectReading, allocation: Fields) -> NodeName | None:
    """Return the node to which an allocation is bound: kube-scheduler writes its name as a field selector."""
    terms = reading.mappings(reading.mapping(allocation, "nodeSelector"), "nodeSelectorTerms")
    if len(terms) != 1:
        return None
    for each in reading.mappings(terms[0], "matchFields"):
        if reading.text(each, "key") == "metadata.name":
            match each.get("values"):
                case [str(name)]:
                    return NodeName(name)
            reading.doubt("the node of its devices cannot be read")
    return None
