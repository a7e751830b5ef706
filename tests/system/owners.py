"""Owners of pods as a tenant may submit them, built-in kinds and custom ones, and temporary rights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from tests.system.api import Api, Object, collection_of, pod
from tests.system.tenants import TEAM, allow, revoke

OWNERS = {
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicationController": "v1",
}
CUSTOM = {
    "Workflow": "argoproj.io/v1alpha1",
    "PodGang": "scheduler.grove.io/v1alpha1",
    "PodGroup": "scheduling.x-k8s.io/v1alpha1",
    "Training": "example.com/v1",
}
"""A kind that defers to its children, one with more in its spec, one that pods name by a label, and one of the values
of the chart.
"""

_numbers = count()


def name(prefix: str = "o") -> str:
    """Return a name that no other owner of this session has."""
    return f"{prefix}-{next(_numbers)}"


def crd(kind: str) -> Object:
    """Build a kind whose objects may have any shape."""
    group, version = CUSTOM[kind].split("/")
    lower, schema = kind.lower(), {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": f"{lower}s", "singular": lower, "listKind": f"{kind}List"}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": names,
        "versions": [served | {"subresources": {"status": {}}}],
    }
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return head | {"metadata": {"name": f"{lower}s.{group}"}, "spec": spec}


@contextmanager
def allowed(api: Api, to: Object, **right: Any) -> Iterator[None]:
    """Grant a right to a user for a while."""
    known_as = name("for-a-while")
    allow(api, known_as, to, **right)
    yield
    revoke(api, known_as)


def custom(kind: str, *, own: Mapping[str, str] | None = None, spec: Object | None = None) -> Object:
    """Build an owner of a kind that is not built into Kubernetes."""
    metadata = {"name": name(kind.lower()), "namespace": TEAM, "labels": dict(own or {})}
    return {"apiVersion": CUSTOM[kind], "kind": kind, "metadata": metadata, "spec": spec or {}}


def owner(kind: str, *, own: Mapping[str, str] | None = None, template: Mapping[str, str] | None = None) -> Object:
    """Build an owner of pods with labels on it or on its template."""
    pods: Object = {"metadata": {"labels": {"app": "x"} | dict(template or {})}, "spec": pod("x")["spec"]}
    spec: Object = {"template": pods, "selector": {"matchLabels": {"app": "x"}}}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    if kind == "ReplicationController":
        spec["selector"] = {"app": "x"}
    if kind in {"Job", "CronJob"}:
        pods["spec"]["restartPolicy"] = "Never"
        spec = {"template": pods, "suspend": True}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    head = {"name": name(kind.lower()), "namespace": TEAM, "labels": dict(own or {})}
    return {"apiVersion": OWNERS[kind], "kind": kind, "metadata": head, "spec": spec}


def path(made: Object) -> str:
    """Return the path of an object."""
    return f"{collection_of(made)}/{made['metadata']['name']}"


def labelled(labels: Mapping[str, str | None]) -> Object:
    """Build a change of labels; None removes one."""
    return {"metadata": {"labels": dict(labels)}}
