"""What kube-scheduler asks about in the load test, and what a right answer looks like; pure, so it needs no locust.

A body is made the way Go's encoder makes it: field names of Go types, a null for what is not there, and the pod as
kube-scheduler's informer keeps it: without apiVersion, kind and managedFields, with all that the API server fills in.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import orjson

from app.model.marks import GATE
from app.model.reason import Reason, phrase
from app.model.seam import RawObject
from app.simulation.manifests import PROFILE, QUEUE_LABEL

NAMESPACE = "load"
QUEUE = "load"
LATER_QUEUE = "later"
"""Its pods may not start until its limit is raised."""
MOST_SCORE = 10
GPUS_A_NODE = 8
NOT_SENT = frozenset({"apiVersion", "kind"})
TOKEN_MOUNT = {
    "name": "token",
    "readOnly": True,
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
}


class Shape(StrEnum):
    """The pods of the load test, by what Leeboard has to say of them."""

    LONE = "lone"
    """Managed, for one GPU: it is promised a node."""
    HELD = "held"
    """The same behind our gate, in the queue whose turn comes later: planned, and released when it comes."""
    HUGE = "huge"
    """Managed, for more GPUs than any node has: it is refused."""
    FOREIGN = "foreign"
    """Another scheduler profile's: every offered node will do."""


def pod(name: str, shape: Shape) -> RawObject:
    """Write a pending pod as heavy as real ones, as the API server stores it; it gets its uid there."""
    gpus = str(2 * GPUS_A_NODE if shape is Shape.HUGE else 1)
    requests = {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": gpus}
    gates = {"schedulingGates": [{"name": GATE}]} if shape is Shape.HELD else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(name, shape),
        "spec": {
            "schedulerName": "default-scheduler" if shape is Shape.FOREIGN else PROFILE,
            "containers": [_container(requests)],
            "volumes": _volumes(name),
            "tolerations": _tolerations(),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {"runAsNonRoot": True, "fsGroup": 2000},
            "priorityClassName": "train",
            "priority": 50,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
            **gates,
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def running(name: str, node: str, gpus: int) -> RawObject:
    """Write a pod that is there for good, so that the cluster is not empty."""
    base = pod(name, Shape.LONE)
    container = _container({"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": str(gpus)})
    return base | {
        "spec": base["spec"] | {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "qosClass": "Burstable"},
    }


def _metadata(name: str, shape: Shape) -> RawObject:
    labels = {"app": "train", "team": "vision"}
    ours = {QUEUE_LABEL: LATER_QUEUE if shape is Shape.HELD else QUEUE, "priorityClassName": "train"}
    return {
        "name": name,
        "namespace": NAMESPACE,
        "labels": labels if shape is Shape.FOREIGN else labels | ours,
        "annotations": {"team.example/run": f"{name} of the sweep", "prometheus.io/scrape": "true"},
        "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:containers": {}}}}],
    }


def _container(requests: Mapping[str, str]) -> RawObject:
    return {
        "name": "main",
        "image": "registry.example/team/train@sha256:5c9f",
        "command": ["python", "-m", "train", "--config", "/data/config.yaml"],
        "env": [{"name": f"SETTING_{number}", "value": f"the value of setting {number}"} for number in range(20)],
        "resources": {"limits": {"nvidia.com/gpu": requests["nvidia.com/gpu"]}, "requests": dict(requests)},
        "volumeMounts": [TOKEN_MOUNT, {"name": "data", "mountPath": "/data"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _volumes(name: str) -> list[RawObject]:
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    return [
        {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}},
        {"name": "token", "projected": {"sources": sources, "defaultMode": 420}},
    ]


def _tolerations() -> list[RawObject]:
    kinds = ("not-ready", "unreachable")
    lost = [{"key": f"node.kubernetes.io/{kind}", "operator": "Exists", "effect": "NoExecute"} for kind in kinds]
    return [*({**one, "tolerationSeconds": 300} for one in lost), {"key": "nvidia.com/gpu", "operator": "Exists"}]


# What is asked ----------------------------------------------------------------------------------------------------


def as_sent(stored: RawObject) -> RawObject:
    """Return the pod as kube-scheduler's informer keeps it."""
    metadata = {name: value for name, value in stored["metadata"].items() if name != "managedFields"}
    return {name: value for name, value in stored.items() if name not in NOT_SENT} | {"metadata": metadata}


def as_what_if(stored: RawObject) -> RawObject:
    """Return the pod of a what-if question, before it exists: without a uid."""
    sent = as_sent(stored)
    return sent | {"metadata": {name: value for name, value in sent["metadata"].items() if name != "uid"}}


def windows(nodes: Sequence[str], size: int, count: int) -> list[tuple[str, ...]]:
    """Return so many lists of names, each going on where the one before ended, as kube-scheduler samples its nodes."""
    if size > len(nodes):
        raise ValueError(f"{size} names cannot be offered of {len(nodes)} nodes; simulate more nodes or offer fewer")
    twice = [*nodes, *nodes]
    starts = (number * size % len(nodes) for number in range(count))
    return [tuple(twice[start : start + size]) for start in starts]


def pod_body(pod: RawObject, encoded_names: bytes) -> bytes:
    """Write the arguments of filter and prioritize; the names come encoded, so that the client does it once."""
    return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (orjson.dumps(pod), encoded_names)


def bind_body(pod: RawObject, node: str) -> bytes:
    """Write the arguments of bind."""
    metadata = pod["metadata"]
    names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
    return orjson.dumps(names | {"Node": node})


def preempt_body(pod: RawObject, candidates: Mapping[str, RawObject]) -> bytes:
    """Write the arguments of preempt, with victims by their uids."""
    return orjson.dumps({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": candidates})


def candidates(nodes: Sequence[str]) -> dict[str, RawObject]:
    """Write one victim for each of these nodes."""
    return {node: {"Pods": [{"UID": f"victim-on-{node}"}], "NumPDBViolations": 0} for node in nodes}


# What is right ----------------------------------------------------------------------------------------------------


def is_undecided(answer: Any, offered: Sequence[str]) -> bool:
    """Whether filter answers that a plan is still being computed: kube-scheduler then asks again when it is woken."""
    undecided = dict.fromkeys(offered, phrase(Reason.DECIDING))
    return not _fault_of_form(answer, offered) and answer["FailedAndUnresolvableNodes"] == undecided


def fault_of_filter(shape: Shape, answer: Any, offered: Sequence[str]) -> str:
    """Return what is wrong with filter's answer for a pod that exists, "" when nothing is."""
    if fault := _fault_of_form(answer, offered):
        return fault
    names, unresolvable = answer["NodeNames"] or [], answer["FailedAndUnresolvableNodes"] or {}
    match shape:
        case Shape.LONE | Shape.HELD:
            return (
                "" if len(names) == 1 else f"{len(names)} nodes for a promised pod instead of 1: {_why(unresolvable)}"
            )
        case Shape.HUGE:
            refused = not names and unresolvable.keys() == set(offered)
            return "" if refused else f"{len(names)} nodes for a pod that fits on none, {len(unresolvable)} refused"
        case Shape.FOREIGN:
            whole = len(names) == len(offered)
            return "" if whole else f"{len(names)} of {len(offered)} nodes for a pod that is not managed"


def fault_of_what_if(answer: Any, offered: Sequence[str]) -> str:
    """Return what is wrong with filter's answer for a pod of one GPU that is only asked about, "" when nothing is."""
    if fault := _fault_of_form(answer, offered):
        return fault
    return "" if answer["NodeNames"] else "no node for a pod of one GPU, though there is room"


def fault_of_scores(answer: Any, offered: Sequence[str]) -> str:
    """Return what is wrong with prioritize's answer, "" when nothing is."""
    if not isinstance(answer, list) or not all(isinstance(one, dict) for one in answer):
        return "the answer is no list of scores"
    if [one.get("Host") for one in answer] != list(offered):
        return "the scores are not those of the offered nodes"
    wrong = [one for one in answer if type(one.get("Score")) is not int or not 0 <= one["Score"] <= MOST_SCORE]
    return f"{wrong[0]} is no score from 0 to {MOST_SCORE}" if wrong else ""


def fault_of_preempt(shape: Shape, answer: Any, offered: Mapping[str, RawObject]) -> str:
    """Return what is wrong with the answer: managed pods preempt no pod, others the pods that kube-scheduler chose."""
    expected = offered if shape is Shape.FOREIGN else {}
    right = isinstance(answer, dict) and answer.get("NodeNameToMetaVictims") == expected
    return "" if right else f"other victims than the {len(expected)} expected for a {shape} pod"


def fault_of_bind(answer: Any) -> str:
    """Return what is wrong with bind's answer: only an empty error means that the pod is bound."""
    if not isinstance(answer, dict) or not isinstance(answer.get("Error"), str):
        return "the answer of bind is no object with an Error"
    return str(answer["Error"])


def node_of(answer: Any) -> str:
    """Return the one node of an answer without a fault."""
    return str(answer["NodeNames"][0])


def _fault_of_form(answer: Any, offered: Sequence[str]) -> str:
    if not isinstance(answer, dict):
        return "the answer is no object"
    if answer.get("Error"):
        return f"error: {answer['Error']}"
    names, unresolvable = answer.get("NodeNames") or [], answer.get("FailedAndUnresolvableNodes") or {}
    if not isinstance(names, list) or not isinstance(unresolvable, dict):
        return "NodeNames is no list, or FailedAndUnresolvableNodes no object"
    if answer.get("FailedNodes"):
        return "FailedNodes is not empty: kube-scheduler would try preemption for it, in a loop"
    if len(set(names)) != len(names) or not set(offered).issuperset(names):
        return "NodeNames holds a node twice, or one that was not offered"
    return ""


def _why(unresolvable: Mapping[str, str]) -> str:
    return next(iter(unresolvable.values()), "no reason given")
