"""Pods that kube-scheduler binds itself after our answer: what is theirs until then, and what ends it."""

from typing import Any

import pytest

from app.cluster.ledger.reservations import ReservationState
from app.model.explanation import PodState
from app.model.marks import ASK_MARKER, BIND_MARKER, PREEMPTIBLE_ANNOTATION
from app.model.names import GroupKey, PodUid
from app.model.question import Refused
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import Job
from tests.control.wired import World, living, passes

MARKERS = f"{ASK_MARKER},{BIND_MARKER}"
URGENT = {"priority_class": "build-preemptible"}
ANSWERED_TTL_S = 5.0
HALF = {"gpu-fraction": "0.5"}


def bound(world: World, pod: RawObject, node: str) -> None:
    """Bind a pod as kube-scheduler does."""
    world.patch(pod, spec={"nodeName": node}, status={"phase": "Running"})


def group_of(pod: RawObject) -> GroupKey:
    return GroupKey(pod["metadata"]["namespace"], pod["metadata"]["uid"])


def state(world: World, pod: RawObject) -> ReservationState | None:
    held = world.held(pod)
    return held.state if held else None


async def test_no_other_pod_takes_the_node_of_a_pod_that_was_answered() -> None:
    async with living("a", markers=MARKERS) as world:
        slow = world.pod("slow")
        await passes(1)
        assert await world.choose(slow, "a") == "a"

        urgent = world.pod("urgent", **URGENT)
        await passes(1)
        refused = await world.filter(urgent, "a")

        assert state(world, slow) is ReservationState.ANSWERED
        assert isinstance(refused, Refused)
        bound(world, slow, "a")
        await passes(1)
        assert (world.held(slow), world.cluster.binds) == (None, [])


async def test_a_reservation_that_filter_never_answered_is_still_withdrawn() -> None:
    async with living("a", markers=MARKERS) as world:
        slow = world.pod("slow")
        await passes(1)

        urgent = world.pod("urgent", **URGENT)
        await passes(1)

        assert (world.promised(slow), world.promised(urgent)) == (None, "a")


async def test_leeboard_binds_a_pod_with_the_marker() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = marked(world, "firm")
        await passes(1)

        node = await world.choose(pod, "a")

        assert state(world, pod) is ReservationState.PROMISED
        assert (await world.bind(pod, node), world.bound()) == ("", {"firm-0": "a"})


async def test_leeboard_binds_every_pod_without_markers() -> None:
    async with living("a") as world:
        pod = world.pod("p")
        await passes(1)

        await world.choose(pod, "a")

        assert state(world, pod) is ReservationState.PROMISED


async def test_a_pod_that_is_filtered_again_keeps_its_node_or_moves() -> None:
    async with living("a", "b", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        first = await world.choose(pod, "a", "b")

        again = await world.choose(pod, "a", "b")
        moved = await world.choose(pod, "b" if first == "a" else "a")

        assert (again, moved != first) == (first, True)
        assert (state(world, pod), world.promised(pod)) == (ReservationState.ANSWERED, moved)


async def test_a_node_that_is_not_used_in_time_is_free_again() -> None:
    async with living("a", markers=MARKERS, answered_ttl_s=ANSWERED_TTL_S) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")
        world.pod("next", **URGENT)

        await passes(ANSWERED_TTL_S + 2)

        assert world.promised(pod) is None
        assert world.count("promises_expired") == 1


async def test_a_node_is_not_blamed_for_a_bind_that_takes_too_long() -> None:
    async with living("a", markers=MARKERS, answered_ttl_s=ANSWERED_TTL_S) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")
        world.patch(pod, status={"nominatedNodeName": "a"})

        await passes(ANSWERED_TTL_S + 2)

        assert world.cache.findings.refused(PodUid(pod["metadata"]["uid"])) == frozenset()
        assert world.promised(pod) == "a"


async def test_a_pod_that_is_refused_when_filtered_again_may_lose_its_node() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")

        answer = await world.filter(pod, *(f"n{number}" for number in range(120)))
        refused_as = state(world, pod)
        urgent = world.pod("urgent", **URGENT)
        await passes(1)

        assert (answer, refused_as) == (Refused(Reason.DECIDING), ReservationState.PROMISED)
        assert (world.promised(pod), world.promised(urgent)) == (None, "a")


async def test_the_reply_of_kube_scheduler_after_our_answer_ends_the_assumed_binding() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")

        world.refuse(pod)
        await passes(1)

        assert state(world, pod) is not ReservationState.ANSWERED


async def test_an_assumed_binding_ends_with_its_node_its_pod_and_our_leadership() -> None:
    async with living("a", "b", "c", markers=MARKERS) as world:
        pods = [world.pod(name) for name in ("one", "two", "three")]
        await passes(1)
        for pod, node in zip(pods, "abc", strict=True):
            await world.choose(pod, node)
        one, two, three = pods

        world.delete_node("a")
        world.delete(two)
        await passes(1)
        ended = (state(world, one), state(world, two), state(world, three))
        world.reserver.stand_down()

        assert ended == (ReservationState.PROMISED, None, ReservationState.ANSWERED), (
            "the first is promised what the second has left"
        )
        assert world.held(three) is None


async def test_the_owner_is_told_that_the_pod_is_being_bound() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")

        known = world.inspect.pod("q", "p-0")

        assert known is not None
        assert (known.state, known.node) == (PodState.BINDING, "a")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ('running Bind plugin "DefaultBinder": p is forbidden: frozen', "p is forbidden: frozen"),
        ('running PreBind plugin "P": timed out', 'running PreBind plugin "P": timed out'),
    ],
)
async def test_a_pod_that_kube_scheduler_cannot_bind_backs_off(message: str, told: str) -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")
        world.fail(pod, message)
        await passes(1)
        waits = state(world, pod)

        again = await world.filter(pod, "a")

        assert (waits, again) == (ReservationState.ANSWERED, Refused(Reason.BACKING_OFF))
        refusal = world.planning.refusals[group_of(pod)]
        assert refusal.sentence == f"Kube-scheduler could not bind pod p-0: {told}; Leeboard tries again in 2 s."
        await passes(4)
        assert await world.choose(pod, "a") == "a"


@pytest.mark.parametrize(
    "message",
    [
        'running Bind plugin "DefaultBinder": Post "https://api/": read: connection reset by peer',
        'running Bind plugin "DefaultBinder": Operation cannot be fulfilled on pods/binding "p": already assigned',
        'Post "http://127.0.0.1:8888/filter": context deadline exceeded',
    ],
    ids=["no reply", "conflict", "our answer came too late"],
)
async def test_an_attempt_of_unknown_outcome_is_repeated_on_the_same_node(message: str) -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")
        world.fail(pod, message)
        await passes(1)

        assert await world.choose(pod, "a") == "a"
        assert state(world, pod) is ReservationState.ANSWERED


async def test_a_label_that_changes_after_the_answer_makes_no_pod_non_preemptible() -> None:
    """For a pod that admission has not seen, so that nothing on it records its first state."""
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        await passes(1)
        await world.choose(pod, "a")

        world.patch(pod, metadata={"labels": {"kai.scheduler/preemptibility": "non-preemptible"}})
        await passes(1)
        bound(world, pod, "a")
        await passes(1)

        on = world.cache.groups.terms.of(group_of(pod))
        assert on is not None
        assert on.preemptible


async def test_a_gang_with_some_members_without_the_marker_starts_as_a_gang() -> None:
    """For members that were created before kube-scheduler knew of markers."""
    async with living("a", "b", "c", markers=MARKERS) as world:
        first, second = world.gang("crew", size=2, min_member=3)
        crew_marked = marked(world, "third", group="crew")
        await passes(1)
        nodes = [await world.choose(pod, "a", "b", "c") for pod in (first, second, crew_marked)]
        binding = world.binding(crew_marked, nodes[2])
        await passes(1)
        waits = not binding.done()

        for pod, node in zip((first, second), nodes, strict=False):
            bound(world, pod, node)

        assert (waits, await binding, sorted(world.bound())) == (True, "", ["crew-0", "crew-1", "third-0"])


async def test_a_shared_gpu_needs_the_marker() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("half", gpus=0, part=HALF)
        await passes(1)

        assert await world.filter(pod, "a") == Refused(Reason.INVALID_REQUEST)


# The question of admission


def asked(**more: Any) -> RawObject:
    return manifests.pod(Job(**{"name": "new", "queue": "q", "gpus": 1, "cpu": 0, **more}))


def with_spec(**more: object) -> RawObject:
    pod = asked()
    return pod | {"spec": pod["spec"] | more}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (asked(), True),
        (asked(gpus=0), True),
        (asked(group="crew"), False),
        (asked(priority_class="inference"), False),
        (asked(gpus=0, part=HALF), False),
        (with_spec(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]), False),
        (with_spec(volumes=[{"name": "v", "ephemeral": {}}]), False),
        (with_spec(volumes=[{"name": "v", "emptyDir": {}}]), True),
        (with_spec(resourceClaims=[{"name": "gpu"}]), False),
    ],
    ids=["alone", "no GPU", "of a gang", "firm", "shares", "volume", "own volume", "scratch", "claim"],
)
async def test_kube_scheduler_binds_only_pods_that_lose_nothing_by_that(pod: RawObject, expected: bool) -> None:  # noqa: FBT001 - a case
    async with living("a", markers=MARKERS) as world:
        world.cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("inference"))
        await passes(1)

        assert world.fast_path.may_be_bound_elsewhere(world.fast_path.look(pod)) is expected


async def test_a_priority_class_that_is_not_known_yet_may_make_a_pod_non_preemptible() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = asked()
        pod["metadata"]["labels"]["priorityClassName"] = "new"

        before = world.fast_path.may_be_bound_elsewhere(world.fast_path.look(pod))
        head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "new"}}
        world.cluster.create(Resource.PRIORITY_CLASSES, head | {"value": 60})
        await passes(1)

        assert (before, world.fast_path.may_be_bound_elsewhere(world.fast_path.look(pod))) == (False, True)


async def test_a_pod_with_a_podgroup_label_is_not_single_although_it_has_no_owner() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = asked()
        pod["metadata"]["labels"] |= {"spark-app-name": "pi", "spark-app-selector": "spark-1"}

        newcomer = world.fast_path.look(pod)

        assert newcomer.pod.names_group
        assert not world.fast_path.may_be_bound_elsewhere(newcomer)


async def test_where_others_group_pods_only_a_pod_without_controller_is_single() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": True}
    pod = asked()
    owned = pod | {"metadata": pod["metadata"] | {"ownerReferences": [owner]}}
    async with living("a", markers=MARKERS, pod_grouping=False) as world:
        found = [world.fast_path.may_be_bound_elsewhere(world.fast_path.look(each)) for each in (pod, owned)]

    assert found == [True, False]


async def test_a_pod_that_was_made_preemptible_stays_so_whatever_its_label_becomes() -> None:
    async with living("a", markers=MARKERS) as world:
        pod = world.pod("p")
        world.patch(pod, metadata={"annotations": {PREEMPTIBLE_ANNOTATION: "true"}})
        world.patch(pod, metadata={"labels": {"kai.scheduler/preemptibility": "non-preemptible"}})
        await passes(1)
        promised = world.cache.groups.terms.of(group_of(pod))
        bound(world, pod, "a")
        await passes(1)
        running = world.cache.groups.terms.of(group_of(pod))

        assert promised is not None
        assert running is not None
        assert (promised.preemptible, running.preemptible) == (True, True)


async def test_a_gang_bound_by_leeboard_before_pods_were_marked_stays_preemptible() -> None:
    async with living("a", markers=MARKERS) as world:
        made = asked(name="old", group="crew")
        made["metadata"]["annotations"][PREEMPTIBLE_ANNOTATION] = "true"
        made["spec"]["nodeName"] = "a"
        world.cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("inference"))
        world.cluster.create(Resource.PODS, made | {"status": {"phase": "Running"}})
        firm = Job(name="crew", queue="q", group="crew", priority_class="inference")
        world.cluster.create(Resource.POD_GROUPS, manifests.pod_group(firm, min_member=1))
        await passes(1)

        (running,) = world.cache.snapshot().running.values()

        assert (running.key.name, running.preemptible) == ("crew", True)


async def test_one_pod_does_not_make_its_gang_preemptible_before_it_is_bound() -> None:
    async with living("a", "b", markers=MARKERS) as world:
        world.cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("inference"))
        _, second = world.gang("crew", size=2, priority_class="inference", gpus=2)
        world.patch(second, metadata={"annotations": {PREEMPTIBLE_ANNOTATION: "true"}})
        await passes(1)

        (waiting,) = world.cache.groups.waiting().values()

        assert not waiting.preemptible


def marked(world: World, name: str, **more: Any) -> RawObject:
    pod = asked(name=name, **more)
    (container,) = pod["spec"]["containers"]
    for amounts in ("requests", "limits"):
        container["resources"][amounts] = {**container["resources"].get(amounts, {}), BIND_MARKER: "0"}
    return world.cluster.create(Resource.PODS, pod)
