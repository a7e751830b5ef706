import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.cluster.ledger.charge import Load
from app.cluster.ledger.reservations import ReservationState
from app.control.writers.bind_outcomes import BOUND, LOOK_UPS, NOT_KNOWN
from app.control.writers.binder import REQUEST_LASTS_S, UNDONE
from app.model.names import NodeName
from app.model.question import Refused
from app.model.reason import Reason
from app.model.seam import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotSentError,
    OutcomeUnknownError,
    RawObject,
    RejectedError,
    Resource,
    UnavailableError,
    WebhookFailedError,
)
from tests.control.wired import World, living, passes, ref

LOOKS = len([*LOOK_UPS.pauses()])

UNSURE = [OutcomeUnknownError("timed out"), ConflictError("409")]
FINAL = [[ForbiddenError("403")] * 5, [RejectedError("422")]]
"""The final answer of the API server, and the number of answers after which a binding is given up."""
DELETED: dict[str, Any] = {"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}}


@asynccontextmanager
async def promised(*errors: KubeError, **settings: Any) -> AsyncIterator[tuple[World, RawObject]]:
    """Run a cluster of the nodes `a` and `b`; reserve `a` for a pod, whose first bind calls end in `errors`."""
    async with living("a", "b", **settings) as world:
        pod = world.pod("one")
        assert await world.filter(pod, "a") != Refused(Reason.NO_NODE_FITS)
        world.cluster.errors["bind"] += errors
        yield world, pod


# Binding one pod


async def test_a_pod_is_bound_to_its_reserved_node() -> None:
    async with promised() as (world, pod):
        assert await world.bind(pod, "a") == BOUND
        assert world.bound() == {"one-0": "a"}
        assert world.count("binds", outcome="bound") == 1


async def test_a_binding_records_the_queue_of_a_pod_and_whether_it_starts_as_preemptible() -> None:
    async with living("a") as world:
        soft, firm = world.pod("soft"), world.pod("firm", gpus=0, priority_class="inference")
        for pod in (soft, firm):
            assert await world.bind(pod, await world.choose(pod, "a")) == BOUND

        marks = [world.annotations(pod).get("leeboard.dev/preemptible") for pod in (soft, firm)]
        assert marks == ["true", "false"]
        assert [world.annotations(pod).get("leeboard.dev/queue") for pod in (soft, firm)] == ["q", "q"]


async def test_many_identical_bind_calls_at_once_make_one_write() -> None:
    async with promised() as (world, pod):
        world.cluster.takes_s["bind"] = 1

        assert await asyncio.gather(*(world.bind(pod, "a") for _ in range(64))) == [BOUND] * 64
        assert world.cluster.binds == [("one-0", "a")]


async def test_a_bind_call_for_another_node_during_a_write_is_refused() -> None:
    async with promised() as (world, pod):
        world.cluster.takes_s["bind"] = 1
        first = world.binding(pod, "a")
        await passes(0.5)

        assert await world.bind(pod, "b") == "the pod is already being bound to node a"
        assert await first == BOUND


async def test_a_bind_call_that_was_cancelled_is_still_carried_out() -> None:
    async with promised() as (world, pod):
        world.cluster.takes_s["bind"] = 1
        impatient = world.binding(pod, "a")
        await passes(0.5)
        impatient.cancel()

        assert await world.bind(pod, "a") == BOUND
        assert len(world.cluster.binds) == 1


async def test_binding_a_bound_pod_makes_no_write_and_another_node_is_refused() -> None:
    async with promised() as (world, pod):
        await world.bind(pod, "a")
        await passes(1)

        assert await world.bind(pod, "a") == BOUND
        assert await world.bind(pod, "b") == "the pod is already bound to node a"
        assert len(world.cluster.binds) == 1


async def test_a_node_without_a_reservation_is_refused() -> None:
    async with promised() as (world, pod):
        assert (
            await world.bind(pod, "b")
            == "Leeboard no longer reserves this node for the pod; kube-scheduler will try again"
        )
        assert (world.promised(pod), world.cluster.binds) == ("a", [])


@pytest.mark.parametrize("change", [{"uid": "unknown"}, {"name": "namesake"}, {"namespace": "elsewhere"}])
async def test_a_bind_call_for_an_unknown_pod_changes_nothing(change: dict[str, str]) -> None:
    async with promised() as (world, pod):
        version = world.cache.changes.version

        answer = await world.bind(pod | {"metadata": pod["metadata"] | change}, "a")

        assert answer == "Leeboard does not know the pod yet; kube-scheduler will try again"
        assert (world.cluster.binds, world.cache.changes.version) == ([], version)


async def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    async with promised() as (world, pod):
        world.patch(pod, **DELETED)
        await passes(1)

        assert await world.bind(pod, "a") == "the pod is being deleted"
        assert world.cluster.binds == []


async def test_a_pod_of_another_scheduler_is_bound_to_the_node_in_the_call() -> None:
    async with living("a") as world:
        pod = world.pod("one")
        world.patch(pod, spec={"schedulerName": "other"})
        await passes(1)

        assert await world.bind(pod, "a") == BOUND
        assert len(world.cache.reservations) == 0


# When the outcome is not sure


@pytest.mark.parametrize("error", UNSURE, ids=repr)
async def test_a_write_that_was_not_done_is_repeated_after_a_while(error: KubeError) -> None:
    async with promised(error) as (world, pod):
        asked_at = world.now()

        assert await world.bind(pod, "a") == BOUND
        assert world.cluster.binds == [("one-0", "a")] * 2
        assert world.now() - asked_at == pytest.approx(UNDONE.first_s)


async def test_a_write_whose_reply_was_lost_counts_as_a_success() -> None:
    async with promised() as (world, pod):
        world.cluster.lost_replies["bind"] = 1

        assert await world.bind(pod, "a") == BOUND
        assert len(world.cluster.binds) == 1


@pytest.mark.parametrize("error", UNSURE, ids=repr)
async def test_a_pod_bound_elsewhere_by_another_scheduler_is_an_error(error: KubeError) -> None:
    async with promised(error) as (world, pod):
        world.cluster.hide(Resource.PODS)
        world.patch(pod, spec={"nodeName": "b"})

        assert await world.bind(pod, "a") == "the pod is already bound to node b"
        assert world.promised(pod) is None


@pytest.mark.parametrize("error", UNSURE, ids=repr)
async def test_a_deleted_pod_is_given_up_before_the_watch_shows_it(error: KubeError) -> None:
    async with promised(error) as (world, pod):
        world.cluster.hide(Resource.PODS)
        world.delete(pod)
        world.pod("one")

        assert await world.bind(pod, "a") == "the pod does not exist any more"
        assert (world.promised(pod), world.bound()) == (None, {})


@pytest.mark.parametrize("error", [*UNSURE, RejectedError("422")], ids=repr)
async def test_a_pod_that_was_deleted_during_the_write_is_given_up(error: KubeError) -> None:
    async with promised(error) as (world, pod):
        world.cluster.takes_s["bind"] = 1
        bind = world.binding(pod, "a")
        await passes(0.5)

        world.delete(pod)

        assert (await bind).partition(":")[0] in {
            "the pod does not exist any more",
            "the API server refuses the binding",
        }
        assert len(world.cache.reservations) == 0


async def test_a_failed_look_up_is_repeated_before_anything_else_happens_to_the_pod() -> None:
    async with promised(promise_ttl_s=1) as (world, pod):
        world.cluster.lost_replies["bind"] = 1
        world.cluster.errors["read_pod"] += [UnavailableError("503")] * (LOOKS - 1)
        world.cluster.hide(Resource.PODS)

        bind = world.binding(pod, "a")
        await passes(40)

        held = world.held(pod)
        assert held is not None
        assert (held.node, held.state, bind.done()) == ("a", ReservationState.BINDING, False)
        assert await bind == BOUND
        assert (len(world.cluster.binds), world.count("binds", outcome="unknown")) == (1, LOOKS - 1)


async def test_a_refused_look_up_ends_when_the_watch_shows_that_the_pod_was_deleted() -> None:
    async with promised(OutcomeUnknownError("timed out")) as (world, pod):
        world.cluster.errors["read_pod"] += [ForbiddenError("403")] * 1000
        bind = world.binding(pod, "a")
        await passes(0.1)

        world.delete(pod)

        assert await bind == "the pod does not exist any more"
        assert (len(world.cache.reservations), world.free_gpus()) == (0, {"a": 1, "b": 1})


@pytest.mark.parametrize(("node", "answer"), [("a", BOUND), ("b", "the pod is already bound to node b")])
async def test_a_refused_look_up_ends_when_the_watch_shows_where_the_pod_is_bound(node: str, answer: str) -> None:
    async with promised(OutcomeUnknownError("timed out")) as (world, pod):
        world.cluster.errors["read_pod"] += [ForbiddenError("403")] * 1000
        bind = world.binding(pod, "a")
        await passes(0.1)

        world.patch(pod, spec={"nodeName": node})

        assert await bind == answer


async def test_a_look_up_that_is_refused_for_a_minute_is_answered_and_the_node_stays_reserved() -> None:
    async with promised(OutcomeUnknownError("timed out"), promise_ttl_s=1) as (world, pod):
        world.cluster.errors["read_pod"] += [ForbiddenError("403")] * 1000

        assert await world.bind(pod, "a") == NOT_KNOWN
        await passes(600)

        held = world.held(pod)
        assert held is not None
        assert (held.node, held.state) == ("a", ReservationState.BINDING)
        assert world.count("binds", outcome="unknown") == LOOKS
        # kube-scheduler calls again, and reads are allowed by now.
        world.cluster.errors["read_pod"].clear()
        assert await world.bind(pod, "a") == BOUND


async def test_a_pod_deleted_while_the_api_server_takes_no_writes_is_not_retried_for_ever() -> None:
    async with promised(*[UnavailableError("503")] * 1000) as (world, pod):
        bind = world.binding(pod, "a")
        await passes(0.1)

        world.delete(pod)

        assert await bind == "the pod does not exist any more"


async def test_a_pod_that_is_deleted_between_retries_is_given_up() -> None:
    async with promised() as (world, pod):
        world.cluster.takes_s["bind"] = 0.1
        bind = world.binding(pod, "a")
        await passes(0.05)

        world.patch(pod, **DELETED)  # With a finalizer: it stays as it is.
        await passes(10)

        assert bind.done()
        assert await bind == "the pod is being deleted"


# When the API server refuses


@pytest.mark.parametrize(
    ("error", "culprit"),
    [
        (OutcomeUnknownError("timed out"), "the API server did not confirm the binding"),
        (ConflictError("409"), "the API server refuses the binding"),
        (UnavailableError("503"), "the API server could not take the binding"),
        (WebhookFailedError("500"), "an admission webhook failed on the binding"),
        (NotSentError("too late"), "Leeboard did not send the binding"),
    ],
    ids=repr,
)
async def test_a_binding_that_is_never_carried_out_is_given_up_with_the_reason_and_the_culprit(
    error: KubeError, culprit: str
) -> None:
    async with promised(*[error] * 1000, promise_ttl_s=1) as (world, pod):
        answer = await world.bind(pod, "a")
        await passes(0.5)

        tries = len([*UNDONE.pauses()]) + 1
        assert answer == f"{culprit}: {error}"
        assert (len(world.cluster.binds), world.free_gpus()) == (tries, {"a": 1, "b": 1})
        (told,) = (refusal for _, refusal in world.inspect.waiting() if refusal is not None)
        assert told.reason is Reason.BACKING_OFF
        said = f"{culprit[0].upper()}{culprit[1:]}: {error}; Leeboard tries again in"
        assert told.sentence.startswith(said)


async def test_the_node_of_an_unanswered_binding_stays_reserved_until_its_request_must_have_ended() -> None:
    async with promised(OutcomeUnknownError("timed out"), RejectedError("422")) as (world, pod):
        bind = world.binding(pod, "a")
        await passes(REQUEST_LASTS_S)
        assert (world.promised(pod), bind.done()) == ("a", False)

        # The first write is carried out late, after a read has shown the pod unbound.
        world.cluster.hide(Resource.PODS)
        world.patch(pod, spec={"nodeName": "a"})

        assert await bind == BOUND
        assert world.promised(pod) == "a"


async def test_a_deleted_pod_keeps_its_node_until_an_unanswered_write_must_have_ended() -> None:
    async with promised(OutcomeUnknownError("timed out")) as (world, pod):
        bind = world.binding(pod, "a")
        await passes(0.1)
        world.patch(pod, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]})
        await passes(REQUEST_LASTS_S - 5)
        assert (world.promised(pod), bind.done()) == ("a", False)

        world.cluster.hide(Resource.PODS)
        world.patch(pod, spec={"nodeName": "a"})

        assert await bind == BOUND
        assert world.promised(pod) == "a"


async def test_a_binding_delayed_by_an_outage_of_the_api_server_keeps_its_node() -> None:
    async with promised(*[UnavailableError("connection refused")] * 1000) as (world, pod):
        world.cluster.errors["read_pod"] += [UnavailableError("connection refused")] * LOOKS

        assert await world.bind(pod, "a") == NOT_KNOWN
        await passes(600)
        world.cluster.errors["bind"].clear()

        assert (world.promised(pod), await world.bind(pod, "a")) == ("a", BOUND)


@pytest.mark.parametrize("errors", FINAL, ids=repr)
async def test_a_binding_that_is_refused_for_good_is_given_up_and_the_pod_backs_off(errors: list[KubeError]) -> None:
    async with promised(*errors) as (world, pod):
        answer = await world.bind(pod, "a")
        await passes(0.5)

        assert answer == f"the API server refuses the binding: {errors[-1]}"
        assert (world.promised(pod), world.reason(pod)) == (None, Reason.BACKING_OFF)
        await passes(3)
        assert world.promised(pod) is not None


async def test_an_api_server_that_has_not_loaded_its_roles_yet_gets_time() -> None:
    async with promised(ForbiddenError("403"), ForbiddenError("403")) as (world, pod):
        assert await world.bind(pod, "a") == BOUND


async def test_an_api_server_that_answers_retry_after_gets_that_time() -> None:
    async with promised(UnavailableError("429", retry_after_s=7)) as (world, pod):
        asked_at = world.now()

        assert await world.bind(pod, "a") == BOUND
        assert world.now() - asked_at == pytest.approx(7)


async def test_a_gang_with_one_refused_binding_backs_off_once() -> None:
    async with living("a", "b") as world:
        gang = world.gang("gang", size=2)
        world.cluster.errors["bind"] += [RejectedError("422"), RejectedError("422")]
        nodes = [await world.choose(pod, "a", "b") for pod in gang]

        await asyncio.gather(*(world.bind(pod, node) for pod, node in zip(gang, nodes, strict=True)))
        await passes(3.5)

        assert [world.promised(pod) for pod in gang] == nodes


# Until the watch shows what was written


async def test_a_node_stays_charged_once_from_the_reservation_to_the_end_of_the_pod() -> None:
    async with living("a", gpus=2) as world:
        pod = world.pod("one")
        node, free = await world.choose(pod, "a"), [world.free_gpus()]
        world.cluster.hide(Resource.PODS)
        await world.bind(pod, node)
        free.append(world.free_gpus())
        assert world.held(pod) is not None

        world.cluster.show(Resource.PODS)
        await passes(1)

        assert world.held(pod) is None
        assert [*free, world.free_gpus()] == [{"a": 1}] * 3


async def test_a_binding_that_the_watch_has_not_shown_yet_never_expires() -> None:
    async with promised(promise_ttl_s=5) as (world, pod):
        world.cluster.hide(Resource.PODS)
        await world.bind(pod, "a")

        await passes(60)

        assert world.cache.room.is_free(NodeName("a"), Load(world.cache.pods.get(ref(pod).uid).request)) is False  # type: ignore[union-attr] # it is known
