"""A batch as KAI-Scheduler's users write it, with what its admission webhook would have added to a share of a GPU."""

from collections.abc import Mapping, Sequence

from loadtest.contender import Batch, Entitled
from loadtest.peers.members import Member, gangs, members, pod_of
from tests.system.api import POD_GROUP_ANNOTATION, PROFILE, QUEUE_LABEL, Object, pod_group, queue

ROOT = "bench-root"
PREEMPTIBLE = "train"
"""The priority class that its podgrouper gives to what has none: below 100, so that it may be reclaimed from."""
FRACTION_ANNOTATION = "gpu-fraction"
CONFIG_MAP_ANNOTATION = "runai/shared-gpu-configmap"
SHARE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")


def queues(entitled: Sequence[Entitled]) -> Sequence[Object]:
    """Return two levels of queues, as KAI demands, the root first; only GPUs are divided."""
    return [queue(ROOT), *(queue(leaf.name, parent=ROOT, deserved=leaf.quota_gpus) for leaf in entitled)]


def objects(batch: Batch) -> Sequence[Object]:
    """Return PodGroups and pods.

    Lone pods that wait get no PodGroup: making it is the work of KAI's podgrouper. Those that run already have each
    its own, as the podgrouper would have made it long ago.
    """
    groups = [_group(name, batch, min_member=batch.gang_size) for name in gangs(batch)]
    everybody = members(batch)
    groups += [_group(member.name, batch, min_member=1) for member in everybody if member.node and not member.group]
    return [*groups, *(_pod(batch, member) for member in everybody)]


def _group(name: str, batch: Batch, *, min_member: int) -> Object:
    return pod_group(name, min_member=min_member, queue=batch.queue, priorityClassName=PREEMPTIBLE)


def _pod(batch: Batch, member: Member) -> Object:
    made = pod_of(batch, member, scheduler=PROFILE)
    made["metadata"]["labels"] = {QUEUE_LABEL: batch.queue}
    group = member.group or (member.name if member.node else "")
    made["metadata"]["annotations"] = {POD_GROUP_ANNOTATION: group} if group else {}
    return _sharing(made, batch.fraction) if batch.fraction else made


def _sharing(made: Object, fraction: str) -> Object:
    """Return the pod of a share, with the ConfigMaps named into which the binder writes the device."""
    prefix = f"{made['metadata']['name']}-shared-gpu"
    made["metadata"]["annotations"] |= {FRACTION_ANNOTATION: fraction, CONFIG_MAP_ANNOTATION: prefix}
    (container,) = made["spec"]["containers"]
    config_map = f"{prefix}-0"
    container["env"] = [_variable(name, config_map) for name in SHARE_VARIABLES]
    container["envFrom"] = [{"configMapRef": {"name": f"{config_map}-evar", "optional": False}}]
    made["spec"]["volumes"] = [{"name": f"{config_map}-vol", "configMap": {"name": config_map}}]
    return made


def _variable(name: str, config_map: str) -> Mapping[str, object]:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"key": name, "name": config_map}}}
