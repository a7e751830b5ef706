"""The recorded terms of a binding count until the pod ends, whatever is written on the pod, owner or PodGroup."""

from dataclasses import replace

import pytest

from app.cluster.state.cache import ClusterCache
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec
from app.model.snapshot import Usage
from tests import given

Q, R, GHOST = QueueName("q"), QueueName("r"), QueueName("ghost")
P = replace(given.pod("p", gpus=2, queue="q", node="n1"), bound_queue=Q)
G = GroupKey("team", "g")
MEMBER = replace(P, group=G, names_group=True)
SPEC = GroupSpec(key=G, min_member=1, queue=Q, uid="g")


def cache(*pods: Pod, spec: GroupSpec | None = None) -> ClusterCache:
    found = ClusterCache()
    found.apply_node(given.node("n1", gpus=8))
    for name in ("q", "r"):
        found.apply_queue(given.queue(name))
    if spec is not None:
        found.apply_group(spec)
    for pod in pods:
        found.apply_pod(pod)
    return found


def paying(found: ClusterCache) -> dict[str, int]:
    """Return the GPUs that each queue is charged for."""
    return {
        name: usage.allocated.gpu_milli // 1000 for name, usage in found.charges.usage().items() if usage != Usage()
    }


@pytest.mark.parametrize("queue", [GHOST, R, QueueName("")])
def test_a_relabelled_running_pod_is_still_charged_to_the_queue_it_was_bound_with(queue: QueueName) -> None:
    found = cache(P)

    found.apply_pod(replace(P, queue=queue))
    after_restart = cache(replace(P, queue=queue))

    assert (paying(found), paying(after_restart)) == ({"q": 2}, {"q": 2})
    assert [group.queue for group in found.snapshot().running.values()] == ["q"]


def test_a_running_pod_keeps_its_queue_where_no_policy_protects_the_annotation() -> None:
    found = cache(P)

    for forged in (GHOST, QueueName("")):
        found.apply_pod(replace(P, queue=GHOST, bound_queue=forged))

    assert paying(found) == {"q": 2}


def test_the_pods_of_a_job_keep_their_queue_when_the_job_is_relabelled() -> None:
    found = cache(P)

    found.derive_group(GroupSpec(key=P.group, min_member=1, queue=GHOST, derived=True))

    assert paying(found) == {"q": 2}


def test_a_pod_without_a_recorded_queue_stays_in_the_queue_of_its_first_label() -> None:
    old = replace(P, bound_queue=QueueName(""))
    found = cache(old)

    found.apply_pod(replace(old, queue=R))
    found.apply_pod(replace(old, queue=GHOST))

    assert paying(found) == {"q": 2}


def test_a_new_queue_of_the_podgroup_moves_running_pods_without_a_recorded_queue() -> None:
    found = cache(replace(MEMBER, bound_queue=QueueName("")), spec=SPEC)

    found.apply_group(replace(SPEC, queue=R))

    assert paying(found) == {"r": 2}


def test_a_pod_of_another_scheduler_whose_queue_does_not_exist_reduces_the_capacity() -> None:
    other = given.pod("o", gpus=2, queue="q", node="n1", managed=False)
    found = cache(other)
    whole = found.snapshot().total.gpu_milli

    found.apply_pod(replace(other, queue=GHOST))
    outside = found.snapshot().total.gpu_milli
    found.apply_queue(given.queue("ghost"))
    again = found.snapshot().total.gpu_milli
    found.delete_queue(GHOST)

    assert (outside, again, found.snapshot().total.gpu_milli) == (whole - 2000, whole, whole - 2000)
    assert paying(found) == {}


def test_a_new_queue_of_the_podgroup_moves_the_running_podgroup() -> None:
    found = cache(MEMBER, spec=SPEC)

    found.apply_group(replace(SPEC, queue=R))

    assert paying(found) == {"r": 2}
    assert paying(cache(MEMBER, spec=replace(SPEC, queue=R))) == {"r": 2}


def test_a_running_podgroup_stays_charged_when_its_new_queue_takes_no_pods() -> None:
    found = cache(MEMBER, spec=SPEC)

    found.apply_group(replace(SPEC, queue=GHOST))
    assert paying(found) == {"q": 2}

    found.apply_queue(replace(given.queue("ghost"), problem="its limit cannot be read"))
    assert paying(found) == {"q": 2}

    found.apply_queue(given.queue("ghost"))
    assert paying(found) == {"ghost": 2}

    found.delete_queue(GHOST)
    assert paying(found) == {"q": 2}


def test_running_pods_of_a_deleted_podgroup_stay_in_the_queue_they_were_bound_with() -> None:
    found = cache(replace(MEMBER, queue=GHOST), spec=SPEC)

    found.delete_group(G)

    assert paying(found) == {"q": 2}


def test_pods_that_join_a_running_gang_are_in_its_queue() -> None:
    waiting = replace(given.pod("w", gpus=1, queue="ghost"), group=G, names_group=True)
    found = cache(MEMBER, waiting, spec=replace(SPEC, queue=None))

    assert [group.queue for group in found.groups.waiting().values()] == ["q"]


def test_a_gang_whose_pods_were_bound_with_two_queues_is_charged_to_that_of_most_of_them() -> None:
    others = [replace(given.pod(f"o{i}", gpus=1, node="n1"), group=G, names_group=True, bound_queue=R) for i in "ab"]
    found = cache(*others, MEMBER, spec=replace(SPEC, queue=None))
    assert paying(found) == {"r": 4}

    found.delete_pod(others[0].uid)

    assert paying(found) == {"q": 3}


def test_a_single_pod_that_waits_for_kube_scheduler_is_charged_to_the_queue_of_its_creation() -> None:
    waiting = replace(P, node=None, binds_elsewhere=True)
    found = cache(waiting)

    found.apply_pod(replace(waiting, queue=R))

    assert [group.queue for group in found.groups.waiting().values()] == ["q"]


def test_a_pod_that_changes_its_queue_before_it_is_bound_loses_its_reservation() -> None:
    waiting = replace(given.pod("w", gpus=2, queue="q"), bound_queue=QueueName(""))
    found = cache(waiting)
    found.promises.make(waiting.uid, NodeName("n1"), expires_at=60.0)
    assert paying(found) == {"q": 2}

    found.apply_pod(replace(waiting, queue=R))

    assert (paying(found), found.reservations.get(waiting.uid)) == ({"r": 0}, None)


def test_a_running_pod_stays_in_its_podgroup_whatever_podgroup_it_names_later() -> None:
    theirs = [replace(given.pod(f"o{i}", gpus=1, node="n1"), group=G, names_group=True, bound_queue=R) for i in "abc"]
    found = cache(*theirs, P, spec=replace(SPEC, queue=None))
    before = paying(found)

    found.apply_pod(replace(P, group=G, names_group=True, subgroup="x"))

    assert (before, paying(found)) == ({"r": 3, "q": 2}, {"r": 3, "q": 2})
    assert (len(found.groups.pods(G)), list(found.groups.pods(P.group))) == (3, [P])


@pytest.mark.parametrize(
    "named",
    [
        {"group": GroupKey("team", "other")},
        {"group": P.group, "names_group": False},
        {"subgroup": "x"},
        {"subgroup": ""},
    ],
)
def test_a_running_member_stays_in_its_gang_and_its_sub_group(named: dict[str, object]) -> None:
    member = replace(MEMBER, subgroup="workers")
    found = cache(member, spec=SPEC)

    found.apply_pod(replace(member, **named))  # type: ignore[arg-type] # each is a field of a pod

    assert found.pods.get(member.uid) == member


def test_a_running_member_gets_its_sub_group_once_its_owners_are_known() -> None:
    found = cache(replace(MEMBER, ungrouped="Its owner is still being read."), spec=SPEC)

    found.apply_pod(replace(MEMBER, subgroup="workers"))

    assert found.pods.get(MEMBER.uid) == replace(MEMBER, subgroup="workers")


def test_a_pending_pod_or_one_bound_by_an_older_release_may_join_another_podgroup() -> None:
    for pod in (replace(P, bound_queue=QueueName("")), replace(P, node=None, binds_elsewhere=True)):
        found = cache(pod, spec=SPEC)

        found.apply_pod(replace(pod, group=G, names_group=True))

        assert [one.uid for one in found.groups.pods(G)] == [P.uid]


@pytest.mark.parametrize("gone", ["top", "q"])
def test_a_pod_loses_its_reservation_when_its_queue_or_one_above_it_is_deleted(gone: str) -> None:
    waits, other = given.pod("w", gpus=2, queue="q"), given.pod("o", gpus=1, queue="r")
    found = cache(waits, other)
    for queue in (given.queue("q", "top"), given.queue("top")):
        found.apply_queue(queue)
    for pod in (waits, other):
        found.promises.make(pod.uid, NodeName("n1"), expires_at=60.0)

    found.delete_queue(QueueName(gone))

    assert [each.pod for each in found.reservations] == [other.uid]
    assert (paying(found), set(found.drain_changes().bereft)) == ({"q": 0, "r": 1}, {waits.uid})
