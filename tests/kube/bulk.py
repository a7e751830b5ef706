"""A fake API server with a whole cluster in it: every kind is listed in pages, then watched without events."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from app.model.seam import RawObject, Resource
from tests.kube.apiserver import listening, lists, says, silent, streams

Stock = Mapping[Resource | str, tuple[int, Callable[[int], RawObject]]]
"""The number of objects of a kind, or at a path, and the builder of one by its number."""

JOBS = "apis/batch/v1/jobs"
SERVED: RawObject = {"resources": [{"name": "jobs", "kind": "Job", "namespaced": True, "verbs": ["list", "watch"]}]}
"""The discovery answer about the only kind that owns pods here."""

NOTHING: tuple[int, Callable[[int], RawObject]] = (0, lambda _: {})


@asynccontextmanager
async def holding(stock: Stock) -> AsyncIterator[str]:
    """Serve these objects and no others until the block ends; yield the address. Writes change nothing."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return await says({})(request)
        if "watch" in request.query:
            return await streams(b"", then=silent())(request)
        if request.path[1:] == JOBS.rpartition("/")[0]:
            return await says(SERVED)(request)
        count, make = stock.get(_kind(request.path[1:], stock), NOTHING)
        start = int(request.query["continue"] or 0)
        end = min(count, start + int(request.query["limit"]))
        return await lists(*map(make, range(start, end)), more=str(end) if end < count else "")(request)

    async with listening(answer) as url:
        yield url


def _kind(path: str, stock: Stock) -> Resource | str:
    return path if path in stock else Resource(path)


def heavy_job(number: int) -> RawObject:
    """Build the Job that owns the pod of this number."""
    metadata = {
        "name": f"job-{number}",
        "namespace": f"team-{number % 50}",
        "uid": f"{number}",
        "labels": {"app": "train"},
    }
    return {"metadata": metadata, "spec": {"parallelism": 1, "template": {"spec": heavy_pod(number)["spec"]}}}


def heavy_pod(number: int) -> RawObject:
    """Build a bound pod as large as real ones: 6 kB of JSON, most of which is not read here."""
    resources = {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}
    mount = {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    container = {
        "name": "main",
        "image": "registry.example/team/train@sha256:5c9f",
        "env": [{"name": f"SETTING_{each}", "value": f"value {each} of {number}"} for each in range(20)],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [mount, {"name": "data", "mountPath": "/data"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always",
    }
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": f"team-{number % 50}",
            "uid": f"00000000-0000-4000-8000-{number:012x}",
            "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kai.scheduler/queue": f"queue-{number % 100}", "app": "train"},
            "annotations": {"pod-group-name": f"gang-{number // 4}"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number}", "uid": f"{number}"}],
            "managedFields": [{"manager": each, "fieldsV1": _fields(8)} for each in ("kubelet", "job-controller")],
        },
        "spec": {
            "schedulerName": "kai-scheduler",
            "nodeName": f"node-{number % 5000:04}",
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}}, _token()],
            "tolerations": tolerations,
            "securityContext": {"runAsNonRoot": True},
            "priority": 50,
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "podIPs": [{"ip": "10.64.0.1"}],
            "containerStatuses": [{"name": "main", "state": {"running": {}}, "ready": True, "restartCount": 0}],
            "qosClass": "Guaranteed",
        },
    }


def _token() -> dict[str, Any]:
    sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}, {"configMap": {"name": "ca"}}]
    return {"name": "token", "projected": {"sources": sources, "defaultMode": 420}}


def _fields(count: int) -> dict[str, Any]:
    return {f"f:part-{each}": {"f:one": {}, "f:two": {}, "f:three": {".": {}, "f:four": {}}} for each in range(count)}
