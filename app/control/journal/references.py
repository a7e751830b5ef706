"""Builds object references in the form that events need."""

from app.cluster.groups.membership import Membership
from app.model.names import GroupKey
from app.model.owner import OwnerRef
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.seam import RawObject


def group_reference(groups: Membership, key: GroupKey) -> RawObject | None:
    """Return a reference to the PodGroup, or to the pod that is its own group; None when the group was just deleted.

    Where no PodGroup object exists, the owner of the pods is referenced.
    """
    spec, pod = groups.specs.get(key), next(iter(groups.pods(key)), None)
    if spec is not None and spec.uid:
        return _pod_group_reference(spec)
    if pod is None:
        return None
    owner = pod.origin.owner if pod.origin is not None and len(groups.pods(key)) > 1 else None
    return pod_reference(pod) if owner is None or not owner.uid else owner_reference(pod, owner)


def pod_reference(pod: Pod) -> RawObject:
    """Return a reference to a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def owner_reference(pod: Pod, owner: OwnerRef) -> RawObject:
    """Return a reference to an object that owns a pod and is in the same namespace."""
    kind = owner.kind
    named = {"apiVersion": kind.api_version, "kind": kind.name, "name": owner.name, "uid": owner.uid}
    return {**named, "namespace": pod.namespace}


def _pod_group_reference(spec: GroupSpec) -> RawObject:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1" if spec.key.api else "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "uid": spec.uid,
    }
