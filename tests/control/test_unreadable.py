"""Objects that are unreadable, or that make our code fail, never free anything and never stop the feed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy, deepcopy
from typing import Any

import pytest

from app.model.device import Health
from app.model.names import GroupKey
from app.model.seam import RawObject, Resource
from app.simulation import manifests
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.manifests import Job, Quota
from tests.cluster.dra_objects import claimable
from tests.control.grouped import Fed, Looks
from tests.control.wired import passes

RUNNING: RawObject = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
MEMORY = 512 << 30
"""Of each node."""


class Watched(Fed):
    """A cluster with the nodes `a` and `b` of four GPUs each, one of `b` unhealthy, and the feed that follows it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster, learners=(Looks(self._learn),))
        self.cluster = cluster
        self.poison: str | None = None
        """The object that cannot be decoded at all."""

    def _learn(self, raw: RawObject) -> None:
        if raw["metadata"]["name"] == self.poison:
            raise ZeroDivisionError

    def pods(self) -> set[str]:
        return {pod.name for pod in self.cache.pods.all()}

    def free(self) -> dict[str, int]:
        """Return everything that is free, by name: of each node that takes pods, and of each shared GPU."""
        snapshot = self.cache.snapshot()
        found: dict[str, int] = {}
        for column, node in enumerate(snapshot.nodes.nodes):
            if node.takes_work and not node.unschedulable:
                found |= {
                    f"{node.name} {axis}": max(0, int(free)) for axis, free in enumerate(snapshot.free[:, column])
                }
                found |= {f"{node.name} {name}": int(free[column]) for name, free in snapshot.scalars.items()}
        return found

    def gpus(self) -> dict[str, int]:
        return {name: self.free().get(f"{name} 2", 0) // 1000 for name in "ab"}

    def break_reader(self, resource: Resource, name: str) -> None:
        """Let decoding one object fail, as a bug would."""
        kind = self.feed._kinds[resource]

        def decode(raw: RawObject) -> Any:
            if raw["metadata"]["name"] == name:
                raise ZeroDivisionError
            return whole(raw)

        whole, broken = kind.decode, copy(kind)
        broken.decode = decode  # type: ignore[method-assign]
        self.feed._kinds = {**self.feed._kinds, resource: broken}

    def failures(self, resource: Resource, step: str) -> float:
        labels = {"resource": repr(resource), "step": step}
        return self.metrics.registry.get_sample_value("leeboard_objects_failed_total", labels) or 0


def furnished() -> SimulatedCluster:
    cluster = SimulatedCluster(now=lambda: 0.0)
    cluster.create(Resource.QUEUES, manifests.queue("q", None, Quota(gpus=0)))
    for name in "ab":
        node = manifests.node(name, gpus=4, cpu=64, labels={})
        node["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "7"
        node["spec"] = {"unschedulable": False, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
        cluster.create(Resource.NODES, node)
    cluster.create(Resource.GPU_NODES, gpu_node())
    job = Job(name="g", queue="q", group="g", native_group="g")
    cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=1))
    cluster.create(Resource.NATIVE_POD_GROUPS, manifests.native_pod_group(job, min_count=1))
    return cluster


def add_devices(cluster: SimulatedCluster) -> None:
    cluster.create(Resource.NODES, manifests.node("c", gpus=0, cpu=64, labels={}))
    for resource, item in claimable("c").items():
        cluster.create(resource, item)


def gpu_node() -> RawObject:
    sick = {"uuid": "GPU-0", "index": 0, "health": Health.UNHEALTHY.value, "memoryMiB": {"total": 80_000}}
    well = {"uuid": "GPU-1", "index": 1, "health": Health.HEALTHY.value, "memoryMiB": {"total": 80_000}}
    return {
        "apiVersion": "leeboard.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": "b"},
        "status": {"kubelet": {"answers": True}, "devices": [sick, well]},
    }


def running(name: str, node: str = "a", *, gpus: int = 2, **status: Any) -> RawObject:
    pod = manifests.pod(Job(name=name, queue="q", gpus=gpus, group="g"))
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    requests["nvidia.com/mig-1g.10gb"] = "1"
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "1"}}}]
    return pod | {"spec": pod["spec"] | {"nodeName": node}, "status": RUNNING | status}


def sharing(name: str) -> RawObject:
    pod = running(name, gpus=0)
    del pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/mig-1g.10gb"]
    given = {"leeboard.dev/device-groups": "g", "leeboard.dev/devices": "GPU-1"}
    pod["metadata"]["annotations"] |= {"gpu-fraction": "0.5", **given}
    return pod


@asynccontextmanager
async def watched(cluster: SimulatedCluster, *broken: tuple[Resource, str], poison: str = "") -> AsyncIterator[Watched]:
    world = Watched(cluster)
    world.poison = poison
    for resource, name in broken:
        world.break_reader(resource, name)
    following = asyncio.create_task(world.run())
    try:
        await world.freshness.synced()
        await passes(0.1)
        yield world
        assert not following.done()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def add_pod(cluster: SimulatedCluster, name: str) -> None:
    cluster.create(Resource.PODS, manifests.pod(Job(name=name, queue="q")))


# Bugs of ours


@pytest.mark.parametrize("poison", ["first-0", "late-0"])
async def test_an_object_about_which_nothing_can_be_decoded_is_still_known(poison: str) -> None:
    cluster = furnished()
    add_pod(cluster, "first")
    async with watched(cluster, poison=poison) as world:
        add_pod(cluster, "late")
        await passes(1)

        assert world.pods() == {"first-0", "late-0"}
        assert world.failures(Resource.PODS, "learn") == 1


async def test_a_running_pod_about_which_nothing_can_be_decoded_keeps_its_gpus() -> None:
    cluster = furnished()
    cluster.create(Resource.PODS, running("p"))
    async with watched(cluster, poison="p-0") as world:
        assert world.gpus() == {"a": 2, "b": 3}


async def test_a_running_pod_that_makes_the_decoder_fail_keeps_its_gpus_and_says_so() -> None:
    cluster = furnished()
    cluster.create(Resource.PODS, running("p"))
    async with watched(cluster, (Resource.PODS, "p-0")) as world:
        (pod,) = world.cache.pods.all()

        assert world.gpus() == {"a": 2, "b": 3}
        assert "cannot read it" in pod.problem
        assert world.failures(Resource.PODS, "read") == 1
        cluster.delete(Ref.of(Resource.PODS, cluster.objects(Resource.PODS)[0]))
        await passes(1)
        assert world.gpus() == {"a": 4, "b": 3}


async def test_a_pending_pod_that_makes_the_decoder_fail_stays_pending_with_a_reason() -> None:
    cluster = furnished()
    add_pod(cluster, "p")
    async with watched(cluster, (Resource.PODS, "p-0")) as world:
        (group,) = world.cache.groups.waiting().values()

        assert group.refusal is not None
        assert "cannot read it" in group.refusal.sentence


async def test_a_pod_that_makes_the_decoder_fail_later_stays_in_its_gang() -> None:
    cluster = furnished()
    created = cluster.create(Resource.PODS, running("p"))
    async with watched(cluster) as world:
        world.break_reader(Resource.PODS, "p-0")
        cluster.patch(Ref.of(Resource.PODS, created), {"metadata": {"labels": {"x": "y"}}})
        await passes(1)

        (pod,) = world.cache.pods.all()
        assert pod.group == GroupKey("q", "g")
        assert world.gpus() == {"a": 2, "b": 3}


async def test_a_pod_whose_owners_make_the_pod_grouper_fail_keeps_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = furnished()
    cluster.create(Resource.PODS, running("p"))
    # No object is known that makes grouping fail, so the failure is injected here.
    monkeypatch.setattr("app.control.groups.pod_grouper.first_link", lambda _: 1 // 0)
    async with watched(cluster) as world:
        assert world.gpus() == {"a": 2, "b": 3}
        assert world.failures(Resource.PODS, "apply") > 0


async def test_a_node_that_makes_the_decoder_fail_takes_no_new_pods_until_it_is_readable() -> None:
    cluster = furnished()
    (node, _) = cluster.objects(Resource.NODES)
    async with watched(cluster) as world:
        whole = world.feed._kinds
        world.break_reader(Resource.NODES, "a")
        cluster.patch(Ref.of(Resource.NODES, node), {"metadata": {"labels": {"x": "y"}}})
        await passes(1)

        assert world.gpus() == {"a": 0, "b": 3}
        world.feed._kinds = whole
        cluster.patch(Ref.of(Resource.NODES, node), {"metadata": {"labels": {"x": "z"}}})
        await passes(1)
        assert world.gpus() == {"a": 4, "b": 3}


async def test_an_unhealthy_gpu_stays_unhealthy_when_its_report_makes_the_decoder_fail() -> None:
    cluster = furnished()
    (report,) = cluster.objects(Resource.GPU_NODES)
    async with watched(cluster) as world:
        world.break_reader(Resource.GPU_NODES, "b")
        cluster.patch(Ref.of(Resource.GPU_NODES, report), {"status": {"driverVersion": "1"}})
        await passes(1)

        assert world.gpus() == {"a": 4, "b": 3}


@pytest.mark.parametrize("resource", [Resource.QUEUES, Resource.POD_GROUPS])
async def test_an_object_of_a_user_that_makes_the_decoder_fail_is_refused_and_reported(resource: Resource) -> None:
    cluster = furnished()
    (raw,) = cluster.objects(resource)
    cluster.create(Resource.PODS, manifests.pod(Job(name="p", queue="q", group="g")))
    async with watched(cluster, (resource, raw["metadata"]["name"])) as world:
        spec, queue = world.cache.groups.specs.get(GroupKey("q", "g")), world.cache.queues.tree()["q"]  # type: ignore[index]

        problem = queue.problem if resource is Resource.QUEUES else spec.problem if spec else ""
        assert "cannot read it" in problem


# Unreadable amounts


async def test_a_node_takes_no_pods_while_a_pod_with_unreadable_amounts_runs_there() -> None:
    cluster = furnished()
    pod = running("p")
    pod["spec"]["containers"][0]["resources"] = ["2 GPUs"]
    created = cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        assert world.gpus() == {"a": 0, "b": 3}
        assert list(world.cache.unread.nodes()) == ["a"]
        cluster.delete(Ref.of(Resource.PODS, created))
        await passes(1)
        assert world.gpus() == {"a": 4, "b": 3}


async def test_resources_of_readable_pods_beside_an_unreadable_one_stay_in_the_divided_capacity() -> None:
    cluster = furnished()
    unreadable = running("p", gpus=0)
    unreadable["spec"]["containers"][0]["resources"] = ["2 GPUs"]
    async with watched(cluster) as world:
        whole = world.cache.snapshot().total
        beside = cluster.create(Resource.PODS, running("beside", gpus=3))
        created = cluster.create(Resource.PODS, unreadable)
        await passes(1)
        closed = world.cache.snapshot().total
        cluster.delete(Ref.of(Resource.PODS, beside))
        await passes(1)
        alone = world.cache.snapshot().total
        cluster.delete(Ref.of(Resource.PODS, created))
        await passes(1)

        # One GPU and six MIG profiles of one each are free on node `a` beside the readable pod.
        assert whole.gpu_milli - closed.gpu_milli == 1000 + 6000
        assert whole.gpu_milli - alone.gpu_milli == 4000 + 7000
        assert (closed.cpu_milli > alone.cpu_milli, world.cache.snapshot().total) == (True, whole)


async def test_a_node_takes_pods_again_when_its_pod_becomes_readable() -> None:
    cluster = furnished()
    pod = running("p")
    pod["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "two"}}
    created = cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        whole = running("p")["spec"]["containers"]
        cluster.patch(Ref.of(Resource.PODS, created), {"spec": {"containers": whole}})
        await passes(1)

        assert world.gpus() == {"a": 2, "b": 3}


@pytest.mark.parametrize(("groups", "gpus"), [("g", 3), ("not a name", 0), (["g"], 0), ("", 0)])
async def test_a_node_takes_no_pods_while_the_shared_gpus_of_a_pod_there_are_unknown(groups: object, gpus: int) -> None:
    cluster = furnished()
    pod = sharing("p")
    pod["metadata"]["annotations"]["leeboard.dev/device-groups"] = groups
    cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        # With a name, the shared GPU is charged as a whole.
        assert world.gpus() == {"a": gpus, "b": 3}


async def test_a_node_takes_no_pods_while_a_pod_that_shares_a_gpu_there_makes_the_decoder_fail() -> None:
    cluster = furnished()
    cluster.create(Resource.PODS, sharing("p"))
    async with watched(cluster, (Resource.PODS, "p-0")) as world:
        assert world.gpus() == {"a": 0, "b": 3}


async def test_a_node_takes_no_pods_while_a_pod_that_shares_a_gpu_there_is_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = furnished()
    created = cluster.create(Resource.PODS, sharing("p"))
    async with watched(cluster) as world:
        assert world.gpus() == {"a": 3, "b": 3}
        # No pod is known that cannot be applied completely, so the failure is injected here.
        with monkeypatch.context() as broken:
            broken.setattr(world.pod_kind, "_apply_whole", lambda *_: 1 // 0)
            cluster.patch(Ref.of(Resource.PODS, created), {"metadata": {"labels": {"x": "y"}}})
            await passes(1)
            assert world.gpus() == {"a": 0, "b": 3}

        cluster.patch(Ref.of(Resource.PODS, created), {"metadata": {"labels": {"x": "z"}}})
        await passes(1)
        assert world.gpus() == {"a": 3, "b": 3}


async def test_a_running_pod_with_pod_level_resources_that_makes_the_decoder_fail_keeps_them() -> None:
    cluster = furnished()
    pod = running("p")
    pod["spec"]["resources"] = {"requests": {"cpu": "60"}}
    cluster.create(Resource.PODS, pod)
    async with watched(cluster, (Resource.PODS, "p-0")) as world:
        assert world.free()["a 0"] <= 4000


@pytest.mark.parametrize("status", [{"phase": "Pending", "startTime": None}, {"phase": None, "startTime": None}])
async def test_a_node_that_only_the_author_of_a_pod_has_named_is_not_closed(status: dict[str, Any]) -> None:
    cluster = furnished()
    pod = running("p", gpus=1, **status)
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"
    cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        assert world.gpus() == {"a": 3, "b": 3}


async def test_a_node_is_closed_for_an_unreadable_pod_that_a_scheduler_has_bound() -> None:
    cluster = furnished()
    bound = {"type": "PodScheduled", "status": "True"}
    pod = running("p", phase="Pending", startTime=None, conditions=[bound])
    pod["spec"]["containers"][0]["resources"] = 5
    cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        assert world.gpus() == {"a": 0, "b": 3}


async def test_many_unreadable_pods_cost_others_no_more_than_they_request() -> None:
    cluster = furnished()
    for number in range(1000):
        pod = running(f"p{number}", gpus=0, phase="Pending", startTime=None)
        pod["spec"]["schedulerName"] = "default-scheduler"
        # More than any node has: the API server stores it, and no kubelet accepts it.
        pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": "8Ei", "cpu": "1m"}}
        pod["metadata"]["labels"]["kai.scheduler/queue"] = ""
        cluster.create(Resource.PODS, pod)
    async with watched(cluster) as world:
        total = world.cache.snapshot().total

        assert world.gpus() == {"a": 4, "b": 3}
        # Two nodes of four GPUs and of seven MIG slices.
        assert (total.gpu_milli, total.memory_bytes) == (22_000, 2 * MEMORY)
        assert world.free()["b 1"] > 0


# Any field of the wrong type


def wrong(value: object) -> list[object]:
    """Return values of other types than this one, which have no possible meaning."""
    if isinstance(value, bool | int):
        return ["x", [], {}]
    if isinstance(value, str):
        return [[], ["x"], {"x": "y"}, True]
    return ["x", True]


def paths(value: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from paths(inner, (*above, key))


def mutants(raw: RawObject) -> Iterator[tuple[tuple[str | int, ...], RawObject]]:
    for path in paths(raw):
        original: Any = raw
        for key in path:
            original = original[key]
        for value in wrong(original):
            mutant = deepcopy(raw)
            at: Any = mutant
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            yield path, mutant


@pytest.mark.parametrize("resource", list(Resource), ids=repr)
async def test_no_field_of_the_wrong_type_frees_anything(resource: Resource) -> None:
    cluster = furnished()
    cluster.create(Resource.PODS, running("p"))
    cluster.create(Resource.PODS, running("q", "b", gpus=1))
    cluster.create(Resource.TOPOLOGIES, manifests.topology("t", "rack"))
    cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("train"))
    add_devices(cluster)
    async with watched(cluster) as world:
        raw, before = cluster.objects(resource)[0], world.free()
        assert before["a 2"] == 2000
        for path, mutant in mutants(raw):
            for event in (world.feed._keep(resource, mutant), world.feed._keep(resource, raw)):
                if event is not None:
                    world.feed._apply(resource, event)
                now = world.free()
                assert {name: free for name, free in now.items() if free > before.get(name, 0)} == {}, path
            assert now == before, path


@pytest.mark.parametrize("resource", list(Resource), ids=repr)
async def test_no_list_with_a_field_of_the_wrong_type_frees_anything(resource: Resource) -> None:
    cluster = furnished()
    cluster.create(Resource.PODS, running("p"))
    cluster.create(Resource.TOPOLOGIES, manifests.topology("t", "rack"))
    cluster.create(Resource.PRIORITY_CLASSES, manifests.priority_class("train"))
    add_devices(cluster)
    async with watched(cluster) as world:
        raw, *others = cluster.objects(resource)
        before, keep = world.free(), world.feed._keep
        for path, mutant in mutants(raw):
            await world.feed._replace(resource, [keep(resource, one) for one in (mutant, *others)])
            now = world.free()
            assert {name: free for name, free in now.items() if free > before.get(name, 0)} == {}, path
        await world.feed._replace(resource, [keep(resource, one) for one in (raw, *others)])
        assert world.free() == before


UNKNOWABLE = {("spec",), ("spec", "nodeName"), ("metadata",)}
"""Without these fields the node of a pod that was never seen before is unknown."""


async def test_a_pod_that_was_never_readable_is_charged_at_least_what_it_holds() -> None:
    pod = running("p") | {"metadata": running("p")["metadata"] | {"uid": "u", "resourceVersion": "1"}}
    cluster = furnished()
    async with watched(cluster) as world:
        before = world.free()
        for path, mutant in mutants(pod):
            event = world.feed._keep(Resource.PODS, mutant)
            if path in UNKNOWABLE or event is None:
                continue
            world.feed._apply(Resource.PODS, event)
            now = world.free()
            assert now.get("a 2", 0) <= 2000, path
            assert now.get("a nvidia.com/mig-1g.10gb", 0) <= 6, path
            world.feed._delete(Resource.PODS, event)
            assert world.free() == before, path


async def test_a_running_pod_without_a_uid_is_charged_until_it_has_one() -> None:
    cluster = furnished()
    nameless = running("p") | {"metadata": {**running("p")["metadata"], "uid": None}}
    async with watched(cluster) as world:
        event = world.feed._keep(Resource.PODS, nameless)
        assert event is not None
        world.feed._apply(Resource.PODS, event)
        assert world.gpus() == {"a": 2, "b": 3}

        cluster.create(Resource.PODS, running("p"))
        await passes(1)

        assert world.gpus() == {"a": 2, "b": 3}


async def test_a_pending_pod_without_a_uid_affects_no_other_pod() -> None:
    cluster = furnished()
    add_pod(cluster, "first")
    nameless = manifests.pod(Job(name="nameless", queue="q"))
    nameless["metadata"]["uid"] = None
    cluster.create(Resource.PODS, nameless)

    async with watched(cluster) as world:
        assert world.pods() == {"first-0"}


async def test_a_node_whose_update_cannot_be_applied_takes_no_pods_until_one_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = furnished()
    node = stored(cluster, Resource.NODES, "a")
    async with watched(cluster) as world:
        monkeypatch.setattr(world.cache.nodes, "_combine", fails)
        cluster.patch(Ref.of(Resource.NODES, node), {"status": {"allocatable": {"nvidia.com/gpu": "1"}}})
        await passes(1)
        monkeypatch.undo()
        failed = world.gpus(), world.failures(Resource.NODES, "apply"), world.feed.shown(Resource.NODES)["a"]

        world.feed.mend(Resource.NODES, stored(cluster, Resource.NODES, "a"))

        assert (failed, world.gpus()) == (({"a": 0, "b": 3}, 1, 0), {"a": 1, "b": 3})


async def test_a_node_whose_gpus_cannot_be_applied_takes_no_pods_until_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = furnished()
    (gpus,) = cluster.objects(Resource.GPU_NODES)
    sick = [{**device, "health": "Unhealthy"} for device in gpus["status"]["devices"]]
    async with watched(cluster) as world:
        monkeypatch.setattr(world.cache.gpu_books, "restand", fails)
        cluster.patch(Ref.of(Resource.GPU_NODES, gpus), {"status": {"devices": sick}})
        await passes(1)
        monkeypatch.undo()
        failed = world.gpus(), world.failures(Resource.GPU_NODES, "apply"), world.feed.shown(Resource.GPU_NODES)["b"]

        world.feed.mend(Resource.GPU_NODES, stored(cluster, Resource.GPU_NODES, "b"))

        assert (failed, world.gpus()) == (({"a": 4, "b": 0}, 1, 0), {"a": 4, "b": 2})


def fails(of: object) -> bool:
    """Fail as a bug would."""
    raise ZeroDivisionError(of)


def stored(cluster: SimulatedCluster, resource: Resource, name: str) -> RawObject:
    return next(one for one in cluster.objects(resource) if one["metadata"]["name"] == name)
