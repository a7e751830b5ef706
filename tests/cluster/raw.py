"""Builders of raw objects: the minimum of a pod, queue or PodGroup, and the fields that a test adds."""

from typing import Any

from app.cluster import decode
from app.model.pod import Pod

Raw = dict[str, Any]
PROFILES = frozenset({"kai-scheduler"})
GIB = 1 << 30
BOUND = {"type": "PodScheduled", "status": "True"}
"""The API server writes it with every binding."""


def metadata(**more: object) -> Raw:
    return {"name": "it", "namespace": "team", "uid": "u1", "creationTimestamp": "1970-01-01T00:01:40Z"} | more


def container(name: str = "main", *, limits: Raw | None = None, **requests: object) -> Raw:
    asked = {{"gpu": "nvidia.com/gpu"}.get(key, key): value for key, value in requests.items()}
    return {"name": name, "resources": {"requests": asked} | ({"limits": limits} if limits else {})}


def raw_pod(*containers: Raw, meta: Raw | None = None, status: Raw | None = None, **spec: object) -> Raw:
    """Build a pod; one with a node has been bound there."""
    wishes = {"schedulerName": "kai-scheduler", "containers": list(containers)} | spec
    told = {"conditions": [BOUND]} | (status or {}) if wishes.get("nodeName") else status or {}
    return {"metadata": metadata(**(meta or {})), "spec": wishes, "status": told}


def pod(*containers: Raw, **more: Any) -> Pod:
    return decode.pod(raw_pod(*containers, **more), profiles=PROFILES)


def labelled(**labels: str) -> Pod:
    names = {"queue": "kai.scheduler/queue", "legacy": "runai/queue", "pool": "kai.scheduler/node-pool"}
    return pod(meta={"labels": {names.get(key, key): value for key, value in labels.items()}})


def queue(**resources: object) -> Raw:
    return {"metadata": {"name": "q", "uid": "u2"}, "spec": {"resources": resources}}


def pod_group(**spec: object) -> Raw:
    return {"metadata": metadata(), "spec": spec}


def native_group(**spec: object) -> Raw:
    return {"metadata": metadata(), "spec": spec}
