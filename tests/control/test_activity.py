import asyncio
from collections.abc import Callable

import pytest

from app.control.leadership.leadership import LOOK_EVERY_S, LOOK_WITHIN_S, MARGIN_S
from app.model.explanation import Explanation, Unknown
from app.model.names import NodeName
from app.model.question import Failed, Fits
from app.model.reason import UNREADY
from app.model.seam import ForbiddenError, KubeError, UnavailableError
from tests.control.leases import BESIDE_US, LEASE, LEASE_S, SETTLED_S, active, elected
from tests.control.wired import living, passes


async def test_the_only_replica_is_active() -> None:
    async with living("a") as world:
        assert active(world)


async def test_a_replica_is_active_while_the_kube_scheduler_beside_it_leads() -> None:
    async with living("a", **BESIDE_US) as world:
        assert not active(world)

        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(SETTLED_S)

        assert active(world)
        assert await world.filter(world.pod("p"), "a") == Fits((NodeName("a"),))


async def test_a_lease_holder_whose_name_only_begins_like_ours_is_another_scheduler() -> None:
    async with living("a", **BESIDE_US) as world:
        world.cluster.holders[LEASE] = "pod-a-2_5b5c"
        await passes(SETTLED_S)

        assert not active(world)
        assert await world.filter(world.pod("p"), "a") == Failed(UNREADY)
        assert "pod-a-2_5b5c" in world.leadership.failure()


async def test_a_replica_that_is_no_longer_active_drops_reservations_and_releases_waiting_gangs() -> None:
    async with living("a", "b", **BESIDE_US) as world:
        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(SETTLED_S)
        gang = world.gang("gang", size=2)
        bind = world.binding(gang[0], await world.choose(gang[0], "a", "b"))

        world.cluster.holders[LEASE] = "pod-b_77aa"
        await passes(LOOK_EVERY_S + 3)

        assert "no longer decides" in await bind
        assert [world.promised(pod) for pod in gang] == [None, None]
        assert world.bound() == {}


async def test_a_question_before_the_first_lease_event_is_answered_after_it() -> None:
    async with living(cluster=elected("pod-b_77aa"), **BESIDE_US) as world:
        await passes(10)
        pod = world.pod("p")

        world.cluster.holders[LEASE] = "pod-a_5b5c"
        asked_at = world.now()

        assert await world.filter(pod, "a") == Fits((NodeName("a"),))
        assert world.now() - asked_at <= SETTLED_S


async def test_a_question_to_a_standby_gets_an_error_in_time() -> None:
    async with living(cluster=elected("pod-b_77aa"), **BESIDE_US) as world:
        await passes(10)
        pod = world.pod("p")
        asked_at = world.now()

        assert await world.filter(pod, "a") == Failed(UNREADY)
        assert world.now() - asked_at < 5
        assert await world.what_if(pod, "a") == Failed(UNREADY)


# Forms of the lease


@pytest.mark.parametrize(
    "holder",
    ["", "_", "pod-a", "pod-a-2_5b5c", "pod_5b5c", "POD-A_5b5c", "pod-a_5b5c_77aa", " pod-a_5b5c", "\x00\N{BOM}"],
)
async def test_a_lease_holder_with_another_form_of_name_is_another_scheduler(holder: str) -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        assert active(world)

        world.cluster.holders[LEASE] = holder
        await passes(LOOK_EVERY_S)

        assert not active(world)


async def test_no_replica_is_active_when_the_lease_is_deleted() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)

        del world.cluster.holders[LEASE]
        await passes(LOOK_EVERY_S)
        gone = active(world)
        world.cluster.holders[LEASE] = "pod-a_5b5c"
        await passes(LOOK_EVERY_S * 2)

        assert (gone, active(world)) == (False, True)


async def test_a_flapping_lease_holder_is_followed() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(SETTLED_S)
        seen = []
        for holder in ("pod-b_1", "pod-a_2", "pod-b_1", "pod-a_3"):
            world.cluster.holders[LEASE] = holder
            await passes(SETTLED_S)
            seen.append(active(world))

        assert seen == [False, True, False, True]


# How long it is trusted


async def test_no_replica_is_active_by_a_lease_that_was_never_seen_renewed() -> None:
    cluster = elected()
    cluster.is_renewed = False
    async with living(cluster=cluster, **BESIDE_US) as world:
        await passes(60)
        before = active(world)

        cluster.is_renewed = True
        await passes(LOOK_EVERY_S)

        assert (before, active(world)) == (False, True)


async def test_a_replica_becomes_a_standby_before_the_lease_of_a_dead_kube_scheduler_expires() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(10.25)

        world.cluster.is_renewed = False
        await passes(LEASE_S - MARGIN_S - LOOK_EVERY_S - 0.5)
        before = active(world)
        await passes(0.5)

        assert (before, active(world)) == (True, False)
        assert "no renewal" in world.leadership.failure()


@pytest.mark.parametrize("error", [UnavailableError("down"), ForbiddenError("403")])
@pytest.mark.parametrize(("away_s", "stays"), [(9, True), (11, True), (20, False)])
async def test_an_unreadable_lease_is_trusted_while_no_other_holder_can_have_taken_it(
    error: KubeError, away_s: int, *, stays: bool
) -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(10)

        world.cluster.errors["read_lease"].extend([error] * int(away_s / LOOK_EVERY_S))
        await passes(away_s - 0.5)
        meanwhile = active(world)
        await passes(LOOK_EVERY_S * 3)

        assert (meanwhile, active(world)) == (stays, True)


async def test_the_age_of_an_unread_answer_counts_from_its_question() -> None:
    cluster = elected()
    async with living(cluster=cluster, **BESIDE_US) as world:
        await passes(10.25)
        cluster.replies_after_s = 4.9
        await passes(0.5)
        cluster.replies_after_s = 0
        await passes(5.25)
        # It was renewed once more after the question at 10.5 s, whose answer was read at 15.4 s: it may end at 25.5 s.
        cluster.is_renewed = False
        await passes(8.25)
        before = active(world)
        await passes(0.5)

        assert (world.now(), before, active(world)) == (24.75, True, False)


async def test_a_lease_is_read_again_when_the_api_server_does_not_answer() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        await passes(10)

        world.cluster.takes_s["read_lease"] = 3600
        await passes(LEASE_S)
        meanwhile = active(world)
        world.cluster.takes_s["read_lease"] = 0
        await passes(LOOK_WITHIN_S + LOOK_EVERY_S * 3)

        assert (meanwhile, active(world)) == (False, True)


class Noted(asyncio.Event):
    """Calls the test when it is set."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note

    def set(self) -> None:
        self._note()


async def test_a_change_of_leadership_is_reported_once_also_when_only_time_passed() -> None:
    told: list[float] = []
    async with living(cluster=elected(), **BESIDE_US) as world:
        world.leadership._changed = Noted(lambda: told.append(world.now()))
        await passes(10)
        world.cluster.is_renewed = False
        await passes(30)

    assert len(told) == 2


async def test_a_standby_is_ready_in_all_other_checks() -> None:
    async with living(cluster=elected("pod-b_77aa"), **BESIDE_US) as world:
        await passes(SETTLED_S)

        assert [check.name for check in world.inspect.checks() if not check.passed] == ["active"]


async def test_a_standby_says_that_it_is_one_instead_of_why_a_pod_is_pending() -> None:
    async with living(cluster=elected("pod-b_77aa"), **BESIDE_US) as world:
        world.runs("other", "a")
        world.pod("full")
        said = (
            "his replica decides nothing now (active: the leading kube-scheduler is pod-b_77aa, not the one"
            " of this replica (pod-a)); if there are several replicas, ask the one that decides, by kubectl"
            " port-forward to its pod"
        )
        await passes(SETTLED_S)

        standing_by = world.inspect.explain("q", "full-0")
        gone = world.inspect.explain("q", "gone")
        on_its_node = world.inspect.explain("q", "other-0")

        assert isinstance(standing_by, Explanation)
        assert standing_by.why.sentence == f"T{said}."
        assert isinstance(gone, Unknown)
        assert gone.sentence.endswith(f"; t{said}")
        assert isinstance(on_its_node, Explanation)
        assert on_its_node.why.sentence == "It is on node a."


async def test_a_replica_that_is_no_longer_active_does_not_repeat_old_reasons() -> None:
    async with living(cluster=elected(), **BESIDE_US) as world:
        world.runs("other", "a")
        world.pod("full")
        await passes(SETTLED_S)
        before = world.inspect.explain("q", "full-0")
        world.cluster.holders[LEASE] = "pod-b_77aa"
        await passes(SETTLED_S)
        after = world.inspect.explain("q", "full-0")

        assert isinstance(before, Explanation)
        assert before.why.sentence.startswith("No node has room")
        assert isinstance(after, Explanation)
        assert after.why.sentence.startswith("This replica decides nothing now")
        assert [refusal for _, refusal in world.inspect.waiting()] == [None]
