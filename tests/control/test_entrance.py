from collections.abc import Mapping
from typing import Any

import pytest

from app.cluster.ledger.assumed_pods import EXPIRES_AFTER_S, MOST_OF_ONE, MOST_UNTRIED
from app.control.leadership.freshness import Freshness
from app.control.leadership.readiness import Readiness
from app.control.webhooks.fast_path import AdmissionFastPath
from app.model.marks import GATE
from app.model.seam import RawObject, Resource
from app.settings import Settings
from app.simulation import manifests
from app.simulation.manifests import Job, Quota
from tests.control.virtual import threads_take
from tests.control.wired import World, gated, lets_in, living, passes


def asked(name: str = "new", *, metadata: Mapping[str, Any] | None = None, **more: Any) -> RawObject:
    """Build a pod as admission sees it: without uid."""
    pod = manifests.pod(Job(**{"name": name, "queue": "q", "gpus": 1, "cpu": 0, **more}))
    return pod | {"metadata": pod["metadata"] | dict(metadata or {})}


def unnamed(**more: Any) -> RawObject:
    """Build a pod as its controller writes it: its name is generated after admission."""
    pod = asked(metadata={**more.pop("metadata", {}), "generateName": "job-"}, **more)
    del pod["metadata"]["name"]
    return pod


def created(world: World, pod: RawObject, name: str) -> RawObject:
    return world.cluster.create(Resource.PODS, pod | {"metadata": pod["metadata"] | {"name": name}})


# Single pods


async def test_a_pod_that_fits_gets_no_gate_and_one_that_does_not_gets_one() -> None:
    async with living("a", gpus=2) as world:
        await passes(1)

        assert lets_in(world.fast_path, asked("fits", gpus=2))
        assert not lets_in(world.fast_path, asked("large", gpus=3))


async def test_a_pod_that_is_shown_without_a_uid_ends_no_assumed_pod() -> None:
    async with living("a") as world:
        await passes(1)
        assert lets_in(world.fast_path, asked())

        world.fast_path.learn(Resource.PODS, asked())

        assert world.cache.assumed.shown() == ()


async def test_an_existing_gate_changes_nothing_unless_another_controller_owns_it() -> None:
    async with living("a") as world:
        await passes(1)

        assert not lets_in(world.fast_path, gated(asked("theirs"), [GATE, "example.com/approval"]))
        assert lets_in(world.fast_path, gated(asked("ours"), [GATE]))


async def test_a_pod_above_the_limit_of_its_queue_gets_a_gate() -> None:
    async with living("a", gpus=8) as world:
        world.cluster.create(Resource.QUEUES, manifests.queue("small", None, Quota(gpus=0, limit=1)))
        await passes(1)

        answers = [lets_in(world.fast_path, asked(f"p{number}", queue="small")) for number in range(2)]

        assert answers == [True, False]


@pytest.mark.parametrize(
    "pod",
    [
        asked(queue="nowhere"),
        asked(metadata={"annotations": {"gpu-fraction": "half"}}),
        asked(gpus=0, metadata={"annotations": {"gpu-fraction": "0.5"}}),
        asked(group="nobody"),
        asked() | {"spec": {"containers": []}},
        {},
    ],
    ids=["no such queue", "unreadable", "shares a device", "no such PodGroup", "not managed", "no pod"],
)
async def test_a_pod_that_could_not_be_planned_gets_a_gate(pod: RawObject) -> None:
    async with living("a") as world:
        await passes(1)

        assert not lets_in(world.fast_path, pod)


# In a burst


async def test_a_burst_passes_no_more_pods_than_there_is_room_for_and_changes_nothing() -> None:
    async with living("a", gpus=8) as world:
        await passes(1)
        version = world.cache.changes.version

        answers = [lets_in(world.fast_path, unnamed()) for _ in range(200)]

        assert answers == [True] * 8 + [False] * 192
        assert world.cache.changes.version == version


async def test_ungated_pods_are_counted_until_they_are_reserved_and_only_once_then() -> None:
    async with living("a", gpus=4) as world:
        await passes(1)
        through = [unnamed(), unnamed()]
        assert all(lets_in(world.fast_path, each) for each in through)

        pods = [created(world, pod, f"job-{number}") for number, pod in enumerate(through)]
        await passes(0)
        await passes(0)
        seen_undecided = lets_in(world.fast_path, unnamed())
        assert [await world.choose(pod, "a") for pod in pods] == ["a", "a"]

        assert seen_undecided
        assert [lets_in(world.fast_path, unnamed()) for _ in range(2)] == [True, False]


async def test_a_pod_that_is_never_created_is_counted_for_a_moment_only() -> None:
    async with living("a") as world:
        await passes(1)
        assert lets_in(world.fast_path, asked("never"))
        assert not lets_in(world.fast_path, asked("next"))

        await passes(EXPIRES_AFTER_S)

        assert lets_in(world.fast_path, asked("next"))


async def test_a_pod_of_another_owner_does_not_count_as_the_ungated_one() -> None:
    async with living("a", gpus=2) as world:
        await passes(1)
        assert lets_in(world.fast_path, unnamed())

        other = world.pod("other")
        await passes(0.1)

        assert world.promised(other) == "a"
        assert not lets_in(world.fast_path, unnamed())


async def test_only_a_limited_number_of_pods_passes_at_a_time() -> None:
    async with living("a", "b", "c", gpus=100) as world:
        await passes(1)
        assert lets_in(world.fast_path, unnamed())
        created(world, unnamed(), "job-1")
        await passes(1)

        answers = [lets_in(world.fast_path, unnamed()) for _ in range(MOST_OF_ONE + 1)]

        assert answers == [True] * MOST_OF_ONE + [False]


async def test_reviews_of_pods_that_are_never_created_do_not_keep_out_pods_that_are() -> None:
    async with living("a", "b", "c", gpus=100) as world:
        await passes(1)
        assert lets_in(world.fast_path, unnamed())
        created(world, unnamed(), "job-1")
        await passes(1)
        strangers = [unnamed(metadata={"namespace": f"made-up-{number}"}) for number in range(200)]

        assert sum(lets_in(world.fast_path, unnamed(metadata=one["metadata"])) for one in strangers) == MOST_UNTRIED
        assert lets_in(world.fast_path, unnamed())


async def test_a_namespace_whose_pod_was_never_created_is_treated_as_a_new_one() -> None:
    async with living("a", "b", "c", gpus=100) as world:
        await passes(1)
        assert lets_in(world.fast_path, unnamed())
        created(world, unnamed(), "job-1")
        await passes(1)
        assert lets_in(world.fast_path, unnamed())
        await passes(EXPIRES_AFTER_S)

        answers = [lets_in(world.fast_path, unnamed()) for _ in range(MOST_UNTRIED + 1)]

        assert answers == [True] * MOST_UNTRIED + [False]


# Beside other pods


async def test_a_pod_that_was_just_created_is_decided_before_the_next() -> None:
    async with living("a", gpus=3) as world:
        await passes(1)
        first = world.pod("first")
        await passes(0)
        await passes(0)

        answers = [lets_in(world.fast_path, unnamed()) for _ in range(3)]

        assert (world.promised(first), answers) == ("a", [True, True, False])


async def test_a_pod_gets_a_gate_while_the_planner_fails_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with living("a", gpus=3) as world:
        await passes(1)
        monkeypatch.setattr("app.control.cycle.planning.plan_some", fail)
        world.pod("first")
        await passes(0)
        await passes(0)

        assert not lets_in(world.fast_path, unnamed())


async def test_every_pod_gets_a_gate_while_many_pods_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.control.cycle.planning.FEW_GROUPS", 0)
    async with living("a", gpus=2) as world:
        await passes(1)
        world.pod("first")
        await passes(0)
        await passes(0)

        before = lets_in(world.fast_path, asked("second"))
        await passes(1)

        assert (before, lets_in(world.fast_path, asked("second"))) == (False, True)


async def test_a_refused_pod_does_not_keep_smaller_pods_out_until_there_is_more_room() -> None:
    async with living("a", gpus=2) as world:
        runs = world.runs("old", "a")
        world.pod("large", gpus=2, gates=[GATE])
        await passes(1)
        assert lets_in(world.fast_path, asked("small"))
        await passes(EXPIRES_AFTER_S)

        world.delete(runs)
        await passes(0)

        assert not lets_in(world.fast_path, asked("small"))
        await passes(1)
        assert not lets_in(world.fast_path, asked("small")), "the large one has it"


async def test_every_pod_gets_a_gate_while_a_plan_is_being_computed() -> None:
    async with living("a", gpus=2) as world:
        threads_take(3)
        for number in range(70):
            world.pod(f"p{number}", gpus=3)
        await passes(1)

        assert not lets_in(world.fast_path, asked())


async def test_room_of_terminating_pods_is_not_free_yet() -> None:
    async with living("a") as world:
        runs = world.runs("old", "a")
        world.patch(runs, metadata={"deletionTimestamp": "1970-01-01T00:00:00Z"})
        await passes(1)

        assert not lets_in(world.fast_path, asked())


# In a PodGroup


async def test_only_pods_of_a_gang_beyond_its_minimum_get_no_gate() -> None:
    async with living("a", gpus=4) as world:
        gang = world.gang("crew", size=2, min_member=2)
        await passes(1)
        extra = asked("extra", group="crew")
        assert not lets_in(world.fast_path, extra)

        for pod in gang:
            world.patch(pod, spec={"nodeName": "a"}, status={"phase": "Running"})
        await passes(1)

        assert lets_in(world.fast_path, extra)


async def test_a_pod_beyond_the_minimum_waits_behind_pending_pods_of_its_gang() -> None:
    async with living("a", gpus=3) as world:
        for pod in world.gang("crew", size=2, min_member=2):
            world.patch(pod, spec={"nodeName": "a"}, status={"phase": "Running"})
        created(world, asked("extra", group="crew", gpus=2), "extra-0")
        await passes(1)

        assert not lets_in(world.fast_path, asked("small", group="crew"))


# When it is unknown


async def test_every_pod_gets_a_gate_while_the_cache_is_stale() -> None:
    async with living("a") as world:
        await passes(1)
        blind = AdmissionFastPath(
            world.cache,
            world.planning,
            world.grouper,
            Readiness(world.leadership, Freshness(clock=world.now)),
            settings=Settings(),
            clock=world.now,
        )

        assert (lets_in(blind, asked()), lets_in(world.fast_path, asked())) == (False, True)


async def test_a_standby_passes_pods_only_while_no_gated_pod_is_pending() -> None:
    async with living("a", gpus=3, scheduler_lease="q/lease", hostname="here") as world:
        world.cluster.holders["q/lease"] = "elsewhere_1"
        await passes(20)
        assert world.leadership.failure()
        assert lets_in(world.fast_path, unnamed())
        created(world, unnamed(), "job-1")
        await passes(0.1)
        assert lets_in(world.fast_path, unnamed())

        world.pod("other", gates=[GATE])
        await passes(0.1)

        assert not lets_in(world.fast_path, unnamed())
