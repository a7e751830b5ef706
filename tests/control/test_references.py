"""The object of an event: the PodGroup if it exists, otherwise the object that represents its pods."""

from dataclasses import replace

import pytest

from app.cluster.groups.membership import Membership
from app.control.journal.references import group_reference, pod_reference
from app.model.owner import Kind, Origin, OwnerRef
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.seam import RawObject
from tests import given

JOB = OwnerRef(Kind("batch", "v1", "Job"), "train", "uid-job")
A, B = (given.pod(name, gang="g", origin=Origin(owner=JOB)) for name in "ab")
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": "uid-job"}
POD_GROUP = {
    "apiVersion": "scheduling.run.ai/v2alpha2",
    "kind": "PodGroup",
    "namespace": "default",
    "name": "g",
    "uid": "u",
}


def membership(*pods: Pod, uid: str) -> Membership:
    found = Membership(lambda _: None)
    found.set_spec(A.group, GroupSpec(key=A.group, uid=uid))
    for pod in pods:
        found.join(pod)
    return found


@pytest.mark.parametrize(
    ("pods", "uid", "reference"),
    [
        ((A, B), "u", POD_GROUP),
        ((), "u", POD_GROUP),
        ((A, B), "", OWNER),
        ((A,), "", pod_reference(A)),
        ((replace(A, origin=None), B), "", pod_reference(A)),
        ((replace(A, origin=Origin(owner=replace(JOB, uid=""))), B), "", pod_reference(A)),
        ((), "", None),
    ],
    ids=["object", "no pods", "owner", "one pod", "nobody owns it", "named by a label", "nothing"],
)
def test_an_event_is_about_the_podgroup_or_the_owner_of_several_pods_or_the_first_pod(
    pods: tuple[Pod, ...], uid: str, reference: RawObject | None
) -> None:
    assert group_reference(membership(*pods, uid=uid), A.group) == reference
