"""Fields that a tenant writes on the owners of their pods count for the pods: they are checked like those of pods."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import pytest

from tests.system import rendered
from tests.system.api import QUEUE_LABEL, Api, Object, collection_of, pod_group
from tests.system.bed import Bed
from tests.system.cluster import apply_all, install
from tests.system.identities import User
from tests.system.owners import CUSTOM, OWNERS, allowed, crd, custom, labelled, name, owner, path
from tests.system.tenants import TEAM, WRITES, accounts, of_controller, refusal, refused_patch, settle, subject
from tests.system.waiting import eventually

OTHER_TEAM = "team-b"
"""A queue that the tenant may not use."""
NOT_YOURS = f"You may not use queue {OTHER_TEAM}. Name a queue that is yours"
SEVERAL = "write one and the same in the label kai.scheduler/queue"
USE_QUEUES = {"group": "scheduling.run.ai", "resource": "queues", "verbs": ["use"]}
USE_CLASSES = {"group": "scheduling.k8s.io", "resource": "priorityclasses", "verbs": ["use"]}
PARTS = ["", "/status"]
EXTRA = {"apiGroups[0]": "example.com", "resources[0]": "trainings"}
NO_PODS = {"schedulerName": "default-scheduler", "containers": [{"name": "a", "image": "none"}]}


@pytest.fixture(scope="module", autouse=True)
def _rules(session_api: Api) -> Iterator[None]:
    """Put the profile `secure` in force, with a further kind that owns pods; the tenant may use one queue."""
    install(session_api)
    settle(session_api)
    kinds = [crd(kind) for kind in CUSTOM]
    apply_all(session_api, kinds)
    extra = {f"grouping.extraResources[0].{key}": value for key, value in EXTRA.items()}
    with (
        allowed(session_api, subject(User.TENANT), **USE_QUEUES, names=[TEAM]),
        rendered.policies_in_force(session_api, profile="secure", policies="off", values=extra),
    ):
        yield
    for kind in kinds:
        session_api.delete(f"{collection_of(kind)}/{kind['metadata']['name']}")


@pytest.fixture(scope="module")
def tenant(session_bed: Bed, session_api: Api) -> Iterator[Api]:
    """Yield the tenant's client, with the rights to write custom resources and the status of owners."""
    rights = [
        ("policy", "poddisruptionbudgets"),
        *(("apps", f"{plural}/status") for plural in ("replicasets", "statefulsets")),
        *(("batch", f"{plural}/status") for plural in ("jobs", "cronjobs")),
        *((version.partition("/")[0], f"{kind.lower()}s{each}") for kind, version in CUSTOM.items() for each in PARTS),
    ]
    with ExitStack() as stack:
        for group, resource in rights:
            right = allowed(session_api, subject(User.TENANT), group=group, resource=resource, verbs=WRITES)
            stack.enter_context(right)
        tenant = stack.enter_context(session_bed.api(User.TENANT))
        item = session_api.create(custom("Training"))
        may = partial(refused_patch, tenant, f"{path(item)}/status", {})
        eventually(lambda: not may(), within_s=10, what="the tenant may write the last of these kinds")
        yield tenant


WITH_STATUS = ["Job", "CronJob", "ReplicaSet", "StatefulSet"]
"""Labels of a Deployment cannot be changed this way."""
NAMINGS = [{QUEUE_LABEL: OTHER_TEAM}, {"runai/queue": OTHER_TEAM}]
OF_PODS = [{"project": OTHER_TEAM}, {"project": "team", "kai.scheduler/node-pool": "b"}]
"""Labels that name a queue on pods and in templates, and not on owners of pods."""


# -- T3: the queue of another team


@pytest.mark.parametrize("kind", OWNERS)
@pytest.mark.parametrize("other", NAMINGS, ids="+".join)
def test_owner_of_pods_cannot_name_the_queue_of_another_team(
    api: Api, tenant: Api, kind: str, other: Mapping[str, str]
) -> None:
    assert NOT_YOURS in refusal(tenant, owner(kind, template=other))
    assert NOT_YOURS in refusal(tenant, owner(kind, own=other))
    assert SEVERAL in refusal(tenant, owner(kind, own=other, template={QUEUE_LABEL: TEAM}))

    mine = tenant.create(owner(kind, own={QUEUE_LABEL: TEAM}, template={QUEUE_LABEL: TEAM}))

    changed: Mapping[str, str | None] = {QUEUE_LABEL: None} | dict(other)
    assert NOT_YOURS in refused_patch(tenant, path(mine), labelled(changed))
    if kind != "Job":
        assert NOT_YOURS in refused_patch(tenant, path(mine), of_template(kind, labelled(changed)))
    assert not refused_patch(tenant, path(mine), labelled({QUEUE_LABEL: None}))
    api.delete_now(path(mine))


def of_template(kind: str, change: Object) -> Object:
    """Build a change of an owner from that of its template."""
    changed = {"spec": {"template": change}}
    return {"spec": {"jobTemplate": changed}} if kind == "CronJob" else changed


@pytest.mark.parametrize("kind", OWNERS)
@pytest.mark.parametrize("other", OF_PODS, ids="+".join)
def test_project_of_a_template_cannot_name_the_queue_of_another_team(
    api: Api, tenant: Api, kind: str, other: Mapping[str, str]
) -> None:
    assert NOT_YOURS in refusal(tenant, owner(kind, template=other))

    mine = tenant.create(owner(kind))

    if kind != "Job":
        assert NOT_YOURS in refused_patch(tenant, path(mine), of_template(kind, labelled(other)))
    api.delete_now(path(mine))


@pytest.mark.parametrize("kind", [*OWNERS, *CUSTOM])
@pytest.mark.parametrize("other", OF_PODS, ids="+".join)
def test_project_of_an_owner_is_no_queue(api: Api, tenant: Api, kind: str, other: Mapping[str, str]) -> None:
    mine = tenant.create(owner(kind, own=other) if kind in OWNERS else custom(kind, own=other))

    assert not refused_patch(tenant, path(mine), labelled({"project": "theirs"}))
    assert NOT_YOURS in refused_patch(tenant, path(mine), labelled({QUEUE_LABEL: OTHER_TEAM}))
    api.delete_now(path(mine))


@pytest.mark.parametrize("kind", WITH_STATUS)
def test_queue_of_an_owner_cannot_be_changed_by_its_status_without_the_check(api: Api, tenant: Api, kind: str) -> None:
    mine = tenant.create(owner(kind, own={QUEUE_LABEL: TEAM}))
    said = refused_patch(tenant, f"{path(mine)}/status", labelled({QUEUE_LABEL: OTHER_TEAM}))
    assert NOT_YOURS in said, api.get(path(mine))["metadata"]["labels"]
    api.delete_now(path(mine))


def test_jobs_of_a_cron_job_cannot_name_the_queue_of_another_team(api: Api, tenant: Api) -> None:
    for labels, said in (({QUEUE_LABEL: OTHER_TEAM}, NOT_YOURS), ({"priorityClassName": "build"}, "class build")):
        item = owner("CronJob")
        item["spec"]["jobTemplate"]["metadata"] = {"labels": labels}
        assert said in refusal(tenant, item)
    item["spec"]["jobTemplate"]["metadata"] = {"labels": {QUEUE_LABEL: TEAM, "priorityClassName": "train"}}
    api.delete_now(path(tenant.create(item)))


@pytest.mark.parametrize("kind", CUSTOM)
@pytest.mark.parametrize("other", NAMINGS, ids="+".join)
def test_custom_resource_that_owns_pods_cannot_name_the_queue_of_another_team(
    tenant: Api, kind: str, other: Mapping[str, str]
) -> None:
    assert NOT_YOURS in refusal(tenant, custom(kind, own=other))

    mine = tenant.create(custom(kind, own={QUEUE_LABEL: TEAM}))

    assert NOT_YOURS in refused_patch(tenant, path(mine), labelled({QUEUE_LABEL: None} | dict(other)))
    assert not refused_patch(tenant, path(mine), {"spec": {"size": 2}})
    tenant.delete(path(mine))


BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"selector": {}}}
READ_ANYWAY = [BUDGET, pod_group("g", min_member=1, queue=TEAM, namespace=TEAM)]


@pytest.mark.parametrize("item", READ_ANYWAY, ids=lambda item: str(item["kind"]))
def test_kinds_that_leeboard_reads_for_other_purposes_give_no_queue_of_another_team(tenant: Api, item: Object) -> None:
    metadata = {"name": name(), "namespace": TEAM, "labels": {"project": TEAM}}
    made = tenant.create(item | {"metadata": metadata})
    assert NOT_YOURS in refused_patch(tenant, path(made), labelled({QUEUE_LABEL: OTHER_TEAM}))
    assert "class build" in refused_patch(tenant, path(made), labelled({"priorityClassName": "build"}))
    tenant.delete(path(made))


def test_project_of_a_template_for_another_scheduler_is_no_queue(api: Api, tenant: Api) -> None:
    theirs = owner("Deployment", template={"project": OTHER_TEAM})
    theirs["spec"]["template"]["spec"] = NO_PODS

    made = tenant.create(theirs)

    ours = {"spec": {"template": {"spec": {"schedulerName": "kai-scheduler"}}}}
    assert NOT_YOURS in refused_patch(tenant, path(made), ours)
    api.delete_now(path(made))


def test_queue_named_by_a_right_does_not_block_users_who_change_other_fields(api: Api, tenant: Api) -> None:
    speaking = {QUEUE_LABEL: OTHER_TEAM, "priorityClassName": "build", "kai.scheduler/preemptibility": "preemptible"}
    job, training = api.create(owner("Job", own=speaking)), api.create(custom("Training", own=speaking))

    assert eventually(lambda: api.get(path(job)).get("status"), within_s=20, what="its controller tells of the Job")
    for made, change in ((job, {"spec": {"suspend": False}}), (training, {"spec": {"size": 2}})):
        assert not refused_patch(tenant, path(made), change | labelled({"mine": "1"}))
        assert not refused_patch(tenant, f"{path(made)}/status", {"status": {"active": 1}})
        assert not refused_patch(tenant, path(made), labelled({QUEUE_LABEL: None, "priorityClassName": None}))
        api.delete_now(path(made))


def test_user_with_the_right_to_a_queue_may_name_it_on_an_owner(api: Api, tenant: Api) -> None:
    made = tenant.create(custom("Training"))
    named = labelled({QUEUE_LABEL: OTHER_TEAM})
    assert NOT_YOURS in refused_patch(tenant, path(made), named)
    with allowed(api, subject(User.TENANT), **USE_QUEUES, names=[OTHER_TEAM]):
        eventually(lambda: not refused_patch(tenant, path(made), named), within_s=10, what="the right counts")
    tenant.delete(path(made))


def test_objects_written_by_an_operator_are_checked_by_the_service_accounts_of_the_namespace(
    bed: Bed, api: Api
) -> None:
    item = custom("Training", own={QUEUE_LABEL: OTHER_TEAM})
    operators = {"kind": "ServiceAccount", "name": "trainings", "namespace": "kube-system"}
    write = {"group": "example.com", "resource": "trainings", "verbs": WRITES}
    with of_controller(bed, api, "trainings") as operator, allowed(api, operators, **write):
        eventually(lambda: NOT_YOURS in refusal(operator, item), within_s=10, what="the operator may write its kind")
        with allowed(api, accounts(), **USE_QUEUES, names=[OTHER_TEAM]):
            eventually(lambda: not refusal(operator, item), within_s=10, what="the right counts")
    api.delete(path(item))


# -- T8: priority


MAKERS = {"job": partial(owner, "Job"), "workflow": partial(custom, "Workflow"), "gang": partial(custom, "PodGang")}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("key", ["priorityClassName", "ray.io/priority-class-name"])
def test_priority_class_of_an_owner_needs_a_right(api: Api, tenant: Api, make: Callable[..., Object], key: str) -> None:
    said = "You may not use priority class build. Name train or build-preemptible"
    assert said in refusal(tenant, make(own={key: "build"}))

    mine = tenant.create(make(own={key: "train"}))

    raised = labelled({key: "build"})
    assert said in refused_patch(tenant, path(mine), raised)
    assert not refused_patch(tenant, path(mine), labelled({key: "build-preemptible"}))
    with allowed(api, subject(User.TENANT), **USE_CLASSES, names=["build"]):
        eventually(lambda: not refused_patch(tenant, path(mine), raised), within_s=10, what="the right counts")
    api.delete_now(path(mine))


def test_priority_class_in_the_spec_of_a_pod_gang_needs_a_right(tenant: Api) -> None:
    raised = {"priorityClassName": "build"}
    assert "You may not use priority class build" in refusal(tenant, custom("PodGang", spec=raised))
    both = custom("PodGang", spec=raised, own={"priorityClassName": "inference"})
    assert "names several priority classes; write one" in refusal(tenant, both)
    assert not refusal(tenant, custom("Workflow", spec=raised))
    mine = tenant.create(custom("PodGang", spec={"priorityClassName": "train"}))
    assert "You may not use priority class build" in refused_patch(tenant, path(mine), {"spec": raised})


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_preemptibility_of_an_owner_is_fixed_at_its_creation(
    api: Api, tenant: Api, make: Callable[..., Object]
) -> None:
    firm = {"kai.scheduler/preemptibility": "non-preemptible"}
    soft = {"kai.scheduler/preemptibility": "preemptible"}
    for own, later in ((soft, firm), (firm, soft), ({}, firm), (soft, {"kai.scheduler/preemptibility": None})):
        mine = tenant.create(make(own=own))
        said = refused_patch(tenant, path(mine), labelled(later))
        assert "of an owner of pods is fixed once the owner is created" in said
        assert not refused_patch(tenant, path(mine), labelled(own | {"mine": "1"}))
        api.delete_now(path(mine))


# -- fields that every user may write


ODD: list[object] = [
    None,
    5,
    "text",
    [],
    {"template": "text"},
    {"template": None, "jobTemplate": None},
    {"template": {"metadata": [], "spec": "text"}},
    {"template": {"metadata": {"labels": {QUEUE_LABEL: 5, "project": {}}}, "spec": None}},
    {"template": {"metadata": {"labels": "text"}, "spec": {"schedulerName": 5, "serviceAccountName": []}}},
    {"jobTemplate": {"metadata": 5, "spec": {"template": [1]}}, "template": {}},
    {"priorityClassName": {}},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("kind", ["Training", "PodGang"])
def test_no_shape_of_a_custom_resource_makes_the_policies_fail(api: Api, tenant: Api, kind: str, odd: object) -> None:
    speaking = {QUEUE_LABEL: TEAM, "project": TEAM, "priorityClassName": "train"}
    item = custom(kind, own=speaking)
    item["spec"] = odd
    assert not refusal(tenant, item)
    assert not refused_patch(tenant, path(item), labelled({"mine": "1"}))
    assert not refused_patch(tenant, path(item), labelled({"project": None, "priorityClassName": "build-preemptible"}))
    assert NOT_YOURS in refused_patch(tenant, path(item), labelled({QUEUE_LABEL: OTHER_TEAM}))
    assert "class build" in refused_patch(tenant, path(item), labelled({"priorityClassName": "build"}))
    api.delete(path(item))
