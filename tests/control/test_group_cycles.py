"""A kube-scheduler with the gate GenericWorkload tries the pods of a native PodGroup together, by rules of its own."""

from collections.abc import Collection

import pytest

from app.control.cycle.releases import WINDOW
from app.model.marks import GATE
from app.model.names import GroupKey
from app.model.pod import Pod
from app.model.question import Fits, Refused
from app.model.reason import Reason
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.manifests import Job
from tests.control.wired import FickleCluster, furnished, gated, living, passes

MANY = WINDOW + 8
OUT_OF_REACH = "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"


@pytest.mark.parametrize(("is_on", "released"), [(True, MANY), (False, WINDOW)])
async def test_all_members_are_released_before_kube_scheduler_asks_about_any(*, is_on: bool, released: int) -> None:
    async with living("a", gpus=MANY, kube_scheduler_groups=is_on) as world:
        world.native_gang("gang", size=MANY, min_count=MANY, gates=[GATE])
        await passes(1)

        assert len(world.cluster.releases) == released


async def test_members_are_looked_at_a_few_times_each_when_all_of_them_are_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    async with living("a", gpus=MANY, kube_scheduler_groups=True) as world:
        pods = world.cache.groups.pods

        def counted(key: GroupKey) -> Collection[Pod]:
            nonlocal looks
            looks += len(pods(key))
            return pods(key)

        # Nothing else shows how much work it is.
        monkeypatch.setattr(world.cache.groups, "pods", counted)
        world.native_gang("gang", size=MANY, min_count=MANY, gates=[GATE])
        await passes(1)

        assert len(world.cluster.releases) == MANY
        assert looks <= 10 * MANY


async def test_a_kai_gang_is_released_as_kube_scheduler_asks() -> None:
    async with living("a", gpus=MANY, kube_scheduler_groups=True) as world:
        world.gang("gang", size=MANY, gates=[GATE])
        await passes(1)

        assert len(world.cluster.releases) == WINDOW


@pytest.mark.parametrize(("is_on", "released"), [(True, 4), (False, 2)])
async def test_members_without_a_place_are_released_with_the_others_and_refused(*, is_on: bool, released: int) -> None:
    async with living("a", "b", kube_scheduler_groups=is_on) as world:
        pods = world.native_gang("basic", size=4, min_count=None, gates=[GATE])
        await passes(1)

        assert len(world.cluster.releases) == released
        answers = [await world.filter(pod, "a", "b") for pod in pods]
        assert [isinstance(answer, Fits) for answer in answers] == [True, True, False, False]


async def test_while_no_member_has_a_place_all_are_held() -> None:
    async with living("a", kube_scheduler_groups=True) as world:
        world.native_gang("gang", size=2, min_count=2, gates=[GATE])
        await passes(1)

        assert world.cluster.releases == []


async def test_a_member_that_comes_later_does_not_hold_up_the_others() -> None:
    async with living("a", "b", kube_scheduler_groups=True) as world:
        world.native_gang("gang", size=2, min_count=2, gates=[GATE])
        await passes(1)
        late = Job(name="late", queue="q", gpus=1, cpu=0, native_group="gang")
        world.cluster.create(Resource.PODS, gated(manifests.pod(late), [GATE]))
        await passes(1)

        assert sorted(world.cluster.releases) == ["gang-0", "gang-1", "late-0"]


async def test_the_message_of_a_group_says_nothing_about_the_place_of_a_member() -> None:
    async with living("a", "b", kube_scheduler_groups=True) as world:
        fits, refused = world.native_gang("gang", size=2, min_count=2)
        await passes(1)
        node = world.promised(fits)
        world.patch(fits, status={"nominatedNodeName": node})

        world.refuse(fits, OUT_OF_REACH)
        await passes(0.5)

        assert (world.promised(fits), world.promised(refused) is not None) == (node, True)


async def test_a_place_does_not_move_into_the_domain_that_kube_scheduler_offers() -> None:
    cluster = furnished()
    for name, rack in {"a": "one", "b": "one", "c": "two", "d": "two"}.items():
        cluster.create(Resource.NODES, manifests.node(name, gpus=1, cpu=64, labels={"rack": rack}))
    async with living(cluster=cluster, kube_scheduler_groups=True) as world:
        pods = _near(cluster)
        await passes(1)
        before = [world.promised(pod) for pod in pods]
        elsewhere = {"a": ("c", "d"), "b": ("c", "d"), "c": ("a", "b"), "d": ("a", "b")}

        answers = [await world.filter(pod, *elsewhere[str(node)]) for pod, node in zip(pods, before, strict=True)]

        assert answers == [Refused(Reason.DECIDING)] * 2
        assert [world.promised(pod) for pod in pods] == before
        assert isinstance(await world.filter(pods[0], "a", "b", "c", "d"), Fits)


def _near(cluster: FickleCluster) -> list[RawObject]:
    job = Job(name="gang", queue="q", gpus=1, cpu=0, native_group="gang")
    group = manifests.native_pod_group(job, min_count=2)
    group["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
    cluster.create(Resource.NATIVE_POD_GROUPS, group)
    return [cluster.create(Resource.PODS, manifests.pod(job, member=member)) for member in range(2)]
