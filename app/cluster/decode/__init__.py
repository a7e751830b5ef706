"""Turns raw Kubernetes objects into Leeboard's records: the only code that knows the names of their fields.

No content of an object raises an error. What cannot be read becomes the record's `problem`, a sentence for the owner,
and the rest of the object is still read. Only an object without a name or uid is a `DecodeError`.
"""

from app.cluster.decode.glances import (
    SeenPod,
    asked_pod,
    bound_node,
    end_of,
    has_succeeded,
    is_ours,
    names_profile,
    nominated_node,
    seen_pod,
)
from app.cluster.decode.gpu_nodes import gpu_node
from app.cluster.decode.history import tally
from app.cluster.decode.least import least_pod, without_uid
from app.cluster.decode.native_groups import native_pod_group
from app.cluster.decode.nodes import node
from app.cluster.decode.origin import NOTHING_KEPT, Keeps, owner
from app.cluster.decode.pods import Rules, is_terminal, pod
from app.cluster.decode.policy import pod_group, priority_class, queue, topology
from app.cluster.decode.reading import LEAST, DecodeError, full_name, identity, name_of, namespace_of, version
from app.cluster.decode.resource_claims import device_class, resource_claim
from app.cluster.decode.resource_slices import device_taint_rule, resource_slice

__all__ = [
    "LEAST",
    "NOTHING_KEPT",
    "DecodeError",
    "Keeps",
    "Rules",
    "SeenPod",
    "asked_pod",
    "bound_node",
    "device_class",
    "device_taint_rule",
    "end_of",
    "full_name",
    "gpu_node",
    "has_succeeded",
    "identity",
    "is_ours",
    "is_terminal",
    "least_pod",
    "name_of",
    "names_profile",
    "namespace_of",
    "native_pod_group",
    "node",
    "nominated_node",
    "owner",
    "pod",
    "pod_group",
    "priority_class",
    "queue",
    "resource_claim",
    "resource_slice",
    "seen_pod",
    "tally",
    "topology",
    "version",
    "without_uid",
]
