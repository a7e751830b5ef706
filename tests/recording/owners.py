"""Objects that own pods, one or more of each kind of which grouping reads more than metadata, and their pods."""

from collections.abc import Mapping

from app.grouping import POD_LABELS
from app.grouping.table import TABLE
from app.model.owner import Kind, Owner
from app.model.pod import Pod
from tests.grouping import objects
from tests.recording.readers import Raw

NEAR = {
    "kai.scheduler/topology": "t",
    "kai.scheduler/topology-required-placement": "rack",
    "kai.scheduler/topology-preferred-placement": "host",
}
SEGMENTS = {
    "kai.scheduler/topology": "t",
    "kai.scheduler/segment-size": "2",
    "kai.scheduler/segment-topology-required-placement": "rack",
    "kai.scheduler/segment-topology-preferred-placement": "host",
}
ANNOTATIONS = {"kai.scheduler/batch-min-member": "2", "user": "u"} | NEAR
LABELS = {"kai.scheduler/queue": "q", "team": "a"}
SEGMENTED = {"replicas": 4, "template": {"metadata": {"annotations": SEGMENTS}}}
RAY_STATUS = {"rayClusterName": "train", "activeServiceStatus": {"rayClusterName": "train"}}
PACK = {"packConstraint": {"required": "rack", "preferred": "host"}}
GANG = objects.pod_gang(
    objects.clique("a", 2, "train-0", required="rack"),
    objects.clique("b", 1),
    priorityClassName="train",
    topologyConstraint=PACK,
    topologyConstraintGroupConfigs=[{"name": "both", "podGroupNames": ["a", "b"], "topologyConstraint": PACK}],
    labels=LABELS,
    annotations=NEAR,
    name="train",
)
TRAINING = {"runPolicy": {"suspend": True, "schedulingPolicy": {"minAvailable": 2}}}
ALL = (
    objects.job(labels=LABELS, annotations=ANNOTATIONS),
    objects.jobset(
        objects.replicated("a", replicas=2, parallelism=2, completions=3),
        objects.replicated("b", parallelism=2) | {"dependsOn": [{"name": "a", "status": "Ready"}]},
        order="AnyOrder",
        annotations=ANNOTATIONS,
    ),
    objects.jobset(
        objects.replicated("a", replicas=2)
        | {"template": {"metadata": {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "zone"}}}},
        order="AnyOrder",
    ),
    objects.kubeflow("TFJob", "tfReplicaSpecs", more=TRAINING, Worker=3, PS=1),
    objects.kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=1, Worker=3),
    objects.kubeflow("JAXJob", "jaxReplicaSpecs", Worker=3),
    objects.kubeflow(
        "MPIJob", "mpiReplicaSpecs", more={"launcherCreationPolicy": "WaitForWorkersReady"}, Launcher=1, Worker=2
    ),
    objects.pytorch(Master=1, Worker=SEGMENTED, more={"elasticPolicy": {"minReplicas": 3}}),
    objects.owner("trainer.kubeflow.org/v1 TrainJob", spec={"suspend": True}, labels=LABELS),
    objects.ray_cluster(
        objects.ray_group(least=2, annotations=NEAR, numOfHosts=2),
        objects.ray_group("cpu", suspend=True),
        head=NEAR,
    ),
    objects.owner("ray.io/v1 RayJob", spec={"suspend": True}, status=RAY_STATUS),
    objects.owner("ray.io/v1 RayService", spec={}, status=RAY_STATUS),
    objects.lws(policy="LeaderReady", workers=SEGMENTS),
    objects.lws(5, segments={"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}, annotations=NEAR),
    GANG,
    objects.owner("amlarc.azureml.com/v1 AmlJob", spec={"job": {"options": {"envs": {"AZUREML_NODE_COUNT": "3"}}}}),
    objects.owner("scheduling.x-k8s.io/v1alpha1 PodGroup", spec={"minMember": 3}, labels=LABELS),
)

POD_TEXTS = dict.fromkeys(POD_LABELS, "a") | {
    "jobset.sigs.k8s.io/replicatedjob-name": "a",
    "ray.io/group": "gpu",
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "1",
    "leaderworkerset.sigs.k8s.io/group-index": "0",
    "leaderworkerset.sigs.k8s.io/worker-index": "1",
    "grove.io/podgang": "train",
}


def stored(owner: Owner) -> Raw:
    """Return the object as the API server stores it."""
    metadata = {
        "name": owner.ref.name,
        "namespace": owner.namespace,
        "uid": owner.ref.uid,
        "creationTimestamp": "2026-01-31T12:00:00Z",
        "labels": dict(owner.labels),
        "annotations": dict(owner.annotations),
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "u", "controller": True}],
    }
    return {"metadata": metadata, **owner.fields}


def key_of(kind: Kind) -> tuple[str, str]:
    """Return what names a kind in the table."""
    return kind.group, kind.name


def path_of(kind: tuple[str, str]) -> str:
    """Return the API path of a kind of the table."""
    group, _ = kind
    return f"apis/{group}/v1/{TABLE[kind].plural}"


OWNERS: Mapping[tuple[str, str], list[Raw]] = {
    key: [stored(one) for one in ALL if key_of(one.ref.kind) == key]
    for key in dict.fromkeys(key_of(one.ref.kind) for one in ALL)
}


def members(owner: Owner) -> list[Pod]:
    """Return pods of an owner: one with the labels that operators write, one without any."""
    return [objects.pod(labels=POD_TEXTS, by=owner), objects.pod("train-worker-0", by=owner)]
