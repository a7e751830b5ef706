"""Requests to an autoscaler: only for groups that lack nothing but nodes, in either way, and no longer than needed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.cluster.encode.scaling import NOBODY
from app.control.autoscaler.autoscaler import AGAIN_AFTER_S, LOOK_AGAIN_S, LOOK_S, REFUSED_PAUSE_S
from app.control.autoscaler.provisioning import LOOK_AGAIN_S as LOOK_FOR_KIND_S
from app.control.autoscaler.provisioning import TEMPLATES
from app.control.autoscaler.scaling_pods import MOST
from app.control.leadership.rights import rights_of
from app.model.marks import ASK_MARKER, GATE
from app.model.names import GroupKey
from app.model.seam import ForbiddenError, KubeError, RawObject, Resource, UnavailableError
from app.settings import Settings
from app.simulation import manifests
from app.simulation.cluster import Ref
from app.simulation.manifests import Job, Quota
from tests.control.gpu_machines import sharer
from tests.control.wired import FickleCluster, World, furnished, living, passes

KIND = ("autoscaling.x-k8s.io/v1", "ProvisioningRequest")
REQUESTS = "apis/autoscaling.x-k8s.io/v1/provisioningrequests"
NAMESPACE = "kai-scale-adjust"
AFTER_S = 30.0
ASKED_S = AFTER_S + 2 * LOOK_S
"""After this time all requests have been written."""
SETTLED_S = 2 * LOOK_S
GANG = GroupKey("q", "gang")


class Writable(FickleCluster):
    """A cluster that can refuse objects of any kind."""

    async def create_object(self, path: str, namespace: str, raw: RawObject) -> None:
        await self._begin("create_object")
        await super().create_object(path, namespace, raw)


def serving(cluster: FickleCluster | None = None) -> FickleCluster:
    """Return a cluster that knows ProvisioningRequests."""
    cluster = cluster or furnished(cluster=Writable())
    cluster.serve(*KIND, REQUESTS)
    cluster.serve("v1", "PodTemplate", TEMPLATES)
    return cluster


@asynccontextmanager
async def asking(
    way: str = "provisioning-request", cluster: FickleCluster | None = None, **settings: Any
) -> AsyncIterator[World]:
    """Run Leeboard with an autoscaler, in a cluster without nodes."""
    async with living(cluster=cluster or serving(), autoscaling=way, autoscaling_after_s=AFTER_S, **settings) as world:
        yield world


def gang(world: World, *, size: int = 2, name: str = "gang", **more: Any) -> list[RawObject]:
    return world.gang(name, size=size, gates=[GATE], **more)


def requests(world: World) -> list[RawObject]:
    return world.cluster.objects(REQUESTS)


def counts(world: World) -> list[int]:
    """Return for how many pods each ProvisioningRequest asks."""
    return [sum(one["count"] for one in request["spec"]["podSets"]) for request in requests(world)]


def scaling_pods(world: World) -> list[RawObject]:
    return [pod for pod in world.cluster.objects(Resource.PODS) if pod["metadata"]["namespace"] == NAMESPACE]


def answer(world: World, kind: str, message: str) -> None:
    """Let the autoscaler set a condition of the one request."""
    (request,) = requests(world)
    condition = {"type": kind, "status": "True", "message": message}
    world.cluster.patch(Ref.of(REQUESTS, request), {"status": {"conditions": [condition]}})


def limit(world: World, gpus: int) -> None:
    spec = manifests.queue("q", None, Quota(gpus=0, limit=gpus))["spec"]
    world.cluster.patch(Ref(resource=Resource.QUEUES, name="q"), {"spec": spec})


# Which groups get a request


async def test_nodes_are_requested_once_a_gang_has_lacked_room_long_enough() -> None:
    async with asking() as world:
        gang(world, size=4)
        await passes(AFTER_S - LOOK_S)
        early = counts(world)
        await passes(ASKED_S)

        assert (early, counts(world)) == ([], [4])


async def test_nothing_is_requested_where_the_setting_is_off() -> None:
    async with asking("off") as world:
        gang(world)
        await passes(ASKED_S)

        assert (counts(world), scaling_pods(world), world.autoscaler.shown(GANG)) == ([], [], "")


async def test_nothing_is_requested_for_a_podgroup_above_the_limit_of_its_queue() -> None:
    async with asking() as world:
        limit(world, 1)
        gang(world, size=2)
        await passes(ASKED_S)

        assert counts(world) == []


async def test_no_more_is_requested_than_a_queue_may_use_at_once() -> None:
    async with asking() as world:
        limit(world, 5)
        for number in range(4):
            gang(world, size=2, name=f"gang{number}")
        await passes(ASKED_S)

        assert counts(world) == [2, 2]


async def test_nothing_is_requested_for_a_gang_with_missing_members() -> None:
    async with asking() as world:
        world.gang("gang", size=2, min_member=3, gates=[GATE])
        await passes(ASKED_S)

        assert counts(world) == []


async def test_nothing_is_requested_for_pods_that_the_autoscaler_sees_itself() -> None:
    async with asking() as world:
        world.gang("gang", size=2)
        await passes(ASKED_S)

        assert counts(world) == []


async def test_an_elastic_gang_requests_its_minimum_and_uses_free_nodes_for_the_rest() -> None:
    async with asking() as world:
        gang(world, size=5, min_member=2)
        await passes(ASKED_S)
        asked = counts(world)

        world.nodes("a", "b")
        await passes(ASKED_S + SETTLED_S)

        assert (asked, counts(world)) == ([2], [])


async def test_nothing_is_requested_while_victims_terminate() -> None:
    async with asking() as world:
        world.nodes("a")
        world.runs("low", "a")
        world.pod("high", priority_class="build-preemptible", gates=[GATE])
        await passes(ASKED_S)

        assert (world.cluster.evictions, counts(world)) == (["low-0"], [])


# The contents of a request


async def test_a_request_copies_only_what_placement_depends_on_from_a_pod() -> None:
    async with asking() as world:
        (pod,) = gang(world, size=1, node_selector={"pool": "a100"}, cpu=3)
        secret = {"name": "main", "image": "theirs", "env": [{"name": "TOKEN", "value": "x"}]}
        amounts = {"nvidia.com/gpu": "1", "cpu": "3", ASK_MARKER: "0"}
        world.patch(pod, spec={"containers": [{**secret, "resources": {"limits": amounts}}]})
        await passes(ASKED_S)

        ((template,), (request,)) = world.cluster.objects(TEMPLATES), requests(world)
        spec = template["template"]["spec"]
        (container,) = spec["containers"]
        assert request["spec"] == {
            "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
            "podSets": [{"podTemplateRef": {"name": template["metadata"]["name"]}, "count": 1}],
        }
        assert spec["nodeSelector"] == {"pool": "a100"}
        assert container["resources"] == {"limits": {"nvidia.com/gpu": "1", "cpu": "3"}}
        assert (container["image"], "env" in container) == ("registry.k8s.io/pause:3.10", False)
        assert not {"schedulingGates", "schedulerName", "nodeName"} & spec.keys()


async def test_a_request_is_owned_by_the_podgroup_and_deleted_with_it() -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S)

        (group,) = world.cluster.objects(Resource.POD_GROUPS)
        owner = {"apiVersion": group["apiVersion"], "kind": "PodGroup", "name": "gang", "uid": group["metadata"]["uid"]}
        made = [*requests(world), *world.cluster.objects(TEMPLATES)]
        assert [one["metadata"]["ownerReferences"] for one in made] == [[owner], [owner]]


async def test_a_single_pod_owns_its_request() -> None:
    async with asking() as world:
        pod = world.pod("one", gates=[GATE])
        await passes(ASKED_S)

        (request,) = requests(world)
        assert [one["uid"] for one in request["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]


async def test_each_shape_of_pods_has_its_own_template() -> None:
    async with asking() as world:
        world.cluster.create(
            Resource.POD_GROUPS, manifests.pod_group(Job(name="gang", queue="q", group="gang"), min_member=3)
        )
        world.pod("head", group="gang", gpus=0, cpu=1, gates=[GATE])
        for name in ("worker-a", "worker-b"):
            world.pod(name, group="gang", gpus=8, gates=[GATE])
        await passes(ASKED_S)

        containers = [one["template"]["spec"]["containers"] for one in world.cluster.objects(TEMPLATES)]
        gpus = [each["resources"]["limits"].get("nvidia.com/gpu") for (each,) in containers]
        (request,) = requests(world)
        assert sorted(zip(gpus, [one["count"] for one in request["spec"]["podSets"]], strict=True), key=str) == [
            ("8", 2),
            (None, 1),
        ]


async def test_pods_that_share_gpus_are_requested_as_many_as_fit_on_a_gpu() -> None:
    async with asking() as world:
        job = Job(name="gang", queue="q", group="gang")
        world.cluster.create(Resource.POD_GROUPS, manifests.pod_group(job, min_member=3))
        for name in ("x", "y", "z"):
            sharer(world, name, "0.5", gates=[GATE], pod_group_name="gang")
        await passes(ASKED_S)

        (template,) = world.cluster.objects(TEMPLATES)
        limits = [one["resources"]["limits"] for one in template["template"]["spec"]["containers"]]
        each = {"cpu": "0", "memory": "4Gi"}
        assert (counts(world), limits) == ([2], [{**each, "nvidia.com/gpu": "1"}, each])


async def test_other_pods_of_a_gang_make_another_request() -> None:
    async with asking() as world:
        first, *_ = gang(world, size=3)
        await passes(ASKED_S)
        (before,) = requests(world)

        world.delete(first)
        world.cluster.patch(Ref(resource=Resource.POD_GROUPS, namespace="q", name="gang"), {"spec": {"minMember": 2}})
        await passes(ASKED_S)

        (after,) = requests(world)
        assert (counts(world), before["metadata"]["name"] == after["metadata"]["name"]) == ([2], False)
        assert len(world.cluster.objects(TEMPLATES)) == 1


async def test_owners_get_one_event_that_nodes_were_requested() -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S + 3 * LOOK_AGAIN_S)

        assert world.cluster.told.count(("gang", "CapacityRequested")) == 1


# The end of a request


async def test_a_request_and_its_templates_are_deleted_when_nodes_exist_and_the_gang_starts() -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S)
        asked = counts(world)

        world.nodes("a", "b")
        await passes(SETTLED_S)

        assert (asked, requests(world), world.cluster.objects(TEMPLATES)) == ([2], [], [])
        assert world.autoscaler.shown(GANG) == ""


async def test_a_request_is_deleted_when_its_queue_may_use_no_more() -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S)

        limit(world, 1)
        await passes(SETTLED_S)

        assert requests(world) == []


async def test_a_request_survives_a_restart_and_is_not_created_twice() -> None:
    async with asking(cluster=(cluster := serving())) as world:
        gang(world)
        await passes(ASKED_S)
        (before,) = requests(world)

    async with asking(cluster=cluster) as world:
        await passes(ASKED_S)

        assert requests(world) == [before]


async def test_the_request_of_a_gang_that_was_deleted_during_a_restart_is_removed() -> None:
    async with asking(cluster=(cluster := serving())) as world:
        pods = gang(world)
        await passes(ASKED_S)
    for pod in pods:
        cluster.delete(Ref.of(Resource.PODS, pod))

    async with asking(cluster=cluster) as world:
        await passes(SETTLED_S)

        assert (requests(world), cluster.objects(TEMPLATES)) == ([], [])


async def test_requests_of_others_are_not_changed() -> None:
    cluster = serving()
    theirs = {"metadata": {"namespace": "q", "name": "theirs", "labels": 1, "annotations": []}, "spec": {"podSets": 2}}
    cluster.create(REQUESTS, theirs)

    async with asking(cluster=cluster) as world:
        gang(world)
        await passes(ASKED_S)

        assert next(one["metadata"]["name"] for one in requests(world)) == "theirs"
        assert len(requests(world)) == 2


async def test_a_request_is_reported_with_the_answer_of_the_autoscaler() -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S)
        (request,) = requests(world)
        begun = f"ProvisioningRequest {request['metadata']['name']} for 2 pods was made {world.now():.0f} s ago; "
        unanswered = world.autoscaler.shown(GANG)

        answer(world, "Provisioned", "Capacity was provisioned.")
        await passes(0.1)

        assert unanswered == begun + "the autoscaler has not answered."
        said = "the autoscaler reports that its nodes exist or are being created: Capacity was provisioned."
        assert world.autoscaler.shown(GANG) == begun + said


async def test_a_request_that_the_autoscaler_failed_is_created_again_after_a_while() -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S)
        (before,) = requests(world)
        answer(world, "Failed", "Machines are sold out.")
        await passes(AGAIN_AFTER_S / 2)
        shown, meanwhile = world.autoscaler.shown(GANG), requests(world)
        await passes(AGAIN_AFTER_S / 2 + 3 * LOOK_S)

        (after,) = requests(world)
        assert "Machines are sold out." in shown
        assert [one["metadata"]["uid"] for one in meanwhile] == [before["metadata"]["uid"]]
        assert (after["metadata"]["name"], after["metadata"]["uid"] != before["metadata"]["uid"]) == (
            before["metadata"]["name"],
            True,
        )


@pytest.mark.parametrize(
    "status", [None, 7, "x", {"conditions": 3}, {"conditions": [1]}, {"conditions": [{"type": []}]}]
)
async def test_an_unreadable_answer_of_the_autoscaler_counts_as_none(status: object) -> None:
    async with asking() as world:
        gang(world)
        await passes(ASKED_S)
        (request,) = requests(world)

        world.cluster.patch(Ref.of(REQUESTS, request), {"status": status})
        await passes(SETTLED_S)

        assert world.autoscaler.shown(GANG).endswith("the autoscaler has not answered.")


# Failures


async def test_a_missing_kind_is_reported_and_its_installation_is_noticed() -> None:
    cluster = furnished()
    async with asking(cluster=cluster) as world:
        gang(world)
        await passes(ASKED_S)
        shown = world.autoscaler.shown(GANG)

        serving(cluster)
        await passes(LOOK_FOR_KIND_S + SETTLED_S)

        assert shown == (
            "No autoscaler is asked for nodes: this cluster has no ProvisioningRequests (autoscaling.x-k8s.io/v1): "
            "install their CRD and an autoscaler."
        )
        assert counts(world) == [2]


@pytest.mark.parametrize(
    ("error", "after_s"), [(UnavailableError("503"), SETTLED_S), (ForbiddenError("may not"), REFUSED_PAUSE_S)], ids=repr
)
async def test_a_failed_write_of_a_request_is_repeated_later(error: KubeError, after_s: float) -> None:
    async with asking() as world:
        world.cluster.errors["create_object"] += [error]
        gang(world)
        await passes(AFTER_S + LOOK_S)
        early = counts(world)
        await passes(after_s + SETTLED_S)

        assert (early, counts(world)) == ([], [2])


async def test_the_reason_why_a_request_cannot_be_written_is_reported() -> None:
    async with asking() as world:
        world.cluster.errors["create_object"] += [ForbiddenError("a policy will not have it.")]
        gang(world)
        await passes(ASKED_S)

        sentence = "No autoscaler is asked for nodes, since a ProvisioningRequest cannot be written: "
        assert world.autoscaler.shown(GANG) == sentence + "a policy will not have it."


async def test_a_replica_that_does_not_decide_requests_nothing() -> None:
    async with asking(scheduler_lease="system/lease", hostname="us") as world:
        world.cluster.holders["system/lease"] = "them_1"
        gang(world)
        await passes(ASKED_S)

        assert counts(world) == []


# Scaling pods


async def test_scaling_pods_replace_gated_pods_for_an_autoscaler() -> None:
    async with asking("scaling-pods") as world:
        gang(world, size=2, node_selector={"pool": "a100"})
        await passes(ASKED_S)

        pods = scaling_pods(world)
        assert [pod["spec"]["schedulerName"] for pod in pods] == [NOBODY] * 2
        assert [pod["spec"]["nodeSelector"] for pod in pods] == [{"pool": "a100"}] * 2
        conditions = [pod["status"]["conditions"] for pod in pods]
        assert [(one["type"], one["status"], one["reason"]) for (one,) in conditions] == [
            ("PodScheduled", "False", "Unschedulable")
        ] * 2


async def test_scaling_pods_use_no_room_and_are_deleted_when_the_gated_pods_start() -> None:
    async with asking("scaling-pods") as world:
        gang(world)
        await passes(ASKED_S)
        stood = len(scaling_pods(world))

        world.nodes("a", "b")
        await passes(SETTLED_S)

        assert (stood, scaling_pods(world), world.free_gpus()) == (2, [], {"a": 0, "b": 0})


async def test_scaling_pods_are_deleted_also_when_nodes_are_added_at_once() -> None:
    async with asking("scaling-pods") as world:
        gang(world)
        await passes(AFTER_S + LOOK_S + 1)
        stood = len(scaling_pods(world))

        world.nodes("a", "b")
        await passes(SETTLED_S)

        assert (stood, scaling_pods(world)) == (2, [])


async def test_affinity_of_scaling_pods_selects_the_same_pods_from_another_namespace() -> None:
    async with asking("scaling-pods") as world:
        (pod,) = gang(world, size=1)
        term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
        near = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        world.patch(pod, spec={"affinity": near}, metadata={"labels": {"app": "x"}})
        await passes(ASKED_S)

        (made,) = scaling_pods(world)
        ((named,),) = made["spec"]["affinity"]["podAntiAffinity"].values()
        assert named == {**term, "namespaces": ["q", NAMESPACE]}
        assert made["metadata"]["labels"]["app"] == "x"


async def test_a_gang_that_is_too_large_is_requested_in_part() -> None:
    async with asking("scaling-pods") as world:
        gang(world, size=MOST + 10)
        await passes(ASKED_S)

        assert len(scaling_pods(world)) == MOST


async def test_a_deleted_scaling_pod_is_created_again() -> None:
    async with asking("scaling-pods") as world:
        gang(world)
        await passes(ASKED_S)

        world.delete(scaling_pods(world)[0])
        await passes(LOOK_AGAIN_S + SETTLED_S)

        names = sorted(pod["metadata"]["name"] for pod in scaling_pods(world))
        assert [name[-2:] for name in names] == ["-0", "-1"]
        said = "2 scaling pods in namespace kai-scale-adjust have asked the autoscaler for nodes."
        assert said in world.autoscaler.shown(GANG)


async def test_pods_left_unmarked_by_a_failure_are_marked() -> None:
    async with asking("scaling-pods") as world:
        world.cluster.errors["write_status"] += [UnavailableError("503")] * 20
        gang(world)
        await passes(ASKED_S)
        world.cluster.errors["write_status"].clear()
        await passes(SETTLED_S)

        assert [bool(pod["status"].get("conditions")) for pod in scaling_pods(world)] == [True, True]


def test_each_way_to_request_nodes_needs_its_own_rights() -> None:
    def verbs(way: str) -> set[tuple[str, str, str]]:
        more = {*rights_of(Settings.model_validate({"autoscaling": way}))} - {*rights_of(Settings())}
        return {(right.resource, right.verb, right.namespace) for right in more}

    assert verbs("off") == set()
    assert verbs("scaling-pods") == {("pods", "create", NAMESPACE)}
    assert verbs("provisioning-request") == {
        *(("provisioningrequests", verb, "") for verb in ("list", "watch", "create", "delete")),
        *(("podtemplates", verb, "") for verb in ("get", "create", "delete")),
    }
