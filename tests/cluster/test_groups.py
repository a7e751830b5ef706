"""Groups: a PodGroup formed from its object and its pods, and why it cannot start."""

from dataclasses import replace
from typing import Any

import pytest

from app.cluster.groups.groups import Members, Place, form
from app.cluster.groups.terms import GroupTerms, terms
from app.model.names import NodeName, PodUid, QueueName
from app.model.pod import Placed, Pod, SchedulerMessage, Sharing
from app.model.podgroup import GroupSpec, PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.reason import Reason, Refusal
from tests import given

ON = GroupTerms(queue=QueueName("q"), priority=50, preemptible=True)
CLASSES = {"train": 10, "zero": 0, "gold": 7, "firm": 100}
A, B = given.pod("a", gang="g", created_at=1.0), given.pod("b", gang="g", created_at=2.0)
ON_NODE = Place(NodeName("n"))
SPEC = GroupSpec(key=A.group, uid="u", min_member=2)
GOLD = replace(SPEC, priority_classes=("gold",))
REST = "the controller of these pods has to create the rest."
ASIDE = Refusal(reason=Reason.BACKING_OFF, sentence="It backs off.")


def members(*pods: Pod, held: str = "", stuck: str = "", succeeded: int = 0) -> Members:
    places = {PodUid(f"uid-{name}"): ON_NODE for name in held}
    finished = {"": succeeded} if succeeded else {}
    return Members(pods=pods, places=places, stuck={PodUid(f"uid-{name}") for name in stuck}, succeeded=finished)


def formed(found: Members, spec: GroupSpec | None = SPEC, aside: Refusal | None = None) -> PodGroup:
    return form(A.group, spec, found, ON, aside)


def reason(found: Members, spec: GroupSpec | None = SPEC) -> Reason | None:
    refusal = formed(found, spec).refusal
    return refusal.reason if refusal else None


def test_a_podgroup_consists_of_its_spec_its_terms_and_its_pods() -> None:
    c = given.pod("c", gang="g")

    assert formed(members(A, B, c, held="c", succeeded=1), replace(SPEC, created_at=9.0, min_member=4)) == PodGroup(
        key=A.group,
        queue=QueueName("q"),
        priority=50,
        min_member=4,
        created_at=9.0,
        pending=(A, B),
        placed=(Placed(pod=c, node=ON_NODE.node),),
        succeeded={"": 1},
    )


def test_a_pod_without_a_podgroup_is_a_podgroup_of_one_with_the_age_of_the_pod() -> None:
    alone = given.pod("alone", created_at=3.0)

    found = form(alone.group, None, members(alone), ON)

    assert found == replace(given.group(alone), created_at=3.0, priority=50)


def test_pods_start_by_task_priority_then_age_then_name() -> None:
    first, older, last = replace(B, task_priority=1), replace(B, created_at=0.5), replace(A, name="z")

    assert formed(members(last, A, first, older)).pending == (first, older, A, last)


@pytest.mark.parametrize(
    "pod", [replace(B, gated=True), replace(B, deleting=True), replace(B, problem="unreadable")], ids=repr
)
def test_a_pod_that_cannot_start_now_is_not_pending(pod: Pod) -> None:
    assert formed(members(A, pod), replace(SPEC, min_member=1)).pending == (A,)
    assert formed(members(A, pod)).refusal is not None


def test_a_pod_with_only_our_gate_is_pending_like_any_other() -> None:
    held = replace(B, held=True)

    assert formed(members(A, held)).pending == (A, held)
    assert formed(members(A, held)).refusal is None


def test_a_podgroup_is_pending_while_one_of_its_pods_has_no_node() -> None:
    gated = replace(A, gated=True)

    assert members(A, B, held="a").waiting() == [B]
    assert members(A, replace(B, deleting=True), held="a").waiting() == []
    assert members(gated).waiting() == [gated]


def test_a_gang_with_too_few_pods_waits_and_says_how_many_there_are() -> None:
    found = members(A, replace(B, gated=True), held="", succeeded=1)

    assert formed(found, replace(SPEC, min_member=3)).refusal == Refusal(
        reason=Reason.MEMBERS_MISSING,
        sentence="The gang is incomplete: of 3 pods, 1 is held by a scheduling gate that is not Leeboard's; "
        "the controller that set the gate has to remove it.",
        details={"minMember": 3, "exist": 3, "gated": 1},
    )


def test_a_running_gang_waits_for_no_other_pods() -> None:
    assert reason(members(A, B, replace(A, uid=PodUid("c")), held="ab", stuck="c")) is None
    assert reason(members(A, B, held="b")) is None
    assert reason(members(A, succeeded=1)) is None


def test_pods_that_are_being_deleted_no_longer_count_for_their_gang() -> None:
    # A gang that is restarted: the old pods still hold their nodes while the new ones are created.
    old = [replace(pod, uid=PodUid(f"uid-old-{pod.name}"), deleting=True) for pod in (A, B)]
    places = {pod.uid: ON_NODE for pod in old}

    complete, short = (formed(Members(pods=[*old, *new], places=places, stuck=())) for new in ([A, B], [A]))

    assert (complete.active, complete.owed, complete.refusal) == (0, 2, None)
    assert short.refusal is not None
    assert (
        short.refusal.sentence
        == "The gang is incomplete: 1 of 2 pods exists; the controller of these pods has to create the rest."
    )


def test_the_error_of_a_pod_is_reported_rather_than_its_absence() -> None:
    unreadable = replace(B, problem="its cpu is no quantity")

    assert formed(members(A, unreadable, stuck="a")).refusal == Refusal(
        reason=Reason.INVALID_REQUEST, sentence="Pod b: its cpu is no quantity."
    )
    assert formed(members(A, B, stuck="b")).refusal == Refusal(
        reason=Reason.REFUSED_BY_SCHEDULER,
        sentence="The filters of kube-scheduler accept pod b on no node; its condition PodScheduled says why.",
        details={"pod": "b"},
    )


def test_a_member_refused_by_kube_scheduler_everywhere_is_reported_with_its_message_also_when_single() -> None:
    said = "0/3 nodes are available: 3 node(s) had volume node affinity conflict"
    refused, lone = (
        replace(B, said=SchedulerMessage(because=said)),
        given.pod("lone", said=SchedulerMessage(because=said)),
    )
    alone = formed(Members(pods=[lone], places={}, stuck=[lone.uid]), None)

    sentences = [one.refusal.sentence for one in (formed(members(A, refused, stuck="b")), alone) if one.refusal]

    assert sentences == [
        f"The filters of kube-scheduler accept pod {name} on no node: {said}." for name in ("b", "lone")
    ]


def test_a_gang_with_a_suspended_owner_says_so_rather_than_what_is_missing_or_wrong() -> None:
    suspended = replace(SPEC, suspended="Job train is suspended; set spec.suspend to false to go on.", problem="bad")

    assert formed(members(A), suspended).refusal == Refusal(
        reason=Reason.OWNER_SUSPENDED, sentence="Job train is suspended; set spec.suspend to false to go on."
    )
    assert formed(members(A, B), replace(suspended, suspended="")).refusal != formed(members(A, B), suspended).refusal


def test_a_named_podgroup_that_is_missing_or_invalid_is_refused_whatever_its_pods() -> None:
    bad = replace(SPEC, problem="spec.minMember is -1")

    assert formed(members(B, A), None).created_at == A.created_at
    assert formed(members(A, B), None).refusal == Refusal(
        reason=Reason.POD_GROUP_DOES_NOT_EXIST,
        sentence="PodGroup default/g does not exist; create it, or name another one.",
        details={"podgroup": "default/g", "pods": 2},
    )
    assert formed(members(A), bad).refusal == Refusal(
        reason=Reason.POD_GROUP_IS_INVALID,
        sentence="PodGroup g is not valid: spec.minMember is -1.",
        details={"podgroup": "default/g", "pods": 1},
    )


def parts(**min_member: int) -> GroupSpec:
    sets = tuple(PodSet(name=name, min_member=least) for name, least in min_member.items())
    return replace(SPEC, min_member=sum(min_member.values()), root=SubGroup(pod_sets=sets))


def of(name: str, pod: Pod) -> Pod:
    return replace(pod, subgroup=name)


def test_each_pod_set_waits_for_its_own_minimum() -> None:
    c = given.pod("c", gang="g", subgroup="workers")
    leader, worker = of("leader", A), of("workers", B)

    assert formed(members(leader, worker, c, held="c"), parts(leader=1, workers=2)).refusal is None
    assert formed(members(worker, c), parts(leader=1, workers=1)).refusal == Refusal(
        reason=Reason.MEMBERS_MISSING,
        sentence=f"The gang is incomplete: no pod of sub-group leader exists; {REST}",
        details={"minMember": 1, "exist": 0, "gated": 0, "subGroup": "leader"},
    )


def test_all_sub_groups_that_lack_pods_are_named() -> None:
    found = members(of("leader", A))

    refusal = formed(found, parts(leader=2, workers=3, masters=1)).refusal

    assert refusal is not None
    assert refusal.sentence == (
        "The gang is incomplete: 1 of 2 pods of sub-group leader exists; "
        f"also missing: 3 of sub-group workers, 1 of sub-group masters; {REST}"
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("boss", "names boss, which its PodGroup does not have"), ("", "is missing")],
    ids=["unknown", "unlabelled"],
)
def test_a_pod_in_no_sub_group_gets_the_list_of_sub_groups(name: str, wrong: str) -> None:
    found = members(of("leader", A), of(name, B))

    assert formed(found, parts(leader=1, workers=1)).refusal == Refusal(
        reason=Reason.INVALID_REQUEST,
        sentence=f"Pod b is in no sub-group, because its label kai.scheduler/subgroup-name {wrong}; "
        "write one of leader, workers.",
        details={"pod": "b", "subGroups": "leader, workers"},
    )


def test_a_running_pod_with_a_wrong_sub_group_label_blocks_no_other_pod() -> None:
    assert reason(members(of("leader", A), of("boss", B), held="b"), parts(leader=1)) is None


def test_hundreds_of_sub_groups_do_not_fill_a_message() -> None:
    many = parts(**{f"part-{number:03}": 1 for number in range(200)})
    refusal = formed(members(A), many).refusal

    assert refusal is not None
    assert refusal.sentence.endswith("part-008, part-009, and 190 more.")


def test_a_podgroup_with_only_a_topology_has_no_sub_groups_to_name() -> None:
    level = TopologyConstraint("t", required="rack")
    spec = replace(SPEC, root=SubGroup(topology=level, pod_sets=(PodSet(min_member=2),)))

    found = formed(members(of("x", A), B), spec)

    assert (found.refusal, found.root, found.pending) == (None, spec.root, (A, B))


def test_a_podgroup_in_backoff_is_refused_for_that_unless_something_worse_is_wrong() -> None:
    assert formed(members(A, B), aside=ASIDE).refusal == ASIDE
    assert formed(members(A), aside=ASIDE) == formed(members(A))


@pytest.mark.parametrize(
    ("spec", "pod", "expected"),
    [
        (SPEC, A, GroupTerms(QueueName("q"), 10, preemptible=True)),
        (replace(SPEC, queue=QueueName("r")), A, GroupTerms(QueueName("r"), 10, preemptible=True)),
        (None, replace(A, queue=QueueName("s")), GroupTerms(QueueName("s"), 10, preemptible=True)),
        (
            replace(SPEC, priority_classes=("gold",)),
            replace(A, priority_classes=("firm",)),
            GroupTerms(ON.queue, 7, preemptible=True),
        ),
        (SPEC, replace(A, priority_classes=("firm",)), GroupTerms(ON.queue, 100, preemptible=False)),
        (replace(SPEC, priority_classes=("zero",)), A, GroupTerms(ON.queue, 0, preemptible=True)),
        (replace(SPEC, priority_classes=("nobody",)), A, GroupTerms(ON.queue, 10, preemptible=True)),
        (
            replace(SPEC, priority_classes=("nobody",)),
            replace(A, priority_classes=("gold",)),
            GroupTerms(ON.queue, 7, preemptible=True),
        ),
        (replace(SPEC, priority_classes=("build",)), A, GroupTerms(ON.queue, 100, preemptible=False)),
        (replace(SPEC, preemptible=False), A, GroupTerms(ON.queue, 10, preemptible=False)),
        (SPEC, replace(A, explicit_preemptible=False), GroupTerms(ON.queue, 10, preemptible=False)),
        (
            replace(SPEC, preemptible=True, priority_classes=("firm",)),
            replace(A, explicit_preemptible=False),
            GroupTerms(ON.queue, 100, preemptible=True),
        ),
    ],
)
def test_terms_are_read_from_the_podgroup_and_then_from_a_pod(
    spec: GroupSpec | None, pod: Pod, expected: GroupTerms
) -> None:
    assert terms(spec, pod, CLASSES) == expected


def test_without_any_priority_class_the_built_in_ones_apply() -> None:
    assert [
        terms(None, replace(A, priority_classes=names), {}).priority for names in ((), ("train",), ("inference",))
    ] == [
        50,
        50,
        125,
    ]


UNREADABLE_A, UNREADABLE_B = replace(A, problem="a is odd"), replace(B, problem="b is odd")


@pytest.mark.parametrize("pods", [(UNREADABLE_A, UNREADABLE_B), (UNREADABLE_B, UNREADABLE_A)], ids=["a-b", "b-a"])
def test_of_two_unreadable_pods_the_older_is_reported_in_any_order_of_arrival(pods: tuple[Pod, ...]) -> None:
    refusal = formed(members(*pods)).refusal

    assert refusal is not None
    assert refusal.sentence == "Pod a: a is odd."


@pytest.mark.parametrize("ungrouped", [(A, B), (B, A)], ids=["a-b", "b-a"])
def test_of_two_pods_with_unknown_owners_the_older_is_reported_in_any_order_of_arrival(
    ungrouped: tuple[Pod, ...],
) -> None:
    pods = [replace(pod, ungrouped=f"Job {pod.name} is unknown") for pod in ungrouped]

    refusal = formed(members(*pods)).refusal

    assert refusal is not None
    assert refusal.sentence == "Job a is unknown"


@pytest.mark.parametrize("leaver", [replace(UNREADABLE_A, deleting=True), replace(A, gated=True, deleting=True)])
def test_a_pod_that_is_being_deleted_is_not_the_reason_why_its_gang_lacks_pods(leaver: Pod) -> None:
    refusal = formed(members(leaver, B)).refusal

    assert refusal is not None
    assert (
        refusal.sentence
        == "The gang is incomplete: 1 of 2 pods exists; the controller of these pods has to create the rest."
    )


@pytest.mark.parametrize(
    ("asks", "waits"),
    [
        ({"gpus": 0}, False),
        ({"gpus": 0, "scalars": (("example.com/nic", 1),)}, False),
        ({"gpus": 1}, True),
        ({"gpus": 0, "scalars": (("nvidia.com/mig-1g.10gb", 1),)}, True),
        ({"gpus": 0, "scalars": (("amd.com/gpu", 1),)}, True),
        ({"gpus": 0, "sharing": Sharing(portion_ppm=1)}, True),
        ({"gpus": 0, "claims": (given.claim("c", "gpu.nvidia.com", 1),)}, True),
    ],
)
def test_only_pods_with_gpus_wait_until_the_healthy_gpus_are_known(asks: dict[str, Any], *, waits: bool) -> None:
    pods = given.pod("a", gang="g", **asks), given.pod("b", gang="g", gpus=0)
    refusal = formed(replace(members(*pods), gpus_unknown="Nobody knows.")).refusal

    assert refusal == (Refusal(reason=Reason.DECIDING, sentence="Nobody knows.") if waits else None)


def test_a_gang_whose_pods_with_gpus_have_nodes_does_not_wait_for_gpu_reports() -> None:
    pods = given.pod("a", gang="g"), given.pod("b", gang="g", gpus=0)

    assert formed(replace(members(*pods, held="a"), gpus_unknown="Nobody knows.")).refusal is None
