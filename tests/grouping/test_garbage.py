"""Whatever JSON an owner consists of, its pods get a readable PodGroup."""

from typing import Any

from hypothesis import given as each
from hypothesis import strategies as st

from app.cluster.decode.subgroups import MAX_MEMBERS, MAX_SUB_GROUPS
from app.grouping import group, parts, reading
from app.grouping.table import TABLE
from app.model.owner import Owner
from tests.grouping import objects
from tests.grouping.objects import chain, owner, read

FIELDS = (
    "job", "options", "envs", "AZUREML_NODE_COUNT", "replicatedJobs", "replicas", "template", "spec", "metadata",
    "annotations", "parallelism", "completions", "dependsOn", "name", "startupPolicy", "startupPolicyOrder",
    "runPolicy", "suspend", "schedulingPolicy", "minAvailable", "elasticPolicy", "minReplicas", "tfReplicaSpecs",
    "xgbReplicaSpecs", "jaxReplicaSpecs", "mpiReplicaSpecs", "pytorchReplicaSpecs", "Master", "Worker", "Launcher",
    "launcherCreationPolicy", "headGroupSpec", "workerGroupSpecs", "groupName", "numOfHosts", "rayClusterName",
    "activeServiceStatus", "pendingServiceStatus", "leaderWorkerTemplate", "size", "subGroupPolicy", "subGroupSize",
    "subGroupPolicyType", "workerTemplate", "podgroups", "podReferences", "topologyConstraint", "packConstraint",
    "required", "preferred", "topologyConstraintGroupConfigs", "podGroupNames", "priorityClassName", "minMember",
    "kai.scheduler/topology", "kai.scheduler/topology-required-placement", "kai.scheduler/segment-size",
    "kai.scheduler/segment-topology-required-placement", "enableInTreeAutoscaling", "maxReplicas",
    "kai.scheduler/batch-min-member", "alpha.jobset.sigs.k8s.io/exclusive-topology",
)  # fmt: skip
WORDS = ("", "2", "AnyOrder", "WaitForWorkersReady", "LeaderReady", "LeaderExcluded", "gang", "x" * 300, "\ud800")
TEXTS = st.sampled_from(WORDS) | st.text(max_size=5)
NUMBERS = st.integers(-3, 9) | st.integers() | st.just(-(10**400)) | st.just(10**400) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=30,
)
KINDS = [f"{api}/v1 {name}" if api else f"v1 {name}" for api, name in TABLE]
FEW_TEXTS = st.dictionaries(st.sampled_from([name for name in FIELDS if "/" in name]), TEXTS, max_size=3)
SAID: dict[str, list[Any]] = {
    "JobSet": ["replicatedJobs", "startupPolicy"],
    "LeaderWorkerSet": ["leaderWorkerTemplate", "startupPolicy"],
    "RayCluster": ["headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling"],
    "PyTorchJob": ["pytorchReplicaSpecs", "runPolicy", "elasticPolicy"],
    "PodGang": ["podgroups", "topologyConstraintGroupConfigs", "topologyConstraint"],
}


@st.composite
def owners(draw: st.DrawFn, kind: str) -> Owner:
    """Build an owner of any content, most of it under names that its row reads."""
    names = SAID.get(kind.rpartition(" ")[2], list(FIELDS))
    spec = draw(JSON | st.dictionaries(st.sampled_from(names), JSON, max_size=4))
    return owner(kind, "gang", annotations=draw(FEW_TEXTS), spec=spec, status=draw(JSON))


@each(st.data(), st.sampled_from(KINDS))
def test_no_owner_prevents_its_pods_from_being_grouped(data: st.DataObject, kind: str) -> None:
    below = data.draw(st.lists(st.sampled_from(["ray.io/v1 RayCluster", "batch/v1 Job"]), max_size=2))
    of = [data.draw(owners(one)) for one in (*below, kind)]
    known = [data.draw(owners(one)) for one in ("scheduler.grove.io/v1alpha1 PodGang", "ray.io/v1 RayCluster")]
    labels = {name: data.draw(TEXTS) for name in ("grove.io/podgang", "ray.io/group", *POD_LABELS)}

    found = group(objects.pod(labels=labels, annotations=data.draw(FEW_TEXTS)), chain(*of, known=known))

    assert found is not None
    assert (read(found).problem, found.name.strip()) == ("", found.name)
    assert "\n" not in found.problem


POD_LABELS = (
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
)


def test_the_podgroup_stays_within_the_bounds_that_the_decoder_reads() -> None:
    assert (reading.MAX_MEMBERS, parts.MAX_PARTS) == (MAX_MEMBERS, MAX_SUB_GROUPS)
