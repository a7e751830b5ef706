"""Reads from a pod what grouping needs, and converts pods between their own group and the group of their owners."""

from dataclasses import replace

from app.cluster import decode
from app.cluster.decode.pods import POD_GROUP_ANNOTATION, SUBGROUP_LABEL
from app.grouping import POD_ANNOTATIONS, POD_LABELS
from app.model.names import NATIVE_API, GroupKey
from app.model.owner import Grouping
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.settings import Settings

KEEPS = decode.Keeps(POD_LABELS | {SUBGROUP_LABEL}, POD_ANNOTATIONS | {POD_GROUP_ANNOTATION})
"""The pod fields that grouping needs; the last two hold what the pod itself has named."""

USUAL_CLASS = "train"
"""The priority class of a pod that names none: an owner that names only this class adds nothing."""


def keeps_of(settings: Settings) -> decode.Keeps:
    """Return the pod fields that `decode` keeps for grouping under these settings."""
    return KEEPS if settings.pod_grouping else decode.NOTHING_KEPT


def named(pod: Pod, grouping: Grouping, spec: GroupSpec) -> Pod:
    """Return a pod with the group that its owners define."""
    if spec.key.name == pod.uid:
        return pod
    subgroup = grouping.subgroup or pod.subgroup
    if (spec.key, True, subgroup) == (pod.group, pod.names_group, pod.subgroup):
        return pod  # Bind has written its group on it.
    return replace(pod, group=spec.key, names_group=True, subgroup=subgroup)


def own_group(pod: Pod) -> GroupKey | None:
    """Return the group that the pod itself names: by its annotation, else in its spec; None for none."""
    if pod.origin is None:
        return None
    annotated, native = pod.origin.annotations.get(POD_GROUP_ANNOTATION, ""), pod.origin.native_group
    if annotated:
        return GroupKey(pod.namespace, annotated)
    return GroupKey(pod.namespace, native, NATIVE_API) if native else None


def bare(pod: Pod) -> Pod:
    """Return a pod as it was decoded, without the group of its owners."""
    own, labels = own_group(pod), pod.origin.labels if pod.origin else {}
    key, subgroup = own or GroupKey(pod.namespace, pod.uid), labels.get(SUBGROUP_LABEL, "")
    return replace(pod, group=key, names_group=own is not None, subgroup=subgroup, ungrouped="")


def says_more(spec: GroupSpec, pod: Pod) -> bool:
    """Return whether the owners define more than the pod does: for most Jobs they do not, and nothing must be kept."""
    usual = {pod.priority_classes, (*pod.priority_classes, USUAL_CLASS)}
    if spec.priority_classes not in usual or spec.suspended or spec.problem:
        return True
    return spec.queue not in {None, pod.queue} or spec.preemptible not in {None, pod.explicit_preemptible}
