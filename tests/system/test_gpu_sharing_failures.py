"""Shared GPUs with failures: each case has its rule, and no pod gets a device of another pod."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.system.api import DEFAULT_PODS, QUEUES, RUN_FOR, Api, Object
from tests.system.bed import Bed
from tests.system.cluster import DEFAULT_QUEUES, documents
from tests.system.gpus import Uuids
from tests.system.identities import User
from tests.system.shares import RESERVATIONS, devices, groups, node_of, path_of_pod
from tests.system.sharing import (
    QUEUE,
    RESERVATION_PODS,
    WITHIN_S,
    Ground,
    SharingCluster,
    ground,
    same_device,
    sharer,
    whole,
)
from tests.system.tenants import TEAM, refusal, refused_patch, settle
from tests.system.waiting import eventually

EVENTS = "/api/v1/namespaces/default/events"
IN_QUEUE = "leeboard.dev/queue"

BROKEN_FOR_S = 20.0
"""For this time a device may be in dispute after a fault of this test."""


@pytest.fixture(scope="module")
def running(session_bed: Bed, session_api: Api) -> Iterator[Ground]:
    with ground(session_bed, session_api) as running:
        yield running


@pytest.fixture
def cluster(running: Ground) -> Iterator[SharingCluster]:
    with running.cluster(grace_s=BROKEN_FOR_S) as cluster:
        yield cluster


def restart(cluster: SharingCluster) -> None:
    cluster.kill_leeboard()
    cluster.start_leeboard()


def uid_of(cluster: SharingCluster, name: str) -> str:
    """Return the uid of a pod; empty when there is none."""
    found = cluster.api.find(f"{DEFAULT_PODS}/{name}")
    return found["metadata"]["uid"] if found else ""


def is_bound(cluster: SharingCluster, name: str) -> bool:
    return bool(node_of(cluster.get(name)))


def is_held_by_a_reservation(cluster: SharingCluster, uuid: str) -> bool:
    return cluster.plugins.holder(uuid).startswith(f"{RESERVATIONS}/")


def wait_until_healed(cluster: SharingCluster, one: Object) -> None:
    """Wait until the device of a pod is held for it again, by one running reservation pod that names it."""

    def healed() -> bool:
        (uuid,) = devices(one)
        marked = [
            each["metadata"].get("annotations", {}).get("run.ai/reserve_for_gpu_index")
            for each in cluster.reservations()
            if each["status"]["phase"] == "Running"
        ]
        return is_held_by_a_reservation(cluster, uuid) and marked == [uuid]

    eventually(healed, within_s=WITHIN_S, what="the device is held by one reservation pod")
    (still,) = cluster.wait_until_run(one["metadata"]["name"])
    assert (still["metadata"]["uid"], devices(still)) == (one["metadata"]["uid"], devices(one))


# -- Leeboard is killed


def test_kill_between_reservation_and_bind_continues_with_the_same_reservation_pod(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    cluster.plugins.report_after(60)
    cluster.api.create(sharer("a", "0.5"))
    (before,) = eventually(cluster.reservations, within_s=WITHIN_S, what="a reservation pod")

    restart(cluster)
    cluster.plugins.report_after(0)

    (made,) = cluster.wait_until_run("a")
    (after,) = cluster.reservations()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert cluster.plugins.held_by(after) == devices(made)


def test_kill_during_bind_keeps_the_assigned_gpu_known(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    for index in range(3):
        name = f"a-{index}"
        cluster.api.create(sharer(name, "0.3"))
        eventually(partial(is_bound, cluster, name), within_s=WITHIN_S, what=f"{name} is bound", every_s=0.001)
        restart(cluster)

    three = cluster.wait_until_run("a-0", "a-1", "a-2")
    (large, small) = cluster.run(sharer("large", "0.2"), sharer("small", "0.1"))

    assert same_device(*three, small)
    assert devices(large) != devices(small)
    assert len(cluster.reservations()) == 2


# -- the reservation pod has changed


def test_deleted_reservation_pod_of_a_gpu_in_use_is_created_again(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    (made,) = cluster.run(sharer("a", "0.5"))
    (reservation,) = cluster.reservations()

    cluster.api.delete_now(path_of_pod(reservation))

    wait_until_healed(cluster, made)
    (other,) = cluster.run(sharer("b", "0.5"))
    assert same_device(made, other)


def test_failed_reservation_pod_holds_nothing_and_is_replaced(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    (made,) = cluster.run(sharer("a", "0.5"))
    (reservation,) = cluster.reservations()

    cluster.plugins.fail(reservation)

    wait_until_healed(cluster, made)
    (now,) = cluster.reservations()
    assert now["metadata"]["uid"] != reservation["metadata"]["uid"]


def test_reservation_pod_on_a_wrong_device_is_replaced_until_one_has_the_right_device(
    cluster: SharingCluster,
) -> None:
    cluster.add_gpu_nodes(1, gpus=3)
    cluster.run(whole("in-the-way", gpus=2))
    (made,) = cluster.run(sharer("a", "0.5"))
    (reservation,) = cluster.reservations()
    cluster.delete("in-the-way")

    # The plugin assigns the first free device, which is now another one.
    cluster.api.delete_now(path_of_pod(reservation))

    wait_until_healed(cluster, made)


def test_pods_that_share_a_gpu_are_evicted_when_another_pod_gets_the_device(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=1)
    cluster.run(sharer("a", "0.5"))
    (reservation,) = cluster.reservations()

    cluster.kill_leeboard()
    cluster.api.delete_now(path_of_pod(reservation))
    thief = whole("thief")
    thief["spec"] |= {"schedulerName": "default-scheduler", "nodeName": node}
    (stolen,) = cluster.run(thief)
    cluster.start_leeboard()

    eventually(lambda: not uid_of(cluster, "a"), within_s=BROKEN_FOR_S, what="the pod that shared has left")
    assert cluster.plugins.held_by(stolen)
    assert cluster.get("thief")["status"]["phase"] == "Running"


# -- the node has changed


def test_gpus_are_reserved_again_for_their_pods_after_a_reboot_with_the_same_devices(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=2)
    (made,) = cluster.run(sharer("a", "0.5"))

    cluster.plugins.reboot(node, Uuids.SAME)

    wait_until_healed(cluster, made)
    (other,) = cluster.run(sharer("b", "0.5"))
    assert same_device(made, other)


def test_pods_on_the_old_gpus_are_evicted_after_a_reboot_with_other_devices(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=2)
    (before,) = cluster.run(sharer("a", "0.5"))

    cluster.plugins.reboot(node, Uuids.OTHER)

    eventually(lambda: not uid_of(cluster, "a"), within_s=BROKEN_FOR_S, what="the pod that shared has left")
    (after,) = cluster.run(sharer("b", "0.5"))
    assert devices(after)[0] in cluster.plugins.uuids(node)
    assert not same_device(before, after)
    cluster.wait_for_reservations(1)


def test_no_gpu_is_opened_and_running_pods_stay_while_the_device_plugin_is_away(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=2)
    (running,) = cluster.run(sharer("a", "0.5"))
    with cluster.plugins.plugin_away(node):
        cluster.api.create(sharer("b", "0.6"))
        cluster.wait_for_why("b", "GPU")
        assert len(cluster.reservations()) == 1
        assert cluster.get("a")["status"]["phase"] == "Running"

    (late,) = cluster.wait_until_run("b")
    assert not same_device(running, late)
    assert uid_of(cluster, "a") == running["metadata"]["uid"]


def test_no_pod_is_evicted_while_the_agent_cannot_read_the_devices(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=2)
    (running,) = cluster.run(sharer("a", "0.3"))

    cluster.plugins.blind(node, "the driver is being replaced")
    cluster.api.create(sharer("b", "0.8"))
    cluster.wait_for_why("b", "GPU")
    restart(cluster)
    assert uid_of(cluster, "a") == running["metadata"]["uid"]
    cluster.plugins.see_again(node)

    (other,) = cluster.wait_until_run("b")
    assert not same_device(running, other)
    assert uid_of(cluster, "a") == running["metadata"]["uid"]


def test_unhealthy_gpu_takes_no_new_pods_and_its_running_pods_stay(cluster: SharingCluster) -> None:
    # The kubelet removes the unhealthy device from its offer and still counts its holder: of three, one is left.
    cluster.add_gpu_nodes(1, gpus=3)
    (running,) = cluster.run(sharer("a", "0.3"))

    cluster.plugins.make_unhealthy(devices(running)[0], "XID 79")
    (other,) = cluster.run(sharer("b", "0.3"))

    assert not same_device(running, other)
    assert uid_of(cluster, "a") == running["metadata"]["uid"]


def test_gpu_used_beyond_its_reservations_takes_no_new_pods(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    (running,) = cluster.run(sharer("a", "0.3"))

    cluster.plugins.squat(devices(running)[0], 60000)
    (other,) = cluster.run(sharer("b", "0.3"))

    assert not same_device(running, other)


# -- the sharing pods are gone


def test_reservation_pod_is_deleted_at_once_when_the_last_pod_that_shares_the_gpu_has_finished(
    cluster: SharingCluster,
) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    short = sharer("short", "0.5", annotations={RUN_FOR: "500ms"}, spec={"restartPolicy": "Never"})
    cluster.run(sharer("long", "0.5"))
    cluster.api.create(short)
    cluster.api.wait_for_phase("Succeeded", "short", within_s=WITHIN_S)
    assert len(cluster.reservations()) == 1

    cluster.delete("long")

    cluster.wait_for_reservations(0, within_s=10)


# -- forged fields

FORGED = {
    "leeboard.dev/devices": "GPU-00000000-0000-0000-0000-000000000000",
    "leeboard.dev/device-groups": "forged-0",
    "leeboard.dev/portion": "0.01",
    "leeboard.dev/memory-mib": "1",
    "leeboard.dev/gpu-share": "0.01",
}


@pytest.fixture
def tenant(bed: Bed, api: Api) -> Iterator[Api]:
    settle(api)
    with bed.api(User.TENANT) as tenant:
        yield tenant


@pytest.mark.parametrize("mark", FORGED)
def test_users_may_not_write_the_assigned_gpus_of_a_pod(cluster: SharingCluster, tenant: Api, mark: str) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    honest, liar = (
        sharer(name, "0.5", namespace=TEAM, annotations=forged)
        for name, forged in (("honest", {}), ("liar", {mark: FORGED[mark]}))
    )

    assert mark in refusal(tenant, liar)
    tenant.create(honest)
    cluster.api.wait_for_phase("Running", "honest", within_s=WITHIN_S, namespace=TEAM)
    changed = {"metadata": {"annotations": {mark: FORGED[mark]}}}
    assert mark in refused_patch(tenant, f"/api/v1/namespaces/{TEAM}/pods/honest", changed)


@pytest.mark.parametrize("liar", [sharer("liar", "0.5"), whole("liar")], ids=["bound by us", "bound by kube-scheduler"])
def test_users_may_not_write_the_recorded_queue_of_a_pod(cluster: SharingCluster, tenant: Api, liar: Object) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    liar["metadata"] |= {"namespace": TEAM, "annotations": liar["metadata"]["annotations"] | {IN_QUEUE: "ghost"}}

    tenant.create(liar)
    cluster.api.wait_for_phase("Running", "liar", within_s=WITHIN_S, namespace=TEAM)

    path = f"/api/v1/namespaces/{TEAM}/pods/liar"
    assert cluster.api.get(path)["metadata"]["annotations"][IN_QUEUE] == QUEUE
    for status in ("", "/status"):
        assert IN_QUEUE in refused_patch(tenant, path + status, {"metadata": {"annotations": {IN_QUEUE: "ghost"}}})


def test_users_may_not_create_reservation_pods(tenant: Api, cluster: SharingCluster, api: Api) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=1)
    fake = whole("fake")
    fake["metadata"] |= {
        "namespace": RESERVATIONS,
        "labels": {"app": RESERVATIONS, "runai-gpu-group": "forged-0"},
    }

    assert "forbidden" in refusal(tenant, fake)
    assert not cluster.plugins.holder(cluster.plugins.uuids(node)[0])
    assert api.items(RESERVATION_PODS) == []


def test_forged_gpus_of_a_pending_pod_count_for_nothing(cluster: SharingCluster) -> None:
    (node,) = cluster.add_gpu_nodes(1, gpus=1)
    (running,) = cluster.run(sharer("a", "0.5"))
    # An administrator's forgery, which the policies allow: as if there were none.
    lie = {**FORGED, "leeboard.dev/devices": devices(running)[0], "leeboard.dev/device-groups": groups(running)[0]}
    cluster.api.create(sharer("waiting", "0.9", annotations=lie))
    cluster.wait_for_why("waiting", "GPU")

    (second,) = cluster.run(sharer("b", "0.5", annotations=FORGED))

    assert same_device(running, second)
    seen = cluster.sees(second)["main"]
    assert (seen["NVIDIA_VISIBLE_DEVICES"], seen["GPU_PORTION"]) == (cluster.plugins.uuids(node)[0], "0.50")


# -- edits of running pods


def allocated(cluster: SharingCluster, queue: str = QUEUE) -> float:
    """Return the GPUs that a queue is charged for."""
    return cluster.running.metric(f'leeboard_queue_allocated_gpus{{queue="{queue}"}}')


def test_edited_running_pods_stay_charged_through_a_restart(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    part, alone = cluster.run(sharer("part", "0.6"), whole("alone"))
    assert allocated(cluster) == pytest.approx(1.6)

    # Edits of an administrator, which the policies allow.
    cluster.api.patch(path_of_pod(part), {"metadata": {"annotations": {"gpu-fraction": "0.1"}}})
    for one in (part, alone):
        cluster.api.patch(path_of_pod(one), {"metadata": {"labels": {"kai.scheduler/queue": "ghost"}}})
    cluster.api.create(sharer("late", "0.5"))

    cluster.wait_for_why("late", "GPU")
    assert allocated(cluster) == pytest.approx(1.6)
    restart(cluster)
    cluster.running.wait_until_ready()
    cluster.wait_for_why("late", "GPU")
    assert allocated(cluster) == pytest.approx(1.6)
    # First, or a GPU would be opened for it when the others are deleted.
    cluster.delete("late")


def test_pods_of_a_deleted_queue_are_shown_and_belong_to_it_when_it_is_created_again(
    cluster: SharingCluster,
) -> None:
    cluster.add_gpu_nodes(1, gpus=2)
    cluster.run(whole("alone"))
    (queue,) = (one for one in documents(DEFAULT_QUEUES) if one["metadata"]["name"] == QUEUE)

    cluster.api.delete_now(f"{QUEUES}/{QUEUE}")

    eventually(lambda: allocated(cluster, "(orphaned)") == 1, within_s=WITHIN_S, what="its pod is shown as orphaned")
    cluster.api.apply(queue)
    eventually(lambda: allocated(cluster) == 1, within_s=WITHIN_S, what="the queue pays again")
    assert allocated(cluster, "(orphaned)") == 0


def test_pod_whose_claim_template_does_not_exist_holds_no_gpu_and_says_why(cluster: SharingCluster) -> None:
    cluster.add_gpu_nodes(1, gpus=1)
    lacking = whole("lacking")
    lacking["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "no-such-template"}]
    cluster.api.create(lacking)

    cluster.wait_for_why("lacking", "ResourceClaim")
    eventually(
        lambda: [one["reason"] for one in cluster.api.items(EVENTS) if one["involvedObject"]["name"] == "lacking"],
        until=lambda reasons: "NotConsidered" in reasons,
        within_s=WITHIN_S,
        what="an event on the pod says why",
    )
    cluster.run(whole("other"))
