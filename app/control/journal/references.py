"""Names objects the way events refer to them."""

from app.cluster.groups.membership import Membership
from app.model.names import GroupKey
from app.model.owner import OwnerRef
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.seam import RawObject


def group_reference(groups: Membership, key: GroupKey) -> RawObject | None:
    """Name the PodGroup, or the pod that is a group of its own; None when it went while others were told of.

    Where no PodGroup object exists, its owners stand for the pods of a gang.
    """
    spec, pod = groups.specs.get(key), next(iter(groups.pods(key)), None)
    if spec is not None and spec.uid:
        return _pod_group_reference(spec)
    if pod is None:
        return None
    owner = pod.origin.owner if pod.origin is not None and len(groups.pods(key)) > 1 else None
    return pod_reference(pod) if owner is None or not owner.uid else owner_reference(pod, owner)


def pod_reference(pod: Pod) -> RawObject:
    """Name a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def owner_reference(pod: Pod, owner: OwnerRef) -> RawObject:
    """Name an object that owns a pod, in whose namespace it is."""
    kind = owner.kind
    named = {"apiVersion": kind.api_version, "kind": kind.name, "name": owner.name, "uid": owner.uid}
    return {**named, "namespace": pod.namespace}


def _pod_group_reference(spec: GroupSpec) -> RawObject:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "uid": spec.uid,
    }
