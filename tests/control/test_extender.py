import asyncio

import pytest

from app.cluster.ledger.reservations import ReservationState
from app.control.cycle.releases import ALWAYS_COMPLETE_BELOW
from app.control.webhooks.extender import WATCH_LAG_S
from app.control.writers.bind_outcomes import BOUND
from app.model.decision import Start
from app.model.names import NodeName, PodUid
from app.model.question import Failed, FilterAnswer, Fits, PodQuestion, Refused
from app.model.reason import PHRASES, UNREADY, Reason, phrase
from app.model.seam import RawObject, Resource
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Job
from tests.control.virtual import threads_take
from tests.control.wired import World, furnished, living, passes

SAMPLE = tuple(f"n{number}" for number in range(ALWAYS_COMPLETE_BELOW))
"""A list so long that kube-scheduler may have stopped its search."""


def fits(*nodes: str) -> Fits:
    return Fits(tuple(NodeName(node) for node in nodes))


def drawn(*, gpus: int = 1, **change: object) -> RawObject:
    """Build a pod that does not exist in the cluster."""
    pod = manifests.pod(Job(name="drawn", queue="q", gpus=gpus))
    return pod | {"spec": pod["spec"] | change}


def taint(world: World, node: str) -> None:
    """Let the filters of kube-scheduler refuse a node."""
    taints = [{"key": "broken", "effect": "NoSchedule"}]
    world.cluster.patch(Ref(resource=Resource.NODES, name=node), {"spec": {"taints": taints}})


# 1. A what-if question


async def test_a_what_if_question_returns_the_offered_nodes_that_fit_and_reserves_nothing() -> None:
    async with living("a", "b") as world:
        world.nodes("small", gpus=0)
        await passes(1)

        answer = await world.what_if(drawn(), "b", "small", "a", "unknown")

        assert answer == fits("b", "a")
        assert (len(world.cache.reservations), list(world.cache.pods.all())) == (0, [])


@pytest.mark.parametrize(
    ("pod", "reason"),
    [(drawn(gpus=2), Reason.NO_NODE_FITS), (drawn(containers="garbage"), Reason.INVALID_REQUEST)],
    ids=["too large", "unreadable"],
)
async def test_a_what_if_question_about_a_pod_that_cannot_run_returns_the_reason(
    pod: RawObject, reason: Reason
) -> None:
    async with living("a") as world:
        assert await world.what_if(pod, "a") == Refused(reason)


async def test_a_what_if_question_of_another_scheduler_without_a_name_keeps_all_offered_nodes() -> None:
    async with living("a") as world:
        assert await world.what_if({"spec": {"schedulerName": "other"}}, "a", "unknown") == fits("a", "unknown")


# 2. A pod that the watch has not shown yet


async def test_a_pod_that_the_watch_shows_a_moment_later_is_answered() -> None:
    async with living("a") as world:
        world.cluster.hide(Resource.PODS)
        pod = world.pod("late")

        asked = asyncio.create_task(world.filter(pod, "a"))
        await passes(WATCH_LAG_S / 2)
        world.cluster.show(Resource.PODS)

        assert await asked == fits("a")


async def test_a_pod_that_the_watch_does_not_show_in_time_is_refused_and_woken_when_it_does() -> None:
    async with living("a") as world:
        world.cluster.hide(Resource.PODS)
        pod = world.pod("late")
        asked_at = world.now()

        assert await world.filter(pod, "a") == Refused(Reason.DECIDING)
        assert world.now() - asked_at == pytest.approx(WATCH_LAG_S)
        world.cluster.show(Resource.PODS)
        await passes(1)

        assert world.cluster.nominations == [("late-0", "a")]
        assert await world.filter(pod, "a", nominated="a") == fits("a")


# 3. and 4. Pods that need no decision


async def test_a_pod_of_another_scheduler_keeps_all_offered_nodes() -> None:
    async with living("a") as world:
        pod = world.cluster.create(Resource.PODS, drawn(schedulerName="other"))

        assert await world.filter(pod, "a", "unknown") == fits("a", "unknown")
        assert len(world.cache.reservations) == 0


async def test_a_bound_pod_gets_its_node_and_no_other() -> None:
    async with living("a", "b") as world:
        pod = world.pod("bound")
        await world.bind(pod, await world.choose(pod, "a"))
        await passes(1)

        assert await world.filter(pod, "a", "b") == fits("a")
        assert await world.filter(pod, "b") == Refused(Reason.DECIDING)


# 5. A pod with a reservation


async def test_a_reserved_pod_gets_its_node_every_time() -> None:
    async with living("a", "b") as world:
        pod = world.pod("one")

        answers = [await world.filter(pod, *offered) for offered in [("a", "b"), ("b", "a"), ("a", "b")]]

        assert answers == [answers[0]] * 3
        assert sum(world.free_gpus().values()) == 1


async def test_each_filter_call_prolongs_the_reservation() -> None:
    async with living("a", promise_ttl_s=10) as world:
        pod = world.pod("one")
        for _ in range(5):
            await world.choose(pod, "a")
            await passes(9)

        assert world.count("promises_expired") == 0


async def test_a_reservation_moves_to_an_offered_node_when_its_own_is_not_offered() -> None:
    async with living("a", "b") as world:
        pod = world.pod("one")
        first = await world.choose(pod, "a", "b")
        (other,) = {"a", "b"} - {first}

        assert await world.filter(pod, other) == fits(other)
        assert world.free_gpus() == {first: 1, other: 0}


async def test_a_node_missing_from_a_complete_list_is_refused_and_another_is_reserved() -> None:
    async with living("a", "full") as world:
        await world.choose(world.pod("other"), "full")
        pod = world.pod("one")
        await passes(1)
        world.nodes("b")  # Only Leeboard knows it so far.

        assert await world.filter(pod, "full") == Refused(Reason.REFUSED_BY_SCHEDULER)
        await passes(1)

        assert world.promised(pod) == "b"
        assert world.cluster.nominations == [("one-0", "b")]


async def test_an_offer_of_a_deleted_node_does_not_refuse_the_node_that_replaced_it() -> None:
    async with living("old") as world:
        world.runs("running", "old")
        crew = world.gang("crew", size=2)
        await passes(1)
        for pod in crew:
            await world.filter(pod, "old")

        world.delete_node("old")
        world.nodes("new", gpus=2)
        await passes(1)
        # kube-scheduler's watch of nodes pauses.
        for pod in crew:
            assert await world.filter(pod, "old", nominated="new") == Refused(Reason.DECIDING)
        other = world.pod("other")
        assert await world.filter(other, "old") == Refused(Reason.NO_NODE_FITS)
        await passes(2 * Settings().promise_ttl_s)

        assert [world.promised(pod) for pod in (*crew, other)] == ["new", "new", None]
        for pod in crew:
            assert await world.filter(pod, "new") == fits("new")


async def test_a_reserved_node_outside_a_sample_is_nominated() -> None:
    async with living("promised") as world:
        world.nodes(*SAMPLE, gpus=0)
        pod = world.pod("one")
        await passes(1)

        assert await world.filter(pod, *SAMPLE) == Refused(Reason.DECIDING)
        await passes(1)

        assert world.cluster.nominations == [("one-0", "promised")]
        assert await world.filter(pod, "promised", nominated="promised") == fits("promised")


async def test_a_pod_without_gpus_is_nominated_for_its_node_without_gpus_outside_a_sample_of_gpu_nodes() -> None:
    async with living() as world:
        world.nodes("spare", gpus=0)
        world.nodes(*SAMPLE)
        pod = world.pod("one", gpus=0)
        await passes(1)

        assert await world.filter(pod, *SAMPLE) == Refused(Reason.DECIDING)
        await passes(1)

        assert world.cluster.nominations == [("one-0", "spare")]
        assert await world.filter(pod, "spare", nominated="spare") == fits("spare")


async def test_a_pod_without_gpus_moves_to_a_gpu_node_where_kube_scheduler_refuses_its_own() -> None:
    async with living() as world:
        world.nodes("spare", gpus=0)
        world.nodes(*SAMPLE)
        nominated, shown_all = world.pod("nominated", gpus=0), world.pod("shown-all", gpus=0)
        await passes(1)
        await world.filter(nominated, *SAMPLE)
        await passes(1)

        assert isinstance(await world.filter(nominated, *SAMPLE, nominated="spare"), Fits)
        assert isinstance(await world.filter(shown_all, *SAMPLE[1:]), Fits)


async def test_a_pod_without_gpus_moves_to_an_offered_node_without_gpus() -> None:
    async with living() as world:
        world.nodes("first", "second", gpus=0)
        world.nodes(*SAMPLE)
        pod = world.pod("one", gpus=0)
        await passes(1)
        (other,) = {"first", "second"} - {world.promised(pod)}

        assert await world.filter(pod, *SAMPLE, other) == fits(other)
        assert world.cluster.nominations == []


@pytest.mark.parametrize("labels", [{}, {"kai.scheduler/subgroup-name": "stray"}], ids=["plain", "stray label"])
@pytest.mark.parametrize("level", ["requiredTopologyLevel", "preferredTopologyLevel"])
async def test_a_reservation_moves_only_inside_the_rack_of_its_gang(level: str, labels: dict[str, str]) -> None:
    left = ("left-1", "left-2", "left-3")
    async with living() as world:
        world.rack("left", *left, gpus=2)
        world.rack("right", *SAMPLE, gpus=2)
        pods = world.gang("crew", size=2, gpus=2)
        world.keep_in_a_rack("crew", level=level)
        for pod in pods:
            world.patch(pod, metadata={"labels": pod["metadata"]["labels"] | labels})
        await passes(1)
        one, other = (world.promised(pod) for pod in pods)
        (free,) = {*left} - {one, other}

        assert await world.filter(pods[0], *SAMPLE) == Refused(Reason.DECIDING)
        assert await world.filter(pods[1], *SAMPLE, free) == fits(free)
        await passes(1)

        assert world.cluster.nominations == [("crew-0", one)]
        assert await world.filter(pods[0], str(one), nominated=one) == fits(str(one))


async def test_no_reservation_moves_while_a_plan_is_only_reserved_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.control.cycle.planning.FEW_GROUPS", 0)
    monkeypatch.setattr("app.control.cycle.apply_plan.STEP", 1)
    asked: list[asyncio.Task[FilterAnswer]] = []
    async with living("small") as world:
        world.nodes("large", gpus=2)
        world.nodes(*SAMPLE, gpus=0)
        await passes(1)
        make = world.reserver.make

        def make_and_be_asked(start: Start) -> None:
            make(start)
            if not asked:
                asked.append(asyncio.create_task(world.filter(first, "large", *SAMPLE)))

        monkeypatch.setattr(world.reserver, "make", make_and_be_asked)
        first, second = world.pod("first"), world.pod("second", gpus=2)
        await passes(1)

        assert [world.promised(first), world.promised(second)] == ["small", "large"]
        assert await asked[0] == Refused(Reason.DECIDING)


async def test_an_earlier_nomination_does_not_count_for_the_node_reserved_now() -> None:
    async with living("promised") as world:
        world.nodes("before", gpus=0)
        pod = world.pod("one")
        await passes(1)

        # kube-scheduler tries the nominated node first, and then all others when it is refused.
        assert await world.filter(pod, "before", nominated="before") == Refused(Reason.DECIDING)

        assert world.promised(pod) == "promised"
        assert await world.filter(pod, "promised", "before", nominated="before") == fits("promised")


async def test_a_nominated_node_that_is_still_not_offered_is_refused_for_good() -> None:
    async with living("promised") as world:
        world.nodes(*SAMPLE, gpus=0)
        pod = world.pod("one")
        await passes(1)
        await world.filter(pod, *SAMPLE)
        await passes(1)

        assert await world.filter(pod, *SAMPLE, nominated="promised") == Refused(Reason.REFUSED_BY_SCHEDULER)
        await passes(5)

        assert (world.promised(pod), world.reason(pod)) == (None, Reason.NO_NODE_FITS)
        assert world.cluster.nominations[1:] == [("one-0", None)]


@pytest.mark.parametrize("garbage", ["elsewhere", 7, ["promised"], {"node": "promised"}])
async def test_a_nomination_that_is_not_ours_proves_nothing(garbage: object) -> None:
    async with living("promised") as world:
        pod = world.pod("one")
        await passes(1)

        assert await world.filter(pod, *SAMPLE, nominated=garbage) == Refused(Reason.DECIDING)
        assert world.promised(pod) == "promised"


async def test_a_refused_node_is_used_again_once_kube_scheduler_accepts_it() -> None:
    async with living("a", "full") as world:
        await world.choose(world.pod("other"), "full")
        pod = world.pod("one")
        assert await world.filter(pod, "full") == Refused(Reason.NO_NODE_FITS)

        assert await world.filter(pod, "a", "full") == fits("a")


async def test_a_pod_that_is_being_bound_is_not_moved() -> None:
    async with living("a", "b") as world:
        world.cluster.takes_s["bind"] = 5
        pod = world.pod("one")
        bind = world.binding(pod, await world.choose(pod, "a"))
        await passes(1)

        assert await world.filter(pod, "b") == Refused(Reason.DECIDING)
        assert await world.filter(pod, "a", "b") == fits("a")
        assert await bind == BOUND


# 6. A pod without a reservation


async def test_a_single_pod_is_decided_at_once() -> None:
    async with living("a") as world:
        pod = world.pod("one")

        assert await world.filter(pod, "a") == fits("a")
        held = world.held(pod)
        assert held is not None
        assert held.state is ReservationState.PROMISED


async def test_a_pod_that_cannot_start_is_refused_and_woken_when_it_can() -> None:
    async with living("a") as world:
        first, second = world.pod("first"), world.pod("second")
        await world.choose(first, "a")
        assert await world.filter(second, "a") == Refused(Reason.NO_NODE_FITS)

        world.delete(first)
        await passes(1)

        assert world.cluster.nominations == [("second-0", "a")]


async def test_two_filter_calls_at_the_same_time_never_get_the_same_last_gpu() -> None:
    async with living("a") as world:
        pods = [world.pod(f"p{number}") for number in range(8)]

        answers = await asyncio.gather(*(world.filter(pod, "a") for pod in pods))

        assert sorted(map(repr, answers)) == sorted(map(repr, [fits("a")] + [Refused(Reason.NO_NODE_FITS)] * 7))


async def test_a_filter_call_waits_for_a_running_plan_until_its_timeout() -> None:
    async with living("a", filter_patience_s=1) as world:
        threads_take(3)
        pods = [world.pod(f"p{number}", gpus=0) for number in range(100)]
        await passes(0.5)

        assert await world.filter(pods[0], "a") == Refused(Reason.DECIDING)
        await passes(1)
        assert await world.filter(pods[0], "a") == fits("a")


async def test_a_pod_that_is_recreated_under_its_name_is_another_pod() -> None:
    async with living("a", "b") as world:
        earlier = world.pod("twin")
        await world.choose(earlier, "a")
        world.delete(earlier)
        later = world.pod("twin")

        assert await world.filter(later, "a", "b") in (fits("a"), fits("b"))
        await passes(1)

        assert world.promised(earlier) is None
        assert sum(world.free_gpus().values()) == 1


async def test_a_pod_that_is_being_deleted_gets_no_reservation() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        world.patch(pod, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        await passes(1)

        assert await world.filter(pod, "a") == Refused(Reason.DECIDING)
        assert world.free_gpus() == {"a": 1}


@pytest.mark.parametrize("offered", [("b",), ("unknown",), ("b", "unknown"), ()])
async def test_no_answer_names_a_node_that_was_not_offered(offered: tuple[str, ...]) -> None:
    async with living("a", "b") as world:
        answers = [await world.filter(world.pod(f"p{number}"), *offered) for number in range(3)]

        assert {node for answer in answers if isinstance(answer, Fits) for node in answer.nodes} <= set(offered)


# When no answer is possible


async def test_filter_fails_before_everything_was_listed() -> None:
    world = World(furnished("a"))
    pod = world.pod("one")

    assert await world.filter(pod, "a") == Failed(UNREADY)
    assert await world.bind(pod, "a") == UNREADY
    assert world.scores(pod, "a") == {"a": 0}


async def test_filter_fails_while_a_watch_is_silent() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        world.cluster.hide(Resource.NODES)
        await passes(120)

        answer = await world.filter(pod, "a")

        assert answer == Failed(UNREADY)
        assert world.freshness.failure().startswith("silent for ")


def test_messages_of_filter_are_fixed_and_contain_no_numbers() -> None:
    phrases = [phrase(reason) for reason in Reason]

    assert set(PHRASES) == set(Reason)
    assert not any(letter.isdigit() for text in phrases for letter in text)


# The other verbs


async def test_scores_prefer_the_fuller_node_and_cover_exactly_the_offered_nodes() -> None:
    async with living("full", "free", gpus=4) as world:
        await world.choose(world.pod("other", gpus=2), "full")

        scores = world.scores(drawn(), "free", "full", "unknown")

        free, full, unknown = scores.values()
        assert list(scores) == ["free", "full", "unknown"]
        assert full == 10 > free > unknown == 0


async def test_pods_of_other_schedulers_get_equal_scores() -> None:
    async with living("a") as world:
        assert world.scores(drawn(schedulerName="other"), "a") == {"a": 0}


async def test_kube_scheduler_chooses_victims_only_for_pods_of_other_schedulers() -> None:
    async with living("a") as world:
        candidates = {NodeName("a"): "somebody"}

        assert world.extender.preempt(drawn(), candidates) == {}
        assert world.extender.preempt(drawn(schedulerName="other"), candidates) == candidates


async def test_a_refused_node_that_a_sample_shows_again_is_accepted_again() -> None:
    async with living(*(f"n{number:03}" for number in range(120))) as world:
        pod = world.pod("one")
        await passes(1)
        uid = next(iter(world.cache.pods.all())).uid
        world.cache.findings.refuse_node(uid, NodeName("n007"))

        await world.filter(pod, *(f"n{number:03}" for number in range(110)))

        assert world.cache.findings.refused(uid) == frozenset()


async def test_a_pod_of_another_scheduler_is_answered_before_the_watch_shows_it() -> None:
    async with living("a") as world:
        world.cluster.hide(Resource.PODS)
        pod = world.pod("one")
        pod["spec"]["schedulerName"] = "default-scheduler"
        question = PodQuestion(pod=pod, uid=PodUid(pod["metadata"]["uid"]), offered=(NodeName("a"),))

        assert await world.extender.filter(question) == Fits((NodeName("a"),))
