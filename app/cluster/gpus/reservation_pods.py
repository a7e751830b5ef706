"""Builds the reservation pod, which holds a whole GPU so that other pods can get parts of it."""

from dataclasses import dataclass
from hashlib import sha256

from app.model.marks import MANAGED_BY, MANAGED_BY_LABEL, RESERVATION_APP, RESERVATION_GROUP_LABEL
from app.model.names import NodeName
from app.model.seam import RawObject

LONGEST_PREFIX = 200
"""Of a node's name in the pod's: both may have 253 characters."""

USER = 65535
"""The user `nobody`, as in the pause image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationPodTerms:
    """An installation's settings for its reservation pods."""

    image: str
    priority_class: str
    scheduler: str


def reservation_name(node: NodeName, group: str, number: int = 0) -> str:
    """Return the name of a shared GPU's reservation pod: always the same, so that two replicas cannot create two.

    A higher `number` gives another name: for a further pod, created when the first one got the wrong device.
    """
    digest = sha256(f"{node}/{group}".encode()).hexdigest()[:10]
    return f"gpu-reservation-{node[:LONGEST_PREFIX].rstrip('.-')}-{digest}{f'-{number}' if number else ''}"


def reservation_pod(node: NodeName, group: str, name: str, *, owner_uid: str, terms: ReservationPodTerms) -> RawObject:
    """Return the pod that holds a whole GPU of a node for a shared one.

    kube-scheduler places the pod, so that its accounting is right; it can place the pod on this node only. The pod is
    Guaranteed and has the highest priority: if it were preempted, or evicted by the kubelet, its device would be given
    to another pod while pods still share it. An autoscaler may remove the pod: it does not keep a node alive.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app": RESERVATION_APP,
                MANAGED_BY_LABEL: MANAGED_BY,
                RESERVATION_GROUP_LABEL: group,
            },
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            },
            "ownerReferences": _owners(node, owner_uid),
        },
        "spec": {
            "schedulerName": terms.scheduler,
            "priorityClassName": terms.priority_class,
            "affinity": {"nodeAffinity": _only(node)},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [_container(terms.image)],
        },
    }


def _owners(node: NodeName, uid: str) -> list[RawObject]:
    # The pod is deleted with the GpuNode, which is deleted when its node is gone permanently.
    owner = {"apiVersion": "leeboard.dev/v1alpha1", "kind": "GpuNode", "name": node, "uid": uid}
    return [owner] if uid else []


def _only(node: NodeName) -> RawObject:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _container(image: str) -> RawObject:
    amounts = {"nvidia.com/gpu": "1", "cpu": "1m", "memory": "16Mi"}
    return {
        "name": "pause",
        "image": image,
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
