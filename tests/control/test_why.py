import asyncio
from dataclasses import replace

import pytest

from app.model.explanation import Explanation, Leaver, Member, Outcome, PodState, Position, Subject, Unknown
from app.model.names import GroupKey
from app.model.reason import Reason
from app.model.seam import RawObject, RejectedError, Resource
from app.model.sentence import EVERYTHING, Name
from app.model.sentence import told as read_by
from app.simulation.cluster import Ref
from tests.control.wired import World, living, passes

LEAVING = {"deletionTimestamp": "1970-01-01T00:00:00Z"}


def told(world: World, name: str, subject: Subject | None = None) -> Explanation:
    answer = world.inspect.explain("q", name, subject)
    assert isinstance(answer, Explanation), answer
    return answer


def unknown(world: World, namespace: str, name: str, subject: Subject | None = None) -> str:
    answer = world.inspect.explain(namespace, name, subject)
    assert isinstance(answer, Unknown), answer
    return answer.sentence


def short(answer: Explanation) -> tuple[str, str, str]:
    return answer.state, answer.why.reason, named(answer.why.sentence)


def named(sentence: str) -> str:
    """Return a message for a reader who may see every namespace."""
    return read_by(sentence, EVERYTHING)


def outcomes(answer: Explanation) -> list[tuple[str, str]]:
    return [(one.outcome.value, one.cause) for one in answer.decisions]


async def contended(world: World) -> tuple[RawObject, RawObject]:
    """Let a pod run, and another of higher priority evict it."""
    victim = world.runs("victim", "a", priority_class="train")
    await passes(1)
    urgent = world.pod("urgent", priority_class="build-preemptible")
    await passes(2)
    return victim, urgent


# -- pods


async def test_a_bound_pod_of_a_deleted_node_says_that_the_node_is_gone() -> None:
    async with living("a") as world:
        world.runs("one", "a")
        await passes(1)
        world.delete_node("a")
        await passes(1)

        assert told(world, "one-0").why.sentence == (
            "It was bound to node a, which does not exist any more; Kubernetes deletes the pod soon."
        )


async def test_why_shows_a_pod_in_every_state_from_gated_to_bound() -> None:
    async with living() as world:
        pod, seen = world.pod("one"), []
        await passes(1)
        seen.append(short(told(world, "one-0")))
        world.nodes("a")
        await passes(1)
        seen.append(short(told(world, "one-0")))
        await world.bind(pod, "a")
        await passes(1)
        seen.append(short(told(world, "one-0")))

        assert seen[1:] == [
            ("Promised", "Promised", "Node a is reserved for it; kube-scheduler has not asked to bind it yet."),
            ("Bound", "Bound", "It is on node a."),
        ]
        assert seen[0][:2] == ("Held", Reason.NO_NODE_FITS)


async def test_why_shows_a_pod_with_its_queue_its_terms_and_the_decisions() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        await passes(1)
        await world.bind(pod, "a")
        await passes(1)

        answer = told(world, "one-0")

        assert (answer.subject, answer.pod_group, answer.uid) == (Subject.POD, "one-0", pod["metadata"]["uid"])
        assert (answer.queue, answer.priority, answer.preemptible, answer.min_member) == ("q", 50, True, 1)
        assert answer.stand is not None
        assert (answer.stand.allocated.gpu_milli, answer.stand.waiting) == (1000, 0)
        assert [(one.outcome, one.sentence) for one in answer.decisions] == [
            (Outcome.STARTED, "A place on node a was reserved for it.")
        ]


async def test_a_pod_that_waits_for_victims_names_them_and_since_when() -> None:
    async with living("a") as world:
        await contended(world)

        answer = told(world, "urgent-0")

        (decision,) = told(world, "victim-0").decisions[:1]
        assert (answer.state, answer.why.reason, answer.node) == ("Awaiting", Reason.WAITING_FOR_VICTIMS, "a")
        assert answer.waits_for == (Leaver(namespace="q", name="victim-0", node="a", since=decision.at),)  # type: ignore[arg-type] # a NewType
        assert answer.decisions[0].sentence == "Room on node a was reserved for it; 1 pod had to be evicted."


async def test_victims_are_named_in_an_order_that_does_not_depend_on_their_arrival() -> None:
    async with living("a", gpus=2) as world:
        for name in ("second", "first"):
            world.runs(name, "a")
        await passes(1)
        world.pod("urgent", gpus=2, priority_class="build-preemptible")
        await passes(1)

        assert [one.name for one in told(world, "urgent-0").waits_for] == ["first-0", "second-0"]


async def test_an_evicted_pod_names_the_beneficiary_while_it_terminates_and_afterwards() -> None:
    async with living("a") as world:
        victim, _ = await contended(world)
        ending = told(world, "victim-0")
        world.delete(victim)
        await passes(1)
        gone = told(world, "victim-0")

        said = "Pod q/victim-0 was evicted for workload q/urgent-0, which has a higher priority"
        assert short(ending) == ("Releasing", "Evicted", f"{said}; it has not ended yet.")
        assert short(gone) == ("Evicted", "Evicted", f"{said}.")
        assert (gone.node, gone.uid, gone.pod_group) == ("a", victim["metadata"]["uid"], "victim-0")
        whom = gone.why.details["for"]
        assert (gone.why.details["action"], isinstance(whom, str) and named(whom)) == ("preempt", "q/urgent-0")
        assert outcomes(gone) == [("Evicted", "preempt")]


async def test_a_pod_created_again_under_its_name_shows_its_new_state_and_the_earlier_decisions() -> None:
    async with living("a") as world:
        victim, _ = await contended(world)
        world.delete(victim)
        await passes(1)
        world.pod("victim", priority_class="train")
        await passes(1)

        answer = told(world, "victim-0")

        assert answer.state == "Held"
        assert ("Evicted", "preempt") in outcomes(answer)


async def test_a_pod_that_ended_by_itself_is_shown_as_gone() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        await passes(1)
        await world.bind(pod, "a")
        world.delete(pod)
        await passes(1)

        said = "Pod q/one-0 does not exist any more: it has ended or was deleted."
        assert short(told(world, "one-0")) == ("Gone", "Gone", said)


async def test_a_pod_that_lost_its_reservation_to_another_pod_names_that_pod() -> None:
    async with living("a", promise_ttl_s=600) as world:
        world.pod("slow", priority_class="train")
        await passes(1)
        world.pod("urgent", priority_class="build-preemptible")
        await passes(2)

        said = "The reservation of node a for pod q/slow-0 was taken back for workload q/urgent-0."
        assert ("TakenBack", said) in [
            (one.outcome.value, named(one.sentence)) for one in told(world, "slow-0").decisions
        ]


async def test_a_pod_that_is_being_deleted_says_so() -> None:
    async with living("a") as world:
        pod = world.runs("one", "a")
        world.patch(pod, metadata=LEAVING)
        await passes(1)

        said = "It is being deleted; its room on node a becomes free when it has ended."
        assert short(told(world, "one-0")) == ("Releasing", "Releasing", said)


async def test_a_binding_that_the_api_server_refuses_is_shown_with_its_message() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        await passes(1)
        world.cluster.errors["bind"].append(RejectedError("policy forbids it"))
        await world.bind(pod, "a")
        await passes(1)

        answer = told(world, "one-0")

        assert (answer.state, answer.why.reason) == ("Held", Reason.BACKING_OFF)
        assert "policy forbids it" in answer.why.sentence
        assert outcomes(answer) == [("Failed", "BackingOff"), ("Started", "allocate")]
        assert answer.position is None


async def test_a_member_that_was_never_started_shows_why_its_gang_was_refused() -> None:
    async with living("a") as world:
        world.gang("gang", size=2)
        await passes(1)

        answer = told(world, "gang-1")

        assert (answer.state, answer.why.reason, answer.pod_group) == ("Held", Reason.GANG_DOES_NOT_FIT, "gang")
        assert outcomes(answer) == [("Refused", "GangDoesNotFit")]


async def test_a_member_of_a_gang_shows_since_when_it_was_being_started() -> None:
    async with living("a", gpus=2) as world:
        pods = world.gang("gang", size=2)
        await passes(1)
        await asyncio.gather(*(world.bind(pod, "a") for pod in pods))
        await passes(1)

        answer = told(world, "gang-1")

        assert answer.state == "Bound"
        assert answer.since == answer.decisions[0].at


async def test_a_pod_whose_owner_is_not_known_yet_says_so() -> None:
    async with living("a") as world:
        pod = world.pod("one", gpus=8)
        await passes(1)
        known = next(each for each in world.cache.pods.all() if each.uid == pod["metadata"]["uid"])
        world.cache.apply_pod(replace(known, ungrouped="its owner Job train is looked up"))

        assert short(told(world, "one-0")) == ("Held", "OwnerUnknown", "its owner Job train is looked up.")


# -- PodGroups


async def test_a_pending_podgroup_is_shown_with_its_members_and_its_position_in_the_queue() -> None:
    async with living("a", gpus=4) as world:
        world.runs("there", "a", gpus=3, priority_class="build")
        for name in ("first", "second"):
            world.gang(name, size=4, priority_class="build-preemptible")
        world.gang("gang", size=2)
        await passes(1)

        answer = told(world, "gang")

        assert (answer.subject, answer.state, answer.why.reason) == (Subject.POD_GROUP, "Waiting", "GangDoesNotFit")
        assert (answer.min_member, answer.priority, answer.counts) == (2, 50, {"Held": 2})
        assert answer.members == (Member("gang-0", PodState.HELD, None), Member("gang-1", PodState.HELD, None))
        assert answer.position == Position(ahead_in_queue=2, first=(Name("q", "first"), Name("q", "second")), ahead=2)
        assert outcomes(answer) == [("Refused", "GangDoesNotFit")]


async def test_a_podgroup_runs_partly_until_its_last_pod_is_bound() -> None:
    async with living("a", gpus=2) as world:
        pods, seen = world.gang("gang", size=3, min_member=2), []
        await passes(1)
        seen.append(told(world, "gang").state)
        for pod in pods[:2]:
            binding = world.binding(pod, "a")
        await binding
        await passes(1)
        seen.append(told(world, "gang").state)
        world.nodes("b")
        await passes(1)
        await world.bind(pods[2], "b")
        await passes(1)
        seen.append(told(world, "gang").state)

        assert seen == ["Waiting", "PartlyRunning", "Running"]
        assert told(world, "gang").why.sentence == "Its 3 pods are on 2 nodes."


async def test_a_podgroup_without_pods_waits_for_its_owner_and_a_deleted_one_is_remembered() -> None:
    async with living("a") as world:
        (pod,) = world.gang("gang", size=1)
        await passes(1)
        world.delete(pod)
        await passes(1)
        empty = told(world, "gang")
        world.cluster.delete(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"))
        await passes(1)
        gone = told(world, "gang")

        said = "It has no pods; its owner has to create one."
        assert short(empty) == ("Waiting", Reason.MEMBERS_MISSING, said)
        assert short(gone) == ("Gone", "Gone", "PodGroup q/gang and its pods do not exist any more.")
        assert outcomes(gone) == [("Started", "allocate")]


async def test_a_podgroup_whose_owner_is_suspended_says_that_first() -> None:
    async with living("a") as world:
        world.gang("gang", size=1, min_member=2)
        await passes(1)
        spec = world.cache.groups.specs.get(GroupKey("q", "gang"))
        assert spec is not None
        world.cache.apply_group(replace(spec, suspended="Job train is suspended; set spec.suspend to false"))

        said = ("OwnerSuspended", "Job train is suspended; set spec.suspend to false.")
        assert short(told(world, "gang")) == ("Suspended", *said)
        assert short(told(world, "gang-0")) == ("Held", *said)


async def test_the_evictions_of_a_gang_are_one_decision_and_do_not_hide_its_start() -> None:
    async with living("a", gpus=4) as world:
        for pod in world.gang("gang", size=4):
            world.patch(pod, spec={"nodeName": "a"}, status={"phase": "Running"})
        await passes(1)
        world.pod("urgent", gpus=4, priority_class="build-preemptible")
        await passes(3)

        (decision,) = [one for one in told(world, "gang").decisions if one.outcome is Outcome.EVICTED]

        assert sorted(seat.name for seat in decision.pods) == [f"gang-{number}" for number in range(4)]
        assert named(decision.sentence).endswith(
            "for workload q/urgent-0, which has a higher priority, and 3 more of its PodGroup with it."
        )


# -- what is meant, and what is unknown


async def test_a_name_of_both_a_pod_and_a_podgroup_means_the_pod_unless_the_podgroup_is_requested() -> None:
    async with living("a", gpus=2) as world:
        world.pod("one")
        world.gang("one-0", size=1)
        await passes(1)

        subjects = [told(world, "one-0", each).subject for each in (None, Subject.POD, Subject.POD_GROUP)]

        assert subjects == [Subject.POD, Subject.POD, Subject.POD_GROUP]


async def test_a_pod_of_another_scheduler_shows_the_scheduler_name_that_leeboard_manages() -> None:
    async with living("a", profiles="kai-scheduler,leeboard") as world:
        pod = world.pod("other")
        world.patch(pod, spec={"schedulerName": "default-scheduler", "nodeName": "a"})
        await passes(1)

        said = unknown(world, "q", "other-0")

        assert said == (
            "pod q/other-0 belongs to another scheduler; to have Leeboard schedule it, create it again with"
            " spec.schedulerName kai-scheduler or leeboard"
        )


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        (None, "pod, PodGroup or workload"),
        (Subject.POD, "pod"),
        (Subject.POD_GROUP, "PodGroup"),
        (Subject.WORKLOAD, "workload"),
    ],
)
async def test_an_unknown_name_gives_advice(subject: Subject | None, kind: str) -> None:
    async with living("a") as world:
        assert unknown(world, "team", "none", subject).startswith(
            f"no {kind} team/none is known, and Leeboard remembers"
        )


async def test_decisions_of_one_namespace_are_not_shown_in_another() -> None:
    async with living("a") as world:
        victim, _ = await contended(world)
        world.delete(victim)
        await passes(1)

        assert "is known" in unknown(world, "team", "victim-0")


# -- storms


async def test_many_refusals_do_not_displace_an_eviction() -> None:
    async with living("a") as world:
        victim, _ = await contended(world)
        world.delete(victim)
        await passes(1)
        for number in range(1_100):
            world.pod(f"p{number}", gpus=8)
        await passes(3)

        assert told(world, "victim-0").state == "Evicted"


async def test_a_repeated_refusal_is_remembered_once() -> None:
    async with living("a") as world:
        world.pod("large", gpus=8)
        for number in range(5):
            world.nodes(f"more-{number}")
            await passes(1)

        assert outcomes(told(world, "large-0")) == [("Refused", "NoNodeFits")]


async def test_each_pod_of_a_podgroup_shows_what_it_waits_for_itself() -> None:
    async with living("a", "b", "c") as world:
        for node in "ab":
            world.runs(f"on-{node}", node, priority_class="train")
        await passes(1)
        pods = world.gang("e", size=4, min_member=1, priority_class="build-preemptible")
        await passes(2)
        places = [world.promised(pod) for pod in pods]
        said = {node: told(world, f"e-{places.index(node)}") for node in ("a", "b", "c", None)}

        assert {node: (one.why.reason, one.why.details.get("node")) for node, one in said.items()} == {
            "a": ("WaitingForVictims", "a"),
            "b": ("WaitingForVictims", "b"),
            "c": ("Promised", None),
            None: ("NoNodeFits", None),
        }
        assert "(q/on-a-0)" in named(said["a"].why.sentence)
        known = {node: world.inspect.pod("q", one.name) for node, one in said.items()}
        assert {node: one.refusal and one.refusal.details.get("node") for node, one in known.items() if one} == {
            "a": "a",
            "b": "b",
            "c": None,
            None: None,
        }


async def test_a_pod_that_only_loses_a_reservation_is_not_shown_as_evicted() -> None:
    async with living("a", gpus=2) as world:
        world.runs("victim", "a", priority_class="train")
        promised = world.pod("promised", priority_class="train")
        await passes(1)
        assert world.promised(promised) == "a"
        world.pod("urgent", priority_class="build-preemptible", gpus=2)
        await passes(2)
        urgent = told(world, "urgent-0")

        assert named(urgent.why.sentence).startswith(
            "The pod that has to leave for it has not ended yet (q/victim-0); "
        )
        assert urgent.decisions[0].sentence == "Room on node a was reserved for it; 1 pod had to be evicted."


async def test_room_without_evictions_was_released_by_other_pods() -> None:
    async with living("a") as world:
        leaver = world.runs("leaver", "a")
        await passes(1)
        world.patch(leaver, metadata=LEAVING)
        await passes(1)
        world.pod("next")
        await passes(1)

        assert told(world, "next-0").decisions[0].sentence == (
            "Room on node a was reserved for it; other pods are already being deleted."
        )


async def test_a_gang_that_lost_a_pod_without_a_replacement_does_not_run_whole() -> None:
    async with living("a", "b") as world:
        pods = world.gang("gang", size=2)
        await passes(1)
        bindings = [world.binding(pod, await world.choose(pod, "a", "b")) for pod in pods]
        await passes(1)
        whole = short(told(world, "gang"))
        world.delete(pods[0])
        await passes(1)

        assert [one.done() for one in bindings] == [True, True]
        there = "1 of its pods is on its node, fewer than its minimum"
        said = f"The gang is incomplete: {there}; its owner has to create the others."
        assert [whole, short(told(world, "gang"))] == [
            ("Running", "Running", "Its 2 pods are on 2 nodes."),
            ("PartlyRunning", "NotReady", said),
        ]
