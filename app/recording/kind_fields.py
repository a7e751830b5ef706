"""Keeps the fields of watched objects other than pods that `decode`, `admit` and the learners read."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from app.cluster.decode.demand import GPU_RESOURCE, UNBOUNDED, is_extended
from app.cluster.decode.gpu_nodes import MOST_DEVICES, MOST_FAILURES, MOST_PODS
from app.cluster.decode.layout import MOST_LINKS
from app.cluster.decode.nodes import MOST_EXTENDED
from app.cluster.decode.pods import QUEUE_LABELS
from app.cluster.decode.policy import STALENESS_ANNOTATION
from app.cluster.decode.reading import MOST_ITEMS
from app.cluster.decode.resource_claims import (
    FOR_EXTENDED_RESOURCE,
    MOST_ALTERNATIVES,
    MOST_REQUESTS,
    MOST_RESULTS,
    MOST_SELECTORS,
)
from app.cluster.decode.resource_slices import MOST_ATTRIBUTES, MOST_COUNTER_SETS, MOST_COUNTERS, MOST_TAINTS
from app.cluster.decode.resource_slices import MOST_DEVICES as MOST_SLICE_DEVICES
from app.cluster.encode.status_fields import (
    INITIALLY_SCHEDULED,
    MOST_CONDITIONS,
    VOLATILE,
    GroupTotals,
    pod_group_status,
    queue_status,
)
from app.cluster.queues.usage import Tally
from app.model.decision import Share
from app.model.marks import MANAGED_BY_LABEL
from app.model.names import QueueName
from app.model.queue import Queue
from app.model.reason import Reason, Refusal, RefusingQueue
from app.model.resources import NOTHING, is_gpu
from app.model.scaling import GROUP_ANNOTATION
from app.model.seam import RawObject, Resource
from app.recording.container_fields import AMOUNTS
from app.recording.pod_fields import REFERENCES, STAMPS, pod
from app.recording.whitelist import (
    Cut,
    compared,
    entries,
    fields,
    first,
    items,
    like,
    picked,
    plain,
    presence,
    texts,
    truth,
)

METADATA = fields(STAMPS)
"""The metadata of a kind of which neither labels nor annotations are read."""

# Nodes --------------------------------------------------------------------------------------------------------------


def node(raw: RawObject) -> RawObject:
    """Reduce a node; all its labels stay, because selectors and topologies may name any."""
    kept: RawObject = _NODE(raw)
    status = raw.get("status")
    capacity = status.get("capacity") if isinstance(status, dict) else None
    if isinstance(status, dict) and isinstance(capacity, dict):
        kept["status"]["capacity"] = _capacity(capacity, status.get("allocatable"))
    return kept


def _capacity(capacity: Mapping[str, Any], allocatable: object) -> RawObject:
    """Keep the names of GPUs, without amounts; all the first names where their position matters."""
    allocated = len(allocatable) if isinstance(allocatable, dict) else 0
    names = islice(capacity, MOST_EXTENDED)
    if allocated + len(capacity) > MOST_EXTENDED:
        return dict.fromkeys(names)
    return {name: None for name in names if name == GPU_RESOURCE or (is_extended(name) and is_gpu(name))}


def _ready(value: Any) -> Any:
    if not isinstance(value, dict):
        return plain(value)
    return _CONDITION(value) if value.get("type") == "Ready" else {}


_CONDITION = fields(texts("type", "status"))
_NODE = fields(
    {
        "metadata": fields({**STAMPS, "labels": entries(most=MOST_ITEMS)}),
        "spec": fields({"unschedulable": plain, "taints": items(fields(texts("key", "value", "effect")), MOST_ITEMS)}),
        "status": fields({"allocatable": AMOUNTS, "conditions": picked(_ready, MOST_ITEMS)}),
    }
)

_LINK = fields(texts("uuid", "nvlinks", "ancestor"))
_DEVICE = fields(
    {
        **texts("uuid", "index", "product", "health", "healthReason", "numaNode"),
        "memoryMiB": fields(texts("total", "used", "foreign")),
        "mig": fields({**texts("enabled", "pending"), "instances": first(fields({"profile": plain}), MOST_DEVICES)}),
        "pods": first(fields(texts("namespace", "name", "uid", "memoryMiB")), MOST_PODS),
        "processes": first(fields(texts("podUid", "memoryMiB")), MOST_PODS),
        "links": first(_LINK, MOST_LINKS),
    }
)
_GPU_NODE = fields(
    {
        "metadata": METADATA,
        "status": fields(
            {
                **texts("bootId", "driverVersion", "message"),
                "kubelet": fields(texts("answers", "reason")),
                "devices": first(_DEVICE, MOST_DEVICES),
                "failures": first(fields(texts("device", "call", "error")), MOST_FAILURES),
            }
        ),
    }
)

# Policy -------------------------------------------------------------------------------------------------------------

NOBODYS_QUEUE = Queue(name=QueueName(""))
NO_USAGE = Tally(at_ms=0, used=(0, 0, 0), capacity=(0, 0, 0))
NO_PODS = GroupTotals(allocated=NOTHING, requested=NOTHING, non_preemptible=NOTHING, phase="", running=0, pending=0)
NO_ROOM = Refusal(
    reason=Reason.DECIDING,
    sentence="",
    queue=RefusingQueue(
        name=QueueName(""),
        requested=NOTHING,
        deserved=NOTHING,
        allocated=NOTHING,
        allocated_non_preemptible=NOTHING,
        limit=NOTHING,
        asked=NOTHING,
        asked_non_preemptible=NOTHING,
    ),
)


def _status(*examples: RawObject) -> Cut:
    """Return what keeps the status that Leeboard writes: `report.status` compares it with what it would write."""
    rules: dict[str, Cut] = {}
    for example in examples:
        for key, value in example.items():
            rules[key] = like(value, volatile=frozenset(VOLATILE))
    return fields(rules)


_QUEUE_STATUS = _status(
    queue_status(NOBODYS_QUEUE, Share(), [QueueName("child")], now="", past=NO_USAGE),
)
_GROUP_STATUS = _status(pod_group_status(NO_PODS, NO_ROOM, now=""))

_ENTITLEMENT = fields(texts("quota", "limit", "overQuotaWeight"))
_QUEUE = fields(
    {
        "metadata": METADATA,
        "spec": fields(
            {
                **texts("parentQueue", "priority", "displayName", "preemptMinRuntime", "reclaimMinRuntime"),
                "resources": fields(dict.fromkeys(("gpu", "cpu", "memory"), _ENTITLEMENT)),
            }
        ),
        "status": _QUEUE_STATUS,
    }
)

# The PodGroup writer compares whole sub-groups and constraints with those that it would write.
_CONSTRAINT = compared(texts("topology", "requiredTopologyLevel", "preferredTopologyLevel"))
_SUB_GROUP = compared({**texts("name", "parent", "minMember"), "topologyConstraint": _CONSTRAINT})
_POD_GROUP = fields(
    {
        "metadata": fields(
            {
                **STAMPS,
                "annotations": fields({STALENESS_ANNOTATION: plain}),
                "ownerReferences": REFERENCES,
            }
        ),
        "spec": fields(
            {
                **texts("minMember", "queue", "priorityClassName", "preemptibility", "stalenessGracePeriod"),
                "topologyConstraint": _CONSTRAINT,
                "subGroups": items(_SUB_GROUP, MOST_ITEMS),
            }
        ),
        "status": _GROUP_STATUS,
    }
)


def _initially_scheduled(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return _INITIALLY_SCHEDULED(value) if value.get("type") == INITIALLY_SCHEDULED else {}


_INITIALLY_SCHEDULED = fields(texts("type", "status", "reason", "message", "lastTransitionTime"))
_NATIVE_POD_GROUP = fields(
    {
        "metadata": fields({**STAMPS, "ownerReferences": REFERENCES}),
        "spec": fields(
            {
                **texts("priorityClassName", "parentCompositePodGroupName"),
                "schedulingPolicy": fields({"basic": presence, "gang": fields(texts("minCount"))}),
                "schedulingConstraints": fields({"topology": items(fields(texts("key")), MOST_ITEMS)}),
                "disruptionMode": fields({"all": presence}),
                "resourceClaims": truth,
            }
        ),
        "status": fields({"conditions": first(_initially_scheduled, MOST_CONDITIONS)}),
    }
)

_CLASS = fields({"metadata": METADATA, "value": plain})
_TOPOLOGY = fields(
    {
        "metadata": METADATA,
        "spec": fields({"levels": items(fields(texts("nodeLabel", "alias")), MOST_ITEMS)}),
    }
)

PROVISIONING_REQUEST = fields(
    {
        "metadata": fields(
            {
                **STAMPS,
                "labels": fields({MANAGED_BY_LABEL: plain}),
                "annotations": fields({GROUP_ANNOTATION: plain}),
            }
        ),
        "spec": fields({"podSets": items(fields({"count": plain}), UNBOUNDED)}),
        "status": fields({"conditions": items(fields(texts("type", "status", "reason", "message")), UNBOUNDED)}),
    }
)

_SELECTORS = items(fields({"cel": fields({"expression": plain})}), MOST_SELECTORS)
_EXACTLY = {
    **texts("name", "deviceClassName", "allocationMode", "count", "adminAccess"),
    "selectors": _SELECTORS,
    "capacity": fields({"requests": entries(most=MOST_ITEMS)}),
}
_REQUEST = fields(
    {**_EXACTLY, "exactly": fields(_EXACTLY), "firstAvailable": items(fields(_EXACTLY), MOST_ALTERNATIVES)}
)
_RESULT = fields({**texts("driver", "pool", "device", "adminAccess"), "consumedCapacity": entries(most=MOST_ITEMS)})
_CLAIM = fields(
    {
        "metadata": fields(
            {
                **STAMPS,
                "labels": fields(dict.fromkeys(QUEUE_LABELS, plain)),
                "annotations": fields({FOR_EXTENDED_RESOURCE: plain}),
                "ownerReferences": REFERENCES,
            }
        ),
        "spec": fields(
            {
                "devices": fields(
                    {
                        "requests": items(_REQUEST, MOST_REQUESTS),
                        "constraints": items(fields(texts("matchAttribute")), MOST_REQUESTS),
                    }
                )
            }
        ),
        "status": fields(
            {
                "allocation": fields(
                    {
                        "devices": fields({"results": items(_RESULT, MOST_RESULTS)}),
                        "nodeSelector": fields(
                            {
                                "nodeSelectorTerms": items(
                                    fields(
                                        {
                                            "matchFields": items(
                                                fields({"key": plain, "values": items(plain, 1)}), MOST_ITEMS
                                            )
                                        }
                                    ),
                                    MOST_ITEMS,
                                )
                            }
                        ),
                    }
                )
            }
        ),
    }
)
_DEVICE_CLASS = fields({"metadata": METADATA, "spec": fields({"selectors": _SELECTORS, "extendedResourceName": plain})})
_COUNTERS = fields({"value": plain})
_SLICE_DEVICE = {
    **texts("nodeName", "allowMultipleAllocations"),
    "attributes": entries(fields(texts("string", "bool", "int", "version")), most=MOST_ATTRIBUTES),
    "capacity": entries(_COUNTERS, most=MOST_ATTRIBUTES),
    "consumesCounters": items(
        fields({"counterSet": plain, "counters": entries(_COUNTERS, most=MOST_COUNTERS)}), MOST_COUNTER_SETS
    ),
    "taints": items(fields(texts("effect")), MOST_TAINTS),
}
_RESOURCE_SLICE = fields(
    {
        "metadata": METADATA,
        "spec": fields(
            {
                **texts("driver", "nodeName"),
                "pool": fields(texts("name", "generation", "resourceSliceCount")),
                "sharedCounters": items(
                    fields({"name": plain, "counters": entries(_COUNTERS, most=MOST_COUNTERS)}), MOST_COUNTER_SETS
                ),
                "devices": items(
                    fields({"name": plain, **_SLICE_DEVICE, "basic": fields(_SLICE_DEVICE)}), MOST_SLICE_DEVICES
                ),
            }
        ),
    }
)
_TAINT_RULE = fields(
    {
        "metadata": METADATA,
        "spec": fields({"deviceSelector": fields(texts("driver", "pool", "device")), "taint": fields(texts("effect"))}),
    }
)

KINDS: Mapping[Resource, Cut] = {
    Resource.NODES: node,
    Resource.PODS: pod,
    Resource.PRIORITY_CLASSES: _CLASS,
    Resource.QUEUES: _QUEUE,
    Resource.POD_GROUPS: _POD_GROUP,
    Resource.NATIVE_POD_GROUPS: _NATIVE_POD_GROUP,
    Resource.TOPOLOGIES: _TOPOLOGY,
    Resource.GPU_NODES: _GPU_NODE,
    Resource.DEVICE_CLASSES: _DEVICE_CLASS,
    Resource.RESOURCE_SLICES: _RESOURCE_SLICE,
    Resource.DEVICE_TAINT_RULES: _TAINT_RULE,
    Resource.RESOURCE_CLAIMS: _CLAIM,
}
"""What reduces the objects of each watched kind."""
