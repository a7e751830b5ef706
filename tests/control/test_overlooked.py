"""Pods that kube-scheduler does not look at: they say why, and others get the room that they cannot use."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from app.control.journal.backoff import COSTLY
from app.model.explanation import Explanation
from app.model.names import NodeName
from app.model.question import Fits
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from tests.cluster.dra_objects import claim, request
from tests.control.wired import World, living, passes

CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "single-gpu"}]
MADE = [{"name": "gpu", "resourceClaimName": "one-0-gpu-x7f2"}]
TTL_S = 10


def claiming(world: World, name: str, claims: Sequence[object] = CLAIMS, **status: object) -> RawObject:
    """Create a pod that names ResourceClaims."""
    pod = world.asked(name)
    return world.cluster.create(
        Resource.PODS, pod | {"spec": pod["spec"] | {"resourceClaims": claims}, "status": status}
    )


def claimed(world: World, *names: str) -> None:
    """Create ResourceClaims for something that is no GPU."""
    for name in names:
        world.cluster.create(Resource.RESOURCE_CLAIMS, claim(name, request("nic.example.com"), namespace="q"))


def sentence(world: World, pod: RawObject) -> str:
    found = world.inspect.pod("q", pod["metadata"]["name"])
    return found.refusal.sentence if found is not None and found.refusal is not None else ""


def explained(world: World, name: str) -> str:
    found = world.inspect.explain("q", name)
    assert isinstance(found, Explanation)
    return found.why.sentence


async def places(world: World, pod: RawObject, for_s: int) -> list[int]:
    """Return for each place that a pod gets within this time when it gets it, in seconds from now."""
    found, before = list[int](), world.promised(pod)
    for second in range(for_s):
        await passes(1)
        now = world.promised(pod)
        if now is not None and before is None:
            found.append(second)
        before = now
    return found


# A ResourceClaim that is not there


async def test_a_pod_whose_claim_template_does_not_exist_gets_no_place_and_is_told_why() -> None:
    async with living("a") as world:
        first, second = claiming(world, "one"), world.pod("two")
        await passes(1)

        assert (world.promised(first), world.promised(second)) == (None, "a")
        assert world.reason(first) is Reason.NOT_CONSIDERED
        assert sentence(world, first) == (
            "Pod one-0 waits for ResourceClaim 'gpu' (from ResourceClaimTemplate 'single-gpu'), which does not exist;"
            " create what is missing."
        )


async def test_a_pod_gets_a_place_when_its_claim_has_been_made() -> None:
    async with living("a") as world:
        pod = claiming(world, "one")
        await passes(1)
        assert world.promised(pod) is None

        world.patch(pod, status={"resourceClaimStatuses": MADE})
        await passes(1)
        assert (world.promised(pod), "'one-0-gpu-x7f2'" in sentence(world, pod)) == (None, True)
        claimed(world, "one-0-gpu-x7f2")
        await passes(1)

        assert world.promised(pod) == "a"


async def test_claims_that_were_made_or_need_not_be_hold_nobody_up() -> None:
    async with living("a", "b", "c") as world:
        claimed(world, "one-0-gpu-x7f2", "mine")
        made = claiming(world, "made", resourceClaimStatuses=MADE)
        needless = claiming(world, "needless", resourceClaimStatuses=[{"name": "gpu"}])
        named = claiming(world, "named", [{"name": "gpu", "resourceClaimName": "mine"}])
        await passes(1)

        assert None not in {world.promised(pod) for pod in (made, needless, named)}


async def test_the_others_of_an_elastic_group_start_without_a_pod_whose_claim_is_missing() -> None:
    async with living("a", "b", "c") as world:
        first, second = world.gang("g", size=2, min_member=1)
        asked = world.asked("g", group="g")
        lacks = asked | {"metadata": asked["metadata"] | {"name": "g-9", "uid": "g-9"}}
        lacks = world.cluster.create(Resource.PODS, lacks | {"spec": lacks["spec"] | {"resourceClaims": CLAIMS}})
        await passes(1)

        assert (world.promised(lacks), None in {world.promised(pod) for pod in (first, second)}) == (None, False)
        assert "ResourceClaim" in sentence(world, lacks)


async def test_a_pod_whose_claim_is_missing_asks_for_no_share_of_its_queue() -> None:
    async with living("a") as world:
        claiming(world, "one")
        await passes(1)

        assert not any(usage.requested.gpu_milli for usage in world.cache.charges.usage().values())


# A place that nobody asks for


async def test_a_place_that_kube_scheduler_never_asks_for_comes_again_less_and_less_often() -> None:
    async with living("a", promise_ttl_s=TTL_S) as world:
        claimed(world, "mine")
        pod = claiming(world, "one", [{"name": "gpu", "resourceClaimName": "mine"}])
        await passes(1)

        found = await places(world, pod, 4 * 3600)

        waits = [after - before for before, after in pairwise(found)]
        assert waits == sorted(waits)
        assert len(found) < 20
        assert waits[-1] >= COSTLY.longest_s


async def test_others_get_the_room_of_a_pod_that_kube_scheduler_does_not_ask_about() -> None:
    async with living("a", promise_ttl_s=TTL_S) as world:
        claimed(world, "mine")
        silent = claiming(world, "one", [{"name": "gpu", "resourceClaimName": "mine"}])
        await passes(1)
        other = world.pod("two")
        assert world.promised(silent) == "a"

        await passes(TTL_S + 1)

        assert (world.promised(silent), world.promised(other)) == (None, "a")
        assert world.reason(silent) is Reason.NOT_CONSIDERED
        assert sentence(world, silent) == (
            "No call of kube-scheduler came for pod one-0 while a node was reserved for it; check that kube-scheduler"
            " runs, and that its configuration has a profile for the pod's schedulerName and names Leeboard as an"
            " extender."
        )


async def test_a_pod_without_claims_that_kube_scheduler_does_not_ask_about_is_told_what_else_to_check() -> None:
    async with living("a", promise_ttl_s=TTL_S) as world:
        pod = world.pod("one")
        await passes(TTL_S + 2)

        assert sentence(world, pod) == (
            "No call of kube-scheduler came for pod one-0 while a node was reserved for it; check that kube-scheduler"
            " runs, and that its configuration has a profile for the pod's schedulerName and names Leeboard as an"
            " extender."
        )


@pytest.mark.parametrize("name", ["g", "g-1"])
async def test_why_says_one_thing_as_long_as_kube_scheduler_does_not_ask(name: str) -> None:
    async with living("a", "b", promise_ttl_s=TTL_S) as world:
        pods = world.gang("g", size=2)
        await passes(TTL_S + 2)

        said, promised = set[str](), set[str | None]()
        for _ in range(20 * TTL_S):
            await passes(1)
            said.add(explained(world, name))
            promised.add(world.promised(pods[1]))

        assert promised > {None}
        assert len(said) == 1
        assert "check that kube-scheduler runs" in said.pop()


async def test_why_says_that_a_node_is_reserved_again_once_kube_scheduler_has_asked() -> None:
    async with living("a", promise_ttl_s=TTL_S) as world:
        pod = world.pod("one")
        await passes(TTL_S + 2)
        await world.filter(pod, "a")

        assert "check that" not in explained(world, "one-0")


async def test_a_pod_that_kube_scheduler_asks_about_at_last_gets_its_place_at_once() -> None:
    async with living("a", promise_ttl_s=TTL_S) as world:
        pod = world.pod("one")
        await passes(TTL_S * 30)
        for _ in range(60):
            if world.promised(pod) is None:
                break
            await passes(1)
        assert world.promised(pod) is None

        assert await world.filter(pod, "a") == Fits((NodeName("a"),))


async def test_a_place_that_was_asked_for_is_made_again_at_once_when_it_expires() -> None:
    async with living("a", promise_ttl_s=TTL_S, answered_ttl_s=TTL_S) as world:
        pod = world.pod("one")
        assert await world.filter(pod, "a") == Fits((NodeName("a"),))

        await passes(TTL_S + 1)

        assert world.count("promises_expired") == 1
        assert world.promised(pod) == "a"


async def test_a_gang_of_which_one_pod_is_never_asked_about_keeps_no_room_and_names_that_pod() -> None:
    async with living("a", "b", promise_ttl_s=TTL_S) as world:
        first, second = world.gang("g", size=2)
        await world.filter(first, "a", "b")
        other = world.pod("other")
        await passes(1)
        assert None not in {world.promised(first), world.promised(second)}

        for _ in range(400):
            await passes(1)
            if world.reason(second) is Reason.NOT_CONSIDERED and world.promised(other):
                break

        assert world.promised(other) is not None
        assert "g-1" in sentence(world, second)


async def test_a_gang_that_is_bound_in_part_keeps_its_room_while_its_rest_is_not_asked_about() -> None:
    async with living("a", "b", promise_ttl_s=TTL_S) as world:
        first, second = world.gang("g", size=2)
        bindings = [world.binding(pod, await world.choose(pod, "a", "b")) for pod in (first, second)]
        await passes(1)
        assert [await each for each in bindings] == ["", ""]
        lost = world.bound()[first["metadata"]["name"]]
        world.delete(first)
        again, other = world.pod("again", group="g"), world.pod("other")

        seen = set[tuple[str | None, str | None]]()
        for _ in range(50):
            await passes(1)
            seen.add((world.promised(again), world.promised(other)))

        assert seen == {(lost, None), (None, None)}
