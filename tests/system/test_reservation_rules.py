"""The namespace of reservation pods, which hold GPUs for sharing pods: which users may write what in it."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.system import rendered
from tests.system.api import PODS, Api, ApiError, Object, pod
from tests.system.bed import Bed
from tests.system.identities import User
from tests.system.tenants import allow, of_controller, refusal, refused_patch, revoke, subject
from tests.system.waiting import eventually

PLACE = "kai-resource-reservation"
IN_PLACE = f"/api/v1/namespaces/{PLACE}/pods"
IMAGE = "registry.k8s.io/pause:3.10"
OURS_ALONE = f"Leeboard alone writes pods in namespace {PLACE}"
FORGED: Object = {"metadata": {"labels": {"runai-gpu-group": "theirs"}}}
HARMLESS: Object = {"metadata": {"labels": {"mine": "1"}}}
RUNNING: Object = {"status": {"message": "it runs"}}

OWN = {"form": "own-scheduler"}
BESIDE = {"form": "beside"}
SECURE = {"form": "beside", "profile": "secure"}
BOTH_PROFILES = [OWN, SECURE]

_numbers = count()


@pytest.fixture(scope="module")
def rules(request: pytest.FixtureRequest, session_api: Api) -> Iterator[None]:
    """Put the policies of one form and profile in force."""
    with rendered.policies_in_force(session_api, **request.param):
        yield


@pytest.fixture(scope="module", autouse=True)
def _installed(session_api: Api) -> None:
    head = {"apiVersion": "v1", "kind": "Namespace"}
    session_api.apply(head | {"metadata": {"name": rendered.NAMESPACE}})
    for template in ("rbac", "reservations"):
        for item in rendered.objects(only=f"templates/{template}.yaml"):
            session_api.apply(item)
    account = f"/api/v1/namespaces/{PLACE}/serviceaccounts/default"
    eventually(lambda: session_api.find(account), within_s=20, what="the namespace has its service account")


@pytest.fixture
def tenant(bed: Bed, api: Api) -> Iterator[Api]:
    """Yield a tenant with all rights to pods in every namespace."""
    resources = ["pods", "pods/status", "pods/ephemeralcontainers"]
    for resource in resources:
        right = f"tenant-{resource.replace('/', '-')}"
        verbs = ["create", "get", "patch", "update", "delete"]
        allow(api, right, subject(User.TENANT), group="", resource=resource, verbs=verbs)
    with bed.api(User.TENANT) as tenant:
        yield tenant
    for resource in resources:
        revoke(api, f"tenant-{resource.replace('/', '-')}")


@pytest.fixture
def leeboard(bed: Bed) -> Iterator[Api]:
    with bed.api(User.LEEBOARD) as leeboard:
        yield leeboard


def reservation(**container: object) -> Object:
    main = confined("main", resources={"limits": {"nvidia.com/gpu": "1"}}, **container)
    labels = {"app": PLACE, "runai-gpu-group": "uid-0"}
    spec: Object = {"containers": [main], "priorityClassName": "leeboard-reservation"}
    return pod(f"reservation-{next(_numbers)}", namespace=PLACE, labels=labels, spec=spec)


def confined(name: str, **more: object) -> Object:
    """Build a container that the namespace's Pod Security level allows."""
    security = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"name": name, "image": IMAGE, "securityContext": security} | more


def path(made: Object) -> str:
    return f"{IN_PLACE}/{made['metadata']['name']}"


@pytest.mark.parametrize("rules", [OWN, BESIDE, SECURE], indirect=True, ids=str)
@pytest.mark.usefixtures("rules")
def test_reservation_pods_are_neither_gated_nor_marked_nor_refused(leeboard: Api) -> None:
    made = leeboard.create(reservation())

    assert "schedulingGates" not in made["spec"]
    assert made["spec"]["containers"][0]["resources"]["requests"].keys() == {"nvidia.com/gpu"}
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1_000_000_000, "Never")


@pytest.mark.parametrize("rules", BOTH_PROFILES, indirect=True, ids=str)
@pytest.mark.usefixtures("rules")
def test_no_other_account_creates_pods_in_the_namespace_of_reservation_pods_whatever_its_rights(
    bed: Bed, api: Api, tenant: Api
) -> None:
    plain = reservation()
    plain["metadata"]["labels"] = {}
    plain["spec"] |= {"schedulerName": "default-scheduler", "priorityClassName": ""}
    assert "Leeboard alone writes" in refusal(tenant, reservation())
    assert OURS_ALONE in refusal(tenant, plain)
    # The controller that would create the pods of a ReplicaSet in this namespace.
    with of_controller(bed, api, "replicaset-controller") as controller:
        assert OURS_ALONE in refusal(controller, plain)

    # A cluster administrator may do this, too.
    assert not refusal(api, reservation())


@pytest.mark.parametrize("rules", BOTH_PROFILES, indirect=True, ids=str)
@pytest.mark.usefixtures("rules")
def test_only_leeboard_and_kubernetes_itself_change_reservation_pods(
    bed: Bed, api: Api, tenant: Api, leeboard: Api
) -> None:
    made = leeboard.create(reservation())
    annotated: Object = {"metadata": {"annotations": {"run.ai/reserve_for_gpu_index": "GPU-2"}}}
    debugging: Object = {"spec": {"ephemeralContainers": [confined("debug")]}}

    for where in (path(made), f"{path(made)}/status"):
        assert OURS_ALONE in refused_patch(tenant, where, HARMLESS)
        for forged in (FORGED, annotated, annotated | RUNNING):
            assert "Leeboard alone writes" in refused_patch(tenant, where, forged)
    assert OURS_ALONE in refused_patch(tenant, f"{path(made)}/ephemeralcontainers", debugging)

    with ExitStack() as stack:
        scheduler = stack.enter_context(bed.api(User.SCHEDULER))
        collector = stack.enter_context(of_controller(bed, api, "generic-garbage-collector"))
        assert not refused_patch(scheduler, f"{path(made)}/status", RUNNING)
        assert not refused_patch(collector, path(made), {"metadata": {"ownerReferences": None}})
    assert not refused_patch(leeboard, path(made), annotated)
    assert api.get(path(made))["metadata"]["labels"]["runai-gpu-group"] == "uid-0"


@pytest.mark.parametrize("rules", BOTH_PROFILES, indirect=True, ids=str)
@pytest.mark.usefixtures("rules")
def test_a_stolen_token_of_leeboard_runs_nothing_but_reservation_pods_in_their_namespace(leeboard: Api) -> None:
    said = f"Leeboard's own account may only run {IMAGE} in namespace {PLACE}"
    made = leeboard.create(reservation())

    greedy = [reservation(image="miner"), reservation(command=["mine"]), reservation(args=["mine"])]
    beside = reservation()
    beside["spec"]["initContainers"] = [confined("first")]
    for item in (*greedy, beside):
        assert said in refusal(leeboard, item)
    other_image = {"spec": {"containers": [made["spec"]["containers"][0] | {"image": "miner"}]}}
    assert said in refused_patch(leeboard, path(made), other_image)


@pytest.mark.parametrize("rules", [OWN], indirect=True, ids=str)
@pytest.mark.usefixtures("rules")
def test_a_tenant_has_no_right_to_reservation_pods(bed: Bed, leeboard: Api) -> None:
    made = leeboard.create(reservation())
    with bed.api(User.TENANT) as tenant:
        assert "cannot create resource" in refusal(tenant, reservation())
        assert "cannot patch resource" in refused_patch(tenant, path(made), FORGED)
        with pytest.raises(ApiError, match="cannot delete resource"):
            tenant.delete(path(made))


@pytest.mark.parametrize("rules", [OWN], indirect=True, ids=str)
@pytest.mark.usefixtures("rules")
def test_leeboard_creates_pods_in_no_other_namespace_and_removes_only_its_own(api: Api, leeboard: Api) -> None:
    made = leeboard.create(reservation())
    elsewhere = reservation()
    elsewhere["metadata"]["namespace"] = "default"

    assert "cannot create resource" in refusal(leeboard, elsewhere)
    leeboard.delete_now(path(made))

    assert made["metadata"]["name"] not in {each["metadata"]["name"] for each in api.items(PODS)}
