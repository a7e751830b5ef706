"""Names objects the way events refer to them."""

from app.cluster.membership import Membership
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.seam import RawObject


def group_reference(groups: Membership, key: GroupKey) -> RawObject | None:
    """Name the PodGroup, or the pod that is a group of its own; None when it went while others were told of."""
    spec, pod = groups.spec(key), next(iter(groups.pods(key)), None)
    if spec is not None:
        return _pod_group_reference(spec)
    return None if pod is None else pod_reference(pod)


def pod_reference(pod: Pod) -> RawObject:
    """Name a pod."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def _pod_group_reference(spec: GroupSpec) -> RawObject:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "namespace": spec.key.namespace,
        "name": spec.key.name,
        "uid": spec.uid,
    }
