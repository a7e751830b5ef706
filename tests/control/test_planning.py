from collections.abc import Collection

import pytest
from structlog.testing import capture_logs

from app.control.cycle import planning
from app.control.cycle.kept_room import KeptRoom
from app.control.cycle.releases import ALWAYS_COMPLETE_BELOW
from app.control.cycle.reserver import REFUSED_NODES_FOR_S
from app.control.writers.bind_outcomes import BOUND
from app.model.decision import Plan
from app.model.memory import PlanMemory
from app.model.names import GroupKey, NodeName, PodUid
from app.model.question import Fits, Refused
from app.model.reason import Reason, phrase
from app.model.seam import RawObject, Resource
from app.model.snapshot import Snapshot
from app.scheduling.placement import effort
from app.scheduling.placement.effort import FEW_GROUPS, FEW_PODS, FEW_WITH_TERMS
from app.scheduling.planner.planner import plan_some
from app.scheduling.policy import Policy
from tests import given
from tests.control.virtual import threads_take
from tests.control.wired import living, not_scheduled, passes

MANY = FEW_GROUPS + 1
"""With this number of groups, plans run in a thread."""

SAMPLE = tuple(f"n{number}" for number in range(ALWAYS_COMPLETE_BELOW))
"""A list of offered nodes that says nothing about missing nodes."""


def keys(*pods: RawObject) -> set[GroupKey]:
    return {GroupKey("q", pod["metadata"]["uid"]) for pod in pods}


class Planner:
    """Plans like the real planner, which is patched because only its calls show what was considered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.considered: list[set[GroupKey]] = []
        self.kept: list[tuple[NodeName, ...]] = []
        self.broken = False
        monkeypatch.setattr(planning, "plan_some", self.plan_some)

    def plan_some(  # noqa: PLR0913 # as the real one
        self,
        snapshot: Snapshot,
        candidates: Collection[GroupKey],
        policy: Policy,
        *,
        withheld: Collection[NodeName],
        aged: GroupKey | None,
        now: float,
        memory: PlanMemory,
    ) -> Plan:
        self.considered.append(set(candidates))
        self.kept.append(tuple(withheld))
        if self.broken:
            raise ZeroDivisionError
        return plan_some(snapshot, candidates, policy, withheld=withheld, aged=aged, now=now, memory=memory)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    return Planner(monkeypatch)


# When it plans


async def test_nothing_is_planned_while_nothing_changes(planner: Planner) -> None:
    async with living("a") as world:
        world.pod("one")
        waits = world.pod("waits")
        await passes(1)
        plans = world.count("plans", outcome="applied")

        await passes(30)
        await world.planning.settle()
        await world.filter(waits, "a")

        assert (len(planner.considered), world.count("plans", outcome="applied")) == (1, plans)


async def test_podgroups_that_a_failed_plan_did_not_reach_are_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living("a", "b") as world:
        world.pod("one")
        await passes(1)
        pod, take = world.pod("two"), world.applier.take

        def fail(made: Plan, considered: Collection[GroupKey]) -> None:
            world.cache.groups.unsettled.considered(considered, made.snapshot_version)
            raise ZeroDivisionError

        monkeypatch.setattr(world.applier, "take", fail)
        await passes(planning.GATHER_S / 2)
        with pytest.raises(ZeroDivisionError):
            await world.filter(pod, "a", "b")
        monkeypatch.setattr(world.applier, "take", take)
        await passes(2)

        assert world.held(pod) is not None


async def test_a_condition_that_repeats_our_refusal_makes_no_new_plan(planner: Planner) -> None:
    async with living("a") as world:
        pod = world.pod("waits", gpus=2)
        uid = PodUid(pod["metadata"]["uid"])
        await passes(1)
        made = len(planner.considered)

        world.patch(pod, status={"conditions": [not_scheduled("Unschedulable", f"0/1: {phrase(Reason.NO_NODE_FITS)}")]})
        await passes(1)
        seen = world.cache.pods.get(uid)
        assert seen is not None
        assert seen.said.by_us
        world.patch(pod, status={"conditions": [not_scheduled("Unschedulable", "0/1: 1 Insufficient nvidia.com/gpu")]})
        await passes(1)

        seen = world.cache.pods.get(uid)
        assert seen is not None
        assert (seen.said.by_scheduler, len(planner.considered)) == (True, made)


async def test_released_capacity_without_pending_pods_makes_no_plan(planner: Planner) -> None:
    async with living("a", "b") as world:
        pod = world.pod("one")
        await passes(1)
        made, (other,) = len(planner.considered), {"a", "b"} - {world.promised(pod)}

        assert await world.filter(pod, other) == Fits((NodeName(other),))  # The node reserved before is free again.
        world.cache.findings.refuse_node(PodUid(pod["metadata"]["uid"]), NodeName(other))
        await passes(5)

        assert (len(planner.considered), dict(world.cache.groups.unsettled)) == (made, {})


async def test_a_reservation_that_moves_releases_nothing_for_a_pod_refused_before_it_was_made(planner: Planner) -> None:
    async with living("a", "b") as world:
        misfit = world.pod("misfit", gpus=2)
        await passes(1)
        pod = world.pod("one")
        await passes(1)
        made, (other,) = len(planner.considered), {"a", "b"} - {world.promised(pod)}

        assert await world.filter(pod, other) == Fits((NodeName(other),))
        await passes(5)

        assert (len(planner.considered), world.reason(misfit)) == (made, Reason.NO_NODE_FITS)


async def test_a_reservation_that_moves_releases_capacity_for_a_pod_refused_since() -> None:
    async with living("b") as world:
        world.nodes("a", gpus=2)
        pod = world.pod("one")
        assert await world.choose(pod, "a") == "a"
        wants_both = world.pod("wants-both", gpus=2)
        await passes(1)
        assert world.reason(wants_both) is Reason.NO_NODE_FITS

        assert await world.filter(pod, "b") == Fits((NodeName("b"),))
        await passes(1)

        assert world.promised(wants_both) == "a"


async def test_a_reservation_that_moves_releases_capacity_for_a_pod_that_a_running_plan_refuses() -> None:
    async with living("b") as world:
        world.nodes("a", gpus=2)
        pod = world.pod("one")
        assert await world.choose(pod, "a") == "a"
        threads_take(5)
        want_both = [world.pod(f"p{number}", gpus=2) for number in range(MANY)]
        await passes(1)

        assert await world.filter(pod, "b") == Fits((NodeName("b"),))
        await passes(20)

        assert "a" in {world.promised(each) for each in want_both}


async def test_a_burst_of_pods_is_decided_in_one_plan(planner: Planner) -> None:
    async with living("a") as world:
        await passes(1)
        planner.considered.clear()

        pods = [world.pod(f"p{number}") for number in range(5)]
        await passes(1)

        assert planner.considered == [keys(*pods)]


async def test_only_changed_podgroups_are_planned_without_released_capacity(planner: Planner) -> None:
    async with living("a", gpus=0) as world:
        world.pod("earlier")
        await passes(1)
        planner.considered.clear()

        later = world.pod("later")
        await passes(1)

        assert planner.considered == [keys(later)]


async def test_nodes_kept_by_a_search_bind_plans_for_new_pods_but_not_plans_for_all_pending_pods(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeptRoom, "withheld", ("a",))
    async with living("a", gpus=0) as world:
        world.pod("earlier")
        await passes(1)
        planner.kept.clear()

        world.pod("later")
        await passes(1)
        world.nodes("b", gpus=0)
        await passes(1)

        assert planner.kept == [("a",), ()]


async def test_all_pending_podgroups_are_planned_after_released_capacity(planner: Planner) -> None:
    async with living("a", gpus=0) as world:
        pods = [world.pod("earlier"), world.pod("later")]
        await passes(1)
        planner.considered.clear()

        world.nodes("b", gpus=2)
        await passes(1)

        assert planner.considered[0] == keys(*pods)
        assert [world.promised(pod) for pod in pods] == ["b", "b"]


async def test_refusals_of_deleted_podgroups_are_forgotten() -> None:
    async with living("a", gpus=0) as world:
        pod = world.pod("one")
        await passes(1)
        assert world.reason(pod) is Reason.NO_NODE_FITS

        world.delete(pod)
        await passes(1)

        assert world.planning.refusals == {}


# In a thread


async def test_many_podgroups_are_planned_in_a_thread_while_questions_are_answered() -> None:
    async with living("a", "other", gpus=MANY) as world:
        known = world.pod("known")
        await world.choose(known, "a")
        await passes(1)
        threads_take(10)
        pods = [world.pod(f"p{number}") for number in range(MANY)]
        await passes(1)

        asked_at = world.now()
        assert await world.filter(known, "a") == Fits((NodeName("a"),))
        assert await world.bind(known, "a") == BOUND
        assert world.now() == asked_at
        await passes(10)

        assert all(world.promised(pod) for pod in pods)


async def test_one_more_pod_of_a_large_podgroup_makes_no_other_podgroup_planned_again(planner: Planner) -> None:
    async with living("a", actions="") as world:
        for number in range(3):
            world.gang(f"small-{number}", size=2)
        large = world.gang("large", size=FEW_PODS + 2, min_member=1)
        await passes(5)
        planner.considered.clear()

        world.patch(large[-1], metadata={"labels": {"kai.scheduler/task-priority": "7"}})
        await passes(1)

        assert planner.considered == [{GroupKey("q", "large")}]


@pytest.mark.parametrize(("pods", "on_the_spot"), [(FEW_PODS, True), (FEW_PODS + 1, False)])
async def test_a_large_gang_is_planned_in_a_thread_too(*, pods: int, on_the_spot: bool) -> None:
    async with living(actions="") as world:
        world.gang("gang", size=pods)
        await passes(1)
        world.cache.apply_node(given.node("a"))  # Released capacity, so that all pending groups are planned.

        assert world.planning.can_decide_now() is on_the_spot


@pytest.mark.parametrize(("queues", "on_the_spot"), [(10, True), (effort.MOST_AT_ONCE // effort.SHARE + 1, False)])
async def test_pods_are_planned_in_a_thread_where_the_cluster_is_divided_among_many_queues(
    *, queues: int, on_the_spot: bool
) -> None:
    async with living(actions="") as world:
        for each in range(queues):
            world.cache.apply_queue(given.queue(f"q{each}"))
        world.pod("one")
        await passes(1)
        world.cache.apply_node(given.node("a", gpus=0))  # Released capacity, so that all pending groups are planned.
        # No group is ordered among others.
        assert world.planning.can_decide_now()
        world.pod("two")
        await passes(1)
        world.cache.apply_node(given.node("b", gpus=0))

        assert world.planning.can_decide_now() is on_the_spot


@pytest.mark.parametrize(("pods", "on_the_spot"), [(FEW_WITH_TERMS, True), (FEW_WITH_TERMS + 1, False)])
async def test_pods_that_are_compared_with_all_others_are_planned_in_a_thread(*, pods: int, on_the_spot: bool) -> None:
    terms = [{"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    async with living(actions="") as world:
        for number in range(pods):
            raw = world.asked(f"p-{number}")
            raw["metadata"].setdefault("labels", {})["app"] = "web"
            raw["spec"]["affinity"] = affinity
            world.cluster.create(Resource.PODS, raw)
        await passes(1)
        world.cache.apply_node(given.node("a"))  # Released capacity, so that all pending groups are planned.

        assert world.planning.can_decide_now() is on_the_spot


@pytest.mark.parametrize(("racks", "on_the_spot"), [(2, True), (200, False)])
async def test_a_gang_with_a_topology_is_planned_in_a_thread_in_a_large_cluster(
    *, racks: int, on_the_spot: bool
) -> None:
    async with living(actions="") as world:
        for rack in range(racks):
            world.rack(f"r{rack}", f"n{rack}", f"m{rack}")
        world.gang("gang", size=17)
        world.keep_in_a_rack("gang")
        await passes(1)
        world.cache.apply_node(given.node("c", gpus=0))  # Released capacity, so that all pending groups are planned.
        world.cache.delete_node(NodeName("c"))

        assert world.planning.can_decide_now() is on_the_spot


async def test_late_starts_of_a_plan_in_a_thread_are_dropped_and_decided_again() -> None:
    async with living("a", gpus=1) as world:
        await passes(1)
        threads_take(5)
        pods = [world.pod(f"p{number}") for number in range(MANY)]
        await passes(1)

        stranger = world.pod("stranger")
        world.patch(stranger, spec={"schedulerName": "other", "nodeName": "a"})
        await passes(20)

        assert world.count("plans", outcome="stale") == 1
        assert {world.promised(pod) for pod in pods} == {None}
        assert {world.reason(pod) for pod in pods} == {Reason.NO_NODE_FITS}


async def test_pods_deleted_during_their_plan_get_neither_reservation_nor_refusal() -> None:
    async with living("a", gpus=1) as world:
        threads_take(5)
        pods = [world.pod(f"p{number}") for number in range(MANY)]
        await passes(1)

        for pod in pods[:2]:
            world.delete(pod)
        await passes(20)

        assert [world.promised(pod) for pod in pods[:3]] == [None, None, "a"]
        assert world.reason(pods[1]) is None


async def test_a_node_deleted_during_the_plan_is_not_reserved() -> None:
    async with living("a", gpus=MANY) as world:
        threads_take(5)
        pods = [world.pod(f"p{number}") for number in range(MANY)]
        await passes(1)

        world.delete_node("a")
        world.nodes("b", gpus=MANY)
        await passes(20)

        assert {world.promised(pod) for pod in pods} == {"b"}


async def test_reservations_and_backoffs_end_in_time_however_long_plans_take() -> None:
    async with living("a", promise_ttl_s=10) as world:
        threads_take(2)
        first = world.pod("first")
        await passes(1)
        for number in range(MANY):
            world.pod(f"p{number}")

        world.planning.attempts.dissolve(GroupKey("q", first["metadata"]["uid"]), "the binding was refused")
        for number in range(20):
            world.nodes(f"relief-{number}", gpus=0)
            await passes(1)

        assert world.count("promises_expired") == 1
        assert world.reason(first) is not Reason.BACKING_OFF


# A planner that fails


async def test_a_failing_planner_is_tried_once_a_second_and_ends_nothing(planner: Planner) -> None:
    async with living("a") as world:
        await passes(1)
        planner.broken = True
        pod = world.pod("one")

        with capture_logs() as logs:
            await passes(60)

        assert 25 < world.count("plans", outcome="error") == len(logs) < 61
        planner.broken = False
        await passes(3)
        assert world.promised(pod) == "a"


async def test_a_failing_plan_in_a_thread_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living("a", gpus=MANY) as world:

        def fail(*_: object, **__: object) -> Plan:
            raise ZeroDivisionError

        with monkeypatch.context() as patched, capture_logs():
            patched.setattr(planning, "plan_some", fail)  # No object is known on which the real planner fails.
            pods = [world.pod(f"p{number}") for number in range(MANY)]
            await passes(10)
            assert 3 < world.count("plans", outcome="error") < 11

        await passes(3)
        assert {world.promised(pod) for pod in pods} == {"a"}


# Reservations that end


async def test_a_reservation_that_is_never_used_is_given_to_other_pods() -> None:
    async with living("a", promise_ttl_s=10) as world:
        first = world.pod("first")
        await passes(1)
        second = world.pod("second")
        world.patch(first, status={"nominatedNodeName": "a"})
        await passes(1)
        assert (world.promised(first), world.promised(second)) == ("a", None)

        world.patch(first, spec={"nodeSelector": {"none": "such"}})  # Otherwise it would be planned again.
        await passes(10)

        assert world.count("promises_expired") == 1
        assert (world.promised(first), world.promised(second)) == (None, "a")
        assert world.cluster.nominations == [("first-0", None)]


async def test_a_pod_whose_reservation_expired_counts_as_parked_and_is_woken_with_the_next() -> None:
    async with living("a", promise_ttl_s=10) as world:
        pod = world.pod("one")

        await passes(14)  # It backs off for 2 s first: kube-scheduler did not filter it.

        assert world.promised(pod) == "a"
        assert world.cluster.nominations == [("one-0", "a")]


async def test_a_refused_node_is_tried_again_after_a_while() -> None:
    async with living("a") as world:
        world.nodes("other", gpus=0)
        pod = world.pod("one")
        await passes(1)
        assert await world.filter(pod, "other", nominated="a") == Refused(Reason.REFUSED_BY_SCHEDULER)
        await passes(1)
        assert world.promised(pod) is None

        await passes(REFUSED_NODES_FOR_S)

        assert world.promised(pod) == "a"


async def test_a_gang_whose_last_member_has_no_node_releases_its_reservations() -> None:
    async with living("a", "b") as world:
        first, second = world.gang("gang", size=2)
        await passes(1)
        node = world.promised(second)
        assert node is not None

        await world.filter(second, nominated=node)
        await passes(1)

        assert (world.promised(first), world.promised(second)) == (None, None)
        assert world.free_gpus() == {"a": 1, "b": 1}


async def test_a_member_whose_node_is_refused_is_planned_again_while_the_others_wait() -> None:
    async with living("a", "b") as world:
        first, second = world.gang("gang", size=2)
        bind = world.binding(first, await world.choose(first, "a", "b"))
        await passes(1)
        world.nodes("c")
        await passes(1)

        await world.filter(second, *SAMPLE, nominated=world.promised(second))
        await passes(1)

        assert await world.bind(second, await world.choose(second, "c")) == await bind == BOUND


async def test_nothing_is_planned_while_a_watch_is_lost() -> None:
    # Objects that are not listed yet, or not watched, would look like free resources and unused quota.
    async with living("a") as world:
        world.cluster.hide(Resource.NODES)
        await passes(120)

        pod = world.pod("one")
        await passes(5)

        assert world.promised(pod) is None


async def test_a_woken_pod_that_kube_scheduler_does_not_filter_gives_its_node_to_other_pods() -> None:
    # kube-scheduler keeps the nomination of a pod with preemptionPolicy Never, and writes no new condition.
    async with living("a") as world:
        silent, other = world.pod("one"), world.pod("two")
        await passes(1)
        assert world.promised(silent) == "a"
        ours = not_scheduled("Unschedulable", f"0/1 nodes are available: 1 {phrase(Reason.NO_NODE_FITS)}.")
        world.patch(silent, status={"nominatedNodeName": "a", "conditions": [ours]})

        await passes(65)

        assert (world.promised(silent), world.promised(other)) == (None, "a")


async def test_no_node_is_refused_for_a_nomination_beside_a_release_that_kube_scheduler_has_not_seen() -> None:
    async with living("a") as world:
        silent = world.pod("one")
        await passes(1)
        world.patch(silent, status={"nominatedNodeName": "a"})

        await passes(65)

        assert world.count("promises_expired") == 1
        assert world.promised(silent) == "a"


async def test_a_pod_that_is_refused_on_every_node_keeps_no_nomination() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        await passes(1)
        world.patch(pod, status={"nominatedNodeName": "a"})
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "its own filters"}

        world.patch(pod, status={"conditions": [condition]})
        await passes(1)

        assert world.promised(pod) is None
        assert world.cluster.nominations[-1] == ("one-0", None)
