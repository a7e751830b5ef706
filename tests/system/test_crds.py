"""The shipped CRDs: good objects are accepted, wrong ones are refused with a message that says what to write."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.api import DEFAULT_PODS, Api, ApiError, Object, pod, pod_group
from tests.system.bed import Bed
from tests.system.cluster import SCHEDULER_CONFIG, connected, install
from tests.system.identities import User

TOPOLOGIES = "/apis/kai.scheduler/v1alpha1/topologies"
OPEN = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
MAY = [
    *(("", kind, "", verb) for kind in ("nodes", "pods") for verb in ("list", "watch")),
    *(("scheduling.run.ai", kind, "", verb) for kind in ("queues", "podgroups") for verb in ("list", "watch")),
    *(("kai.scheduler", "topologies", "", verb) for verb in ("list", "watch")),
    *(("scheduling.k8s.io", "priorityclasses", "", verb) for verb in ("list", "watch")),
    ("", "pods", "", "get"),
    ("", "pods", "binding", "create"),
    ("", "pods", "status", "patch"),
    ("", "pods", "eviction", "create"),
    ("", "pods", "", "delete"),
    ("", "pods", "", "patch"),
    ("policy", "poddisruptionbudgets", "", "list"),
    ("scheduling.run.ai", "queues", "status", "patch"),
    ("scheduling.run.ai", "podgroups", "status", "patch"),
    ("events.k8s.io", "events", "", "create"),
]
MAY_NOT = [
    ("", "pods", "", "create"),
    ("", "pods", "", "deletecollection"),
    ("", "pods", "exec", "create"),
    ("", "nodes", "", "get"),
    ("", "nodes", "", "patch"),
    ("", "secrets", "", "get"),
    ("events.k8s.io", "events", "", "patch"),
    ("scheduling.run.ai", "queues", "", "patch"),
    ("scheduling.run.ai", "podgroups", "", "delete"),
    ("kai.scheduler", "topologies", "", "patch"),
    ("policy", "poddisruptionbudgets", "", "patch"),
    ("rbac.authorization.k8s.io", "clusterroles", "", "escalate"),
]


@pytest.fixture
def installed(bed: Bed, api: Api) -> Iterator[Bed]:
    install(api)
    yield bed
    api.empty(TOPOLOGIES)


def kubectl(bed: Bed, *arguments: str, stdin: object = None) -> tuple[int, str]:
    """Run kubectl as an administrator; return its exit status and all its output."""
    command: list[str | Path] = [bed.programs / "kubectl", f"--kubeconfig={bed.kubeconfig(User.ADMIN)}", *arguments]
    text = yaml.safe_dump(stdin) if stdin is not None else None
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def applied(bed: Bed, item: Object) -> str:
    """Apply one object, and return the output of kubectl."""
    return kubectl(bed, "apply", "-f", "-", stdin=item)[1]


def queue(**spec: object) -> Object:
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec}


def gpu_queue(**gpu: object) -> Object:
    return queue(resources={"gpu": gpu})


def topology(*labels: str, **aliases: str) -> Object:
    levels = [{"nodeLabel": label} | ({"alias": aliases[label]} if label in aliases else {}) for label in labels]
    head = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t"}}
    return head | {"spec": {"levels": levels}}


@pytest.mark.parametrize(
    "item",
    [
        queue(resources={"gpu": OPEN, "cpu": OPEN, "memory": OPEN}, displayName="Q", priority=200),
        queue(parentQueue="not-there-yet", resources={}),
        queue(resources={"gpu": {"quota": 0.5, "limit": 1.5}, "cpu": {"limit": 0}}, preemptMinRuntime="1h30m"),
        gpu_queue(quota=4, limit=0),
        pod_group("g", min_member=0, queue="q"),
        pod_group("g", min_member=4, queue="q", preemptibility="", schedulingBackoff=-1, markUnschedulable=False),
        pod_group(
            "g", min_member=2, queue="q", subGroups=[{"name": "a", "minMember": 1}, {"name": "b", "parent": "a"}]
        ),
        topology("topology.kubernetes.io/zone", "rack", "kubernetes.io/hostname"),
    ],
)
def test_manifests_of_kai_users_are_accepted(installed: Bed, item: Object) -> None:
    assert "created" in applied(installed, item)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (queue(), "resources must be specified: write spec.resources with gpu, cpu and memory"),
        (queue(resources=None), "resources must be specified: write spec.resources with gpu, cpu and memory"),
        (queue(resources={}, resourceQuota={}), 'unknown field "spec.resourceQuota"'),
        (queue(parentQueue="q", resources={}), "a queue cannot be its own parent; name another queue"),
        (gpu_queue(quota=-2), "write a number of GPUs from 0 to 9007199254740, or -1 for no limit"),
        (gpu_queue(limit=1e300), "write a number of GPUs from 0 to 9007199254740, or -1 for no limit"),
        (queue(resources={"memory": {"quota": 1e10}}), "write a number of megabytes (10^6 bytes) from 0 to 9007199254"),
        (gpu_queue(overQuotaWeight=-1), "write a weight from 0 (none of the surplus) to 1000000"),
        (gpu_queue(quota="4"), "must be of type number"),
        (queue(resources={}, reclaimMinRuntime="1w"), "write a number and a unit of ns, us, ms, s, m or h"),
        (pod_group("g", min_member=-1, queue="q"), "write how many pods must start together, from 1 to 100000"),
        (pod_group("g", min_member=1, queue="q", preemptibility="no"), 'supported values: "preemptible", "non-preempt'),
        (pod_group("g", min_member=1, queue="q", schedulingBackoff=2), "write 1 (try once) or -1 (try for ever)"),
        (pod_group("g", min_member=1, queue="q", subGroups=[{"name": "a"}, {"name": "a"}]), "Duplicate value"),
        (topology("rack", "rack"), "list every level once, from the widest to the narrowest"),
        (topology("kubernetes.io/hostname", "rack"), "is the narrowest level there is; list it last"),
        (topology("zone", "rack", zone="row", rack="row"), "an alias is used twice, or is a nodeLabel"),
        (topology("zone", "rack", zone="rack"), "an alias is used twice, or is a nodeLabel"),
        (topology("my rack"), "write a key such as topology.kubernetes.io/zone"),
        (topology(), "should have at least 1 items"),
        (topology(*(f"level-{number}" for number in range(17))), "must have at most 16 items"),
    ],
)
def test_invalid_objects_are_refused_with_a_message(installed: Bed, item: Object, message: str) -> None:
    assert message in applied(installed, item)


def test_the_levels_of_a_topology_are_stored(installed: Bed) -> None:
    applied(installed, topology("zone", "rack"))

    assert "levels cannot be changed; create another Topology" in applied(installed, topology("zone", "row"))
    assert "configured" in applied(installed, topology("zone", "rack", rack="row"))


def test_kubectl_shows_the_levels_of_a_topology(installed: Bed) -> None:
    applied(installed, topology("zone", "rack"))

    shown = kubectl(installed, "get", "topology", "t")[1]

    assert [line.split()[:-1] for line in shown.splitlines()] == [
        ["NAME", "WIDEST", "SECOND", "THIRD"],
        ["t", "zone", "rack"],
    ]


def test_kubectl_shows_queues_and_podgroups(installed: Bed, api: Api) -> None:
    api.create(queue(parentQueue="default-parent-queue", priority=7, displayName="Team", resources={}))
    gpus = {"deserved": "4", "fairShare": "5500m", "allocated": "5", "requested": "7"}
    amounts = {kind: {"cpu": "1", "nvidia.com/gpu": text} for kind, text in gpus.items()}
    valid = {"conditions": [{"type": "OverQuota", "status": "False"}, {"type": "Valid", "status": "True"}]}
    api.patch("/apis/scheduling.run.ai/v2/queues/q/status", {"status": amounts | valid})
    api.create(pod_group("g", min_member=3, queue="q"))
    reasons = [{"reason": "OverLimit", "message": "over"}]
    condition = {"type": "UnschedulableOnNodePool", "nodePool": "default", "status": "True", "reasons": reasons}
    api.patch(
        "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups/g/status",
        {"status": {"running": 1, "pending": 2, "schedulingConditions": [condition]}},
    )

    queues, groups = kubectl(installed, "get", "gq", "q")[1], kubectl(installed, "get", "pg")[1]

    titles = ["PRIORITY", "PARENT", "DISPLAYNAME", "VALID", "DESERVED", "FAIRSHARE", "ALLOCATED", "REQUESTED"]
    assert [line.split()[:-1] for line in queues.splitlines()] == [
        ["NAME", *titles],
        ["q", "7", "default-parent-queue", "Team", "True", "4", "5500m", "5", "7"],
    ]
    assert [line.split()[:6] for line in groups.splitlines()] == [
        ["NAME", "QUEUE", "MINMEMBER", "RUNNING", "PENDING", "REASON"],
        ["g", "q", "3", "1", "2", "OverLimit"],
    ]


def test_the_amounts_of_a_status_are_stored_as_written(installed: Bed, api: Api) -> None:
    api.create(queue(resources={}))
    amounts = {"nvidia.com/gpu": "1500m", "cpu": 4, "memory": "8Gi"}
    kinds = ("allocated", "allocatedNonPreemptible", "requested", "deserved", "fairShare")
    seconds = {"nvidia.com/gpu": "1.5", "cpu": "4", "memory": "0.001"}
    usage = {"updated": "2026-01-31T12:00:00.123Z", "used": seconds, "capacity": seconds}
    status = dict.fromkeys(kinds, amounts) | {"childQueues": ["a"], "usage": usage}

    with installed.api(User.LEEBOARD) as leeboard:
        leeboard.patch("/apis/scheduling.run.ai/v2/queues/q/status", {"status": status})

    assert api.get("/apis/scheduling.run.ai/v2/queues/q")["status"] == status


def test_our_priority_classes_leave_preemption_to_leeboard(installed: Bed, api: Api) -> None:
    assert installed.children
    values = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}

    classes = {name: api.get(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") for name in values}

    assert {name: (each["value"], each["preemptionPolicy"]) for name, each in classes.items()} == {
        name: (value, "Never") for name, value in values.items()
    }


def test_leeboard_has_only_the_rights_for_its_work(installed: Bed) -> None:
    with installed.api(User.LEEBOARD) as leeboard:
        assert {act: _may(leeboard, *act) for act in (*MAY, *MAY_NOT)} == dict.fromkeys(MAY, True) | dict.fromkeys(
            MAY_NOT, False
        )


def test_leeboard_may_evict_and_delete_a_pod_but_not_all_at_once(installed: Bed, api: Api) -> None:
    api.create_all(pod(name) for name in ("evicted", "deleted", "kept"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}}

    with installed.api(User.LEEBOARD) as leeboard:
        leeboard.call("POST", f"{DEFAULT_PODS}/evicted/eviction", body=eviction)
        leeboard.delete(f"{DEFAULT_PODS}/deleted")
        with pytest.raises(ApiError, match="403"):
            leeboard.delete_now(DEFAULT_PODS)

    assert [each["metadata"]["name"] for each in api.items(DEFAULT_PODS)] == ["kept"]


def test_the_real_kube_scheduler_accepts_our_configuration(installed: Bed, tmp_path: Path) -> None:
    read = _as_kube_scheduler_reads_it(installed, tmp_path, {"EXTENDER_URL": "http://127.0.0.1:8888"})

    assert [profile["schedulerName"] for profile in read["profiles"]] == ["kai-scheduler"]
    assert (read["percentageOfNodesToScore"], read["podMaxBackoffSeconds"]) == (5, 2)
    assert read["leaderElection"]["leaderElect"] is False
    assert [_verbs(entry) for entry in read["extenders"]] == [
        ({"filterVerb", "prioritizeVerb", "preemptVerb"}, "5s", True),
        ({"bindVerb"}, "1m0s", True),
    ]


def _as_kube_scheduler_reads_it(bed: Bed, folder: Path, placeholders: Mapping[str, str]) -> dict[str, Any]:
    text = connected(SCHEDULER_CONFIG.read_text())
    for name, value in ({"KUBECONFIG": str(bed.kubeconfig(User.SCHEDULER))} | dict(placeholders)).items():
        text = text.replace(f"${{{name}}}", value)
    (folder / "in.yaml").write_text(text)
    command: list[str | Path] = [
        bed.programs / "kube-scheduler",
        f"--config={folder / 'in.yaml'}",
        f"--write-config-to={folder / 'out.yaml'}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    read: dict[str, Any] = yaml.safe_load((folder / "out.yaml").read_text())
    return read


def _verbs(entry: Mapping[str, object]) -> tuple[set[str], object, object]:
    return {key for key in entry if key.endswith("Verb")}, entry["httpTimeout"], entry["nodeCacheCapable"]


def _may(api: Api, group: str, resource: str, subresource: str, verb: str) -> bool:
    attributes = {
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "verb": verb,
        "namespace": "default",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    return bool(api.create(review)["status"]["allowed"])
