"""Says what grouping looks at of a pod, and how a pod looks with and without the group that its owners ask for."""

from dataclasses import replace

from app.cluster import decode
from app.cluster.decode.pods import POD_GROUP_ANNOTATION, SUBGROUP_LABEL
from app.grouping import POD_ANNOTATIONS, POD_LABELS
from app.model.names import GroupKey
from app.model.owner import Grouping
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.settings import Settings

KEEPS = decode.Keeps(POD_LABELS | {SUBGROUP_LABEL}, POD_ANNOTATIONS | {POD_GROUP_ANNOTATION})
"""What grouping looks at of a pod; the last two say what the pod itself has named."""

USUAL_CLASS = "train"
"""Of a pod that names none: whoever says just this says nothing."""


def keeps_of(settings: Settings) -> decode.Keeps:
    """Return what `decode` keeps of pods for grouping, as the settings have it."""
    return KEEPS if settings.pod_grouping else decode.NOTHING_KEPT


def named(pod: Pod, grouping: Grouping, spec: GroupSpec) -> Pod:
    """Return a pod with the group that its owners ask for."""
    if spec.key.name == pod.uid:
        return pod
    return replace(pod, group=spec.key, names_group=True, subgroup=grouping.subgroup or pod.subgroup)


def own_group(pod: Pod) -> str:
    """Return the name of the group that a pod names itself, empty for none."""
    return pod.origin.annotations.get(POD_GROUP_ANNOTATION, "") if pod.origin else ""


def bare(pod: Pod) -> Pod:
    """Return a pod as it was decoded, before its owners were asked."""
    own, labels = own_group(pod), pod.origin.labels if pod.origin else {}
    key = GroupKey(pod.namespace, own or pod.uid)
    return replace(pod, group=key, names_group=bool(own), subgroup=labels.get(SUBGROUP_LABEL, ""), ungrouped="")


def says_more(spec: GroupSpec, pod: Pod) -> bool:
    """Return whether owners say more than their pod does: most Jobs do not, and then nothing has to be kept."""
    usual = {pod.priority_classes, (*pod.priority_classes, USUAL_CLASS)}
    if spec.priority_classes not in usual or spec.suspended or spec.problem:
        return True
    return spec.queue not in {None, pod.queue} or spec.preemptible not in {None, pod.explicit_preemptible}
