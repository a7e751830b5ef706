"""Membership: which pods belong to which group, and which groups are pending."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.cluster.changes import ChangeLog
from app.cluster.groups.groups import Place
from app.cluster.groups.membership import Membership
from app.cluster.groups.terms import GroupTerms
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.pod import Pod
from app.model.podgroup import GroupSpec, PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import Reason, Refusal
from tests import given

A, B, C = (given.pod(name, gang="g", created_at=float(age)) for age, name in enumerate("abc"))
G, H = A.group, GroupKey("default", "h")
SPEC = GroupSpec(key=G, uid="u", min_member=2)
ASIDE = Refusal(reason=Reason.BACKING_OFF, sentence="It backs off.")
ON_NODE = NodeName("n")
MANY_CHANGES = 1 << 31


def membership(*pods: Pod, spec: GroupSpec | None = SPEC, log: ChangeLog | None = None) -> Membership:
    found = Membership(lambda pod: Place(pod.node) if pod.node else None, changes=log)
    found.set_spec(G, spec)
    for pod in pods:
        found.join(pod)
    return found


def waiting(found: Membership) -> dict[GroupKey, PodGroup]:
    return dict(found.waiting())


def refusal(found: Membership) -> Reason | None:
    group = waiting(found)[G]
    return group.refusal.reason if group.refusal else None


def changes(found: Membership, log: ChangeLog) -> list[tuple[GroupKey, Sequence[str] | None]]:
    groups = found.waiting()
    told = [(key, [pod.name for pod in groups[key].pending]) for key in found.unsettled]
    found.unsettled.considered(list(found.unsettled), MANY_CHANGES)
    return [*told, *((key, None) for key in log.drain().gone)]


def test_only_changed_podgroups_are_reported() -> None:
    log = ChangeLog()
    found = membership(A, B, log=log)

    assert changes(found, log) == [(G, ["a", "b"])]
    assert changes(found, log) == []
    found.touched.mark(G)
    assert changes(found, log) == []
    found.join(C)
    assert changes(found, log) == [(G, ["a", "b", "c"])]
    for pod in (A, B, C):
        found.leave(pod)
    assert changes(found, log) == [(G, None)]


def test_changed_podgroups_are_reported_once() -> None:
    told: dict[GroupKey, None] = {}
    found = membership()
    found.touched.tell(told)

    found.join(A)
    assert list(told) == [G]
    told.clear()
    found.touched.mark(H)
    waiting(found)
    assert list(told) == [H]


def test_a_gang_whose_pods_are_created_one_by_one_is_formed_once() -> None:
    asked: list[Pod] = []
    found = Membership(asked.append)

    pods = [given.pod(f"p{index}", gang="g") for index in range(500)]
    for pod in pods:
        found.join(pod)

    assert len(waiting(found)[G].pending) == len(asked) == 500


def test_a_podgroup_whose_pods_all_have_nodes_is_not_pending() -> None:
    found = membership(A, replace(B, node=ON_NODE))
    assert waiting(found)[G].active == 1

    found.join(replace(A, node=ON_NODE))
    assert waiting(found) == {}

    found.set_spec(G, replace(SPEC, problem="spec.minMember is -1"))
    assert waiting(found) == {}


def test_a_pod_beyond_the_minimum_that_can_never_start_does_not_make_its_podgroup_pending() -> None:
    assert (
        waiting(
            membership(replace(A, node=ON_NODE), replace(B, problem="unreadable"), spec=replace(SPEC, min_member=1))
        )
        == {}
    )


def test_a_podgroup_is_formed_again_when_its_object_is_created_changed_or_deleted() -> None:
    found = membership(A, B, spec=None)
    assert refusal(found) is Reason.POD_GROUP_DOES_NOT_EXIST

    assert found.set_spec(G, SPEC)
    assert refusal(found) is None

    assert found.set_spec(G, replace(SPEC, min_member=3))
    assert refusal(found) is Reason.MEMBERS_MISSING

    assert found.set_spec(G, None)
    assert refusal(found) is Reason.POD_GROUP_DOES_NOT_EXIST


def test_every_podgroup_is_formed_again_when_a_priority_class_is_created_or_deleted() -> None:
    found = membership(A, B)
    assert waiting(found)[G].priority == 50

    assert found.set_class("train", 7)
    assert waiting(found)[G].priority == 7

    assert found.set_class("train", None)
    assert waiting(found)[G].priority == 50


def test_a_priority_class_affects_the_podgroups_that_name_it() -> None:
    gold, lone = replace(SPEC, priority_classes=("gold",)), given.pod("lone", priority_classes=("gold",))
    found = membership(A, lone, spec=gold)

    assert [list(found.set_class(name, 7)) for name in ("gold", "silver", "train")] == [
        [G, lone.group],
        [],
        [G, lone.group],
    ]
    assert list(found.set_class("build", 100)) == []


def test_a_gang_without_its_podgroup_object_is_never_complete() -> None:
    found, lone = membership(A, spec=None), given.pod("lone")
    found.join(lone)

    assert (found.progress.min_member(G) > 1_000_000, found.progress.min_member(lone.group)) == (True, 1)


def test_an_unchanged_object_is_no_change() -> None:
    found = membership()
    found.set_class("train", 7)

    assert not found.set_class("train", 7)
    assert not found.set_class("nobody", None)
    assert not found.set_spec(G, SPEC)
    assert not found.set_spec(H, None)


def test_the_facts_of_a_podgroup_can_be_read() -> None:
    found = membership(replace(A, node=ON_NODE), B)
    found.progress.count_success(G, C.uid, "")

    assert (found.specs.get(G), found.progress.min_member(G), found.progress.bound(G)) == (SPEC, 2, 2)
    assert list(found.pods(G)) == [replace(A, node=ON_NODE), B]
    assert (list(found.keys()), list(found.specs.all())) == ([G], [SPEC])
    assert found.terms.of(G) == GroupTerms(QueueName("q"), 50, preemptible=True)


def test_a_gang_lacks_the_members_that_are_neither_bound_nor_being_bound() -> None:
    found = membership(replace(A, node=ON_NODE), B, spec=replace(SPEC, min_member=3))
    assert [found.progress.owes(G), found.progress.owes(G, {B.uid}), found.progress.owes(G, {A.uid, B.uid})] == [
        2,
        1,
        1,
    ]

    found.progress.count_success(G, C.uid, "x")
    assert (found.progress.owes(G), found.progress.owes(G, {B.uid})) == (1, 0)


def test_a_gang_lacks_members_in_each_of_its_sub_groups_separately() -> None:
    root = SubGroup(pod_sets=(PodSet(name="x"), PodSet(name="y", min_member=2)))
    spare, x, y = replace(A, subgroup="x", node=ON_NODE), replace(B, subgroup="x"), replace(C, subgroup="y")
    found = membership(spare, x, y, spec=replace(SPEC, min_member=3, root=root))
    assert (found.progress.owes(G), found.progress.owes(G, {x.uid}), found.progress.owes(G, {x.uid, y.uid})) == (
        2,
        2,
        1,
    )

    found.progress.count_success(G, PodUid("done"), "y")
    assert found.progress.owes(G, {y.uid}) == 0
    assert waiting(found)[G].succeeded == {"y": 1}


def test_a_gang_without_its_object_lacks_more_than_any_number_and_a_single_pod_lacks_itself() -> None:
    found, lone = membership(A, spec=None), given.pod("lone")
    found.join(lone)

    assert (found.progress.owes(G, {A.uid}) > 1_000_000, found.progress.owes(lone.group), found.progress.owes(H)) == (
        True,
        1,
        1,
    )


def test_a_pod_that_is_being_deleted_does_not_count_as_bound_for_its_gang() -> None:
    assert membership(replace(A, node=ON_NODE, deleting=True), replace(B, node=ON_NODE)).progress.bound(G) == 1


def test_little_is_known_about_a_podgroup_that_does_not_exist() -> None:
    found = membership()

    assert (found.specs.get(H), found.progress.min_member(H), found.progress.bound(H)) == (None, 1, 0)
    assert (list(found.pods(H)), found.terms.of(H)) == ([], None)


@pytest.mark.parametrize("last", ["pod", "object"])
def test_a_finished_member_counts_once_and_while_its_podgroup_exists(last: str) -> None:
    found = membership(A)
    found.progress.count_success(G, B.uid, "")
    found.progress.count_success(G, B.uid, "")
    assert (waiting(found)[G].succeeded, refusal(found)) == ({"": 1}, None)

    for end in ("object", "pod") if last == "pod" else ("pod", "object"):
        found.leave(A) if end == "pod" else found.set_spec(G, None)
    found.set_spec(G, SPEC)
    found.join(A)

    assert (waiting(found)[G].succeeded, refusal(found)) == ({}, Reason.MEMBERS_MISSING)


def test_a_success_survives_the_last_pod_or_the_object_but_not_both() -> None:
    found = membership(A)
    found.progress.count_success(G, B.uid, "")

    found.leave(A)
    found.join(C)
    assert refusal(found) is None

    found.set_spec(G, None)
    found.set_spec(G, SPEC)
    assert refusal(found) is None


def test_a_success_without_a_podgroup_object_counts_for_no_gang() -> None:
    found = membership(A, spec=None)

    found.progress.count_success(G, B.uid, "")

    assert found.progress.bound(G) == 0


def test_a_blocked_pod_is_not_ready_until_it_is_accepted_or_created_again() -> None:
    found = membership(A, B)
    assert refusal(found) is None

    found.asked.mark_stuck(A)
    assert refusal(found) is Reason.REFUSED_BY_SCHEDULER

    found.asked.unmark_stuck(A)
    assert refusal(found) is None

    found.asked.mark_stuck(A)
    found.leave(A)
    found.join(A)
    assert refusal(found) is None


def test_a_podgroup_in_backoff_is_refused_until_it_is_readmitted() -> None:
    found = membership(A, B)
    found.set_aside(G, ASIDE)
    assert waiting(found)[G].refusal == ASIDE

    found.readmit(G)
    assert refusal(found) is None


def test_a_podgroup_stays_in_backoff_while_it_has_pods() -> None:
    found = membership(A)
    found.set_aside(G, ASIDE)

    found.join(B)
    found.leave(A)
    found.join(A)
    assert waiting(found)[G].refusal == ASIDE

    for pod in (A, B):
        found.leave(pod)
    for pod in (A, B):
        found.join(pod)
    assert refusal(found) is None


def test_deleting_a_pod_twice_or_an_unknown_pod_is_no_error() -> None:
    found = membership(A)

    found.leave(B)
    found.leave(A)
    found.leave(A)

    assert (waiting(found), list(found.keys())) == ({}, [])


def test_a_pod_that_does_not_exist_yet_is_shown_in_the_podgroup_it_would_have() -> None:
    found = membership(spec=replace(SPEC, min_member=1, queue=QueueName("r")))
    lone = given.pod("lone")

    assert found.alone(A) == PodGroup(key=G, queue=QueueName("r"), priority=50, pending=(A,))
    assert found.alone(lone) == replace(given.group(lone), priority=50)
    assert waiting(found) == {}


# Topology constraints ------------------------------------------------------------------------------------------------

IN_A_ZONE, IN_A_RACK = (TopologyConstraint("t", required=level) for level in ("zone", "rack"))
PREFERS_A_RACK = TopologyConstraint("t", preferred="rack")


def test_a_pod_has_the_topology_constraints_of_its_pod_set_and_of_the_sub_groups_around_it() -> None:
    inner = SubGroup(name="inner", topology=PREFERS_A_RACK, pod_sets=(PodSet(name="v", topology=IN_A_RACK),))
    root = SubGroup(topology=IN_A_ZONE, groups=(inner,), pod_sets=(PodSet(name="w"),))
    v, w, stray = (replace(A, subgroup=name) for name in ("v", "w", "stray"))
    found = membership(A, B, spec=replace(SPEC, root=root))

    assert found.constraints(v) == (IN_A_ZONE, PREFERS_A_RACK, IN_A_RACK)
    assert found.constraints(w) == (IN_A_ZONE,)
    assert found.constraints(stray) == ()


def test_the_sub_group_label_means_nothing_in_a_podgroup_without_sub_groups() -> None:
    root = SubGroup(topology=IN_A_RACK, pod_sets=(PodSet(min_member=2),))
    found = membership(A, B, spec=replace(SPEC, root=root))

    assert found.constraints(A) == found.constraints(replace(A, subgroup="stray")) == (IN_A_RACK,)


def test_a_single_pod_has_no_topology_constraint() -> None:
    root = SubGroup(topology=IN_A_RACK, pod_sets=(PodSet(min_member=1),))

    assert membership(A, spec=replace(SPEC, root=root)).constraints(A) == ()
    assert membership(A, B).constraints(A) == ()
