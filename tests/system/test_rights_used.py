"""Leeboard uses all its rights, and needs no others: an audit log against the table of rights."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from app.cluster.admit import environment, shape
from app.control.leadership.rights import rights_of, rights_to_owners
from app.model.rights import ADMISSION, Right
from app.settings import Settings
from tests.cluster.patched import patched
from tests.system import rendered
from tests.system.api import JOBS, POD_GROUPS, QUEUES, RUN_FOR, Api, Object, gang, gpu_node, job, pod, pod_group, queue
from tests.system.audit import Verb, rights_used
from tests.system.bed import HOST, ApiServerOptions, Audit, Bed, free_ports
from tests.system.cluster import ROOT, SCHEDULER_CONFIG, SHIPPED_URL, install, start_leeboard
from tests.system.gpus import DevicePlugins
from tests.system.identities import User
from tests.system.machines import SIMULATED, machine_node
from tests.system.waiting import eventually

EVENTS = "/apis/events.k8s.io/v1/events"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
RESERVATIONS = "/api/v1/namespaces/kai-resource-reservation/pods"
MIN_MEMBER = "kai.scheduler/batch-min-member"
WITHIN_S = 30.0
"""Not a promise of Leeboard, but the time that a busy machine may need."""

USED = {"scheduler_lease": "leeboard/leeboard-scheduler"}
"""The settings under which every right is used: those of the form `extender-only`, with GPU sharing."""


OF_JOBS = {("batch", "jobs", "list"), ("batch", "jobs", "watch")}
"""The owners that exist here; a right to kinds that are not installed cannot be used."""


UNSERVED = {("scheduling.k8s.io", "podgroups", "watch"), ("scheduling.k8s.io", "podgroups/status", "patch")}
"""Rights to native PodGroups, which the API server does not serve here; test_native_groups.py needs them."""


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Bed]:
    """A control plane that logs Leeboard's requests, with its roles as shipped."""
    options = ApiServerOptions(audit=Audit.WRITES_AND_LEEBOARD)
    with Bed(tmp_path / "bed", options=options) as bed:
        bed.start_control_plane()
        bed.start_controller_manager()
        bed.start_kwok()
        yield bed


def test_every_right_is_used_and_no_other_is_needed(audited: Bed) -> None:
    (operations,) = free_ports(1)
    # Changes of admission are made by hand here, so that its certificates are not needed.
    settings = Settings(**USED)  # type: ignore[arg-type] # words, as in the environment
    every = OF_JOBS | named((*rights_of(settings), *ADMISSION))
    needed, granted = every - UNSERVED, every | named(rights_to_owners(settings))

    with audited.api() as api, DevicePlugins(audited):
        install(api)
        start_scheduler(audited, api, start_leeboard(audited, operations_port=str(operations), **USED))
        use_everything(api)
    # Sends a token, which Leeboard has to review.
    told = doctor(audited, f"http://{HOST}:{operations}")

    eventually(
        lambda: rights_used(audited.audit_log),
        until=lambda used: needed <= used <= granted,
        within_s=WITHIN_S,
        what=f"these rights are used, and no others but for owners of pods: {needed}",
    )
    assert "[+] active " in told
    assert "[+] extender " in told


def named(rights: Iterable[Right]) -> set[Verb]:
    """Return rights in the terms of the log."""
    return {(right.group, right.resource, right.verb) for right in rights}


def use_everything(api: Api) -> None:
    """Let Leeboard use all its features; each step waits for its visible effect."""
    api.create(gpu_node("rights", gpus=4))
    api.create_all([queue("lender", deserved=2), queue("owner", deserved=2), queue("shut", limit=0)])

    # Binding; the status of queue and group; a member that ends, whose result is only known by a read.
    brief: Object = {"annotations": {RUN_FOR: "500ms"}, "spec": {"restartPolicy": "Never"}}
    api.create(pod_group("brief", min_member=2, queue="lender"))
    api.create_all(pod(f"brief-{index}", queue="lender", gang="brief", **brief) for index in range(2))
    api.wait_for_phase("Succeeded", "brief-0", "brief-1", within_s=WITHIN_S)
    _wait_for_status(api, f"{QUEUES}/lender")
    _wait_for_status(api, _default(POD_GROUPS, "brief"))

    # A gang by its owner's annotation: its PodGroup is written, and rewritten when the owner changes.
    together = job("together", parallelism=2, template=pod("member", queue="lender", annotations={RUN_FOR: "1h"}))
    together["metadata"]["annotations"] = {MIN_MEMBER: "2"}
    api.create(together)
    eventually(lambda: _minimum(api, "together"), until=lambda seen: seen == 2, within_s=WITHIN_S, what="it is written")
    api.patch(_default(JOBS, "together"), {"metadata": {"annotations": {MIN_MEMBER: "1"}}})
    eventually(
        lambda: _minimum(api, "together"), until=lambda seen: seen == 1, within_s=WITHIN_S, what="it is rewritten"
    )
    api.delete_now(_default(JOBS, "together"))

    # A GPU share: a reservation pod is created, gets the name of its GPU, and is deleted.
    api.create(machine_node(f"{SIMULATED}rights", gpus=1))
    api.create(as_admitted(pod("part", queue="lender", gpus=0, annotations={"gpu-fraction": "0.5"})))
    api.wait_for_phase("Running", "part", within_s=WITHIN_S)
    eventually(lambda: _told_devices(api), within_s=WITHIN_S, what="the reservation is told its device")
    api.delete_now("/api/v1/namespaces/default/pods/part")
    eventually(lambda: not api.items(RESERVATIONS), within_s=WITHIN_S, what="nothing is reserved any more")
    api.delete_now(f"/api/v1/nodes/{SIMULATED}rights")

    # An event that says why a pod is pending.
    api.create(pod("shut", queue="shut"))
    eventually(lambda: _reasons(api), until=lambda seen: "OverLimit" in seen, within_s=WITHIN_S, what="an event")

    # Victims that a budget protects: queried, marked, refused by the Eviction API, deleted.
    api.create_all(pod(f"guarded-{index}", queue="lender", labels={"app": "guarded"}) for index in range(4))
    api.wait_for_phase("Running", *(f"guarded-{index}" for index in range(4)), within_s=WITHIN_S)
    guard(api, "guarded", 4)
    api.create_all(gang("owned", size=2, queue="owner"))
    api.wait_for_phase("Running", "owned-0", "owned-1", within_s=WITHIN_S)


def as_admitted(item: Object) -> Object:
    """Return a pod as our webhook has it stored: gated, and with the variables for its GPU."""
    admitted: Object = patched(item, [*environment.devices(item), *shape.held(item)])
    return admitted


def guard(api: Api, app: str, count: int) -> None:
    """Create a PodDisruptionBudget that allows no disruption of these pods, and wait until it has counted them."""
    spec = {"minAvailable": count, "selector": {"matchLabels": {"app": app}}}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    api.create({**head, "metadata": {"name": app, "namespace": "default"}, "spec": spec})
    eventually(
        lambda: api.get(f"{BUDGETS}/{app}").get("status", {}),
        until=lambda seen: seen.get("currentHealthy") == count,
        within_s=WITHIN_S,
        what="the budget has counted its pods",
    )


def start_scheduler(bed: Bed, api: Api, extender_url: str) -> None:
    """Start the kube-scheduler beside Leeboard, which takes the lease: its right to do so is the chart's."""
    scheduler = [item for item in rendered.objects() if item["metadata"]["name"] == "leeboard-kube-scheduler"]
    (role,) = (item for item in scheduler if item["kind"] == "Role")
    (binding,) = (
        item
        for item in scheduler
        if item["kind"] == "RoleBinding"
        and item["roleRef"]["kind"] == "Role"
        and item["metadata"]["namespace"] == role["metadata"]["namespace"]
    )
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": User.SCHEDULER.value[0]}
    for item in (role, binding | {"subjects": [user]}):
        api.apply(item)
    config = yaml.safe_load(SCHEDULER_CONFIG.read_text().replace(SHIPPED_URL, extender_url))
    config["clientConnection"]["kubeconfig"] = "${KUBECONFIG}"
    bed.start_scheduler(yaml.safe_dump(config), name="own-scheduler")


def doctor(bed: Bed, url: str) -> str:
    """Return the output of `leeboard doctor` for an administrator who checks Leeboard's account."""
    options = ["--kubeconfig", str(bed.kubeconfig(User.ADMIN)), "--service-account", "leeboard/leeboard", "--url", url]
    done = subprocess.run(
        [sys.executable, "-m", "app", "doctor", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def _told_devices(api: Api) -> set[str]:
    annotations = [one["metadata"].get("annotations", {}) for one in api.items(RESERVATIONS)]
    return {each["run.ai/reserve_for_gpu_index"] for each in annotations if "run.ai/reserve_for_gpu_index" in each}


def _minimum(api: Api, owner: str) -> int | None:
    """Return the minimum in the PodGroup of an owner; None if there is none."""
    groups = [
        group
        for group in api.items(POD_GROUPS)
        if owner in {each["name"] for each in group["metadata"].get("ownerReferences", ())}
    ]
    return groups[0]["spec"]["minMember"] if groups else None


def _wait_for_status(api: Api, path: str) -> None:
    eventually(lambda: api.get(path).get("status"), within_s=WITHIN_S, what=f"{path} has a status")


def _default(collection: str, name: str) -> str:
    root, _, plural = collection.rpartition("/")
    return f"{root}/namespaces/default/{plural}/{name}"


def _reasons(api: Api) -> set[str]:
    return {event["reason"] for event in api.items(EVENTS)}
