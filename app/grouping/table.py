"""One row per owner kind: the function that shapes its PodGroup, the priority of its pods, and what is read of it."""

from dataclasses import dataclass

from app.grouping.case import Shaping
from app.grouping.grove import POD_GANG, grove
from app.grouping.jobset import jobset
from app.grouping.knative import KNATIVE, knative
from app.grouping.kubeflow import jax_job, mpi_job, tf_job, xgboost_job
from app.grouping.leaderworkerset import leader_worker_set
from app.grouping.pods import aml_job, apart, cron_job, job, named_group, pod_owner, runai_job, together
from app.grouping.pytorch import pytorch_job
from app.grouping.ray import RAY, ray_cluster, ray_job, ray_service
from app.model.owner import Kind
from app.model.seam import Depth

TRAIN, BUILD, INFERENCE = "train", "build", "inference"
WHOLE = Depth.WHOLE
BOTH = frozenset({"spec", "status"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The row of one kind, for all its versions."""

    plural: str = ""
    shape: Shaping | None = together
    """None means that the owner below decides, merged with the labels and annotations of this one."""
    fallback: str = TRAIN
    """The priority class when nothing names one."""
    depth: Depth = Depth.METADATA
    parts: frozenset[str] = frozenset({"spec"})
    """The fields that are read besides metadata. Changes in other fields do not affect pods."""
    suspend: tuple[str, ...] = ()
    """The path of the field that says that the object is suspended."""


UNLISTED = Row()
SUSPEND, RUN_POLICY = ("spec", "suspend"), ("spec", "runPolicy", "suspend")
RUN_AI = "run.ai"
KUBEFLOW = "kubeflow.org"
GROVE = "grove.io"
NAMED = Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup")

# Kinds that only stand between a pod and the deciding owner have a row, because they must be read, too.
TABLE: dict[tuple[str, str], Row] = {
    ("", "Pod"): Row(plural="pods", shape=pod_owner),
    ("apps", "Deployment"): Row(plural="deployments", shape=apart, fallback=INFERENCE),
    ("apps", "ReplicaSet"): Row(plural="replicasets"),
    ("apps", "StatefulSet"): Row(plural="statefulsets"),
    ("batch", "Job"): Row(plural="jobs", shape=job, depth=WHOLE, suspend=SUSPEND),
    ("batch", "CronJob"): Row(plural="cronjobs", shape=cron_job),
    ("jobset.x-k8s.io", "JobSet"): Row(plural="jobsets", shape=jobset, depth=WHOLE, suspend=SUSPEND),
    (KUBEFLOW, "TFJob"): Row(plural="tfjobs", shape=tf_job, depth=WHOLE, suspend=RUN_POLICY),
    (KUBEFLOW, "XGBoostJob"): Row(plural="xgboostjobs", shape=xgboost_job, depth=WHOLE, suspend=RUN_POLICY),
    (KUBEFLOW, "JAXJob"): Row(plural="jaxjobs", shape=jax_job, depth=WHOLE, suspend=RUN_POLICY),
    (KUBEFLOW, "MPIJob"): Row(plural="mpijobs", shape=mpi_job, depth=WHOLE, suspend=RUN_POLICY),
    (KUBEFLOW, "PyTorchJob"): Row(plural="pytorchjobs", shape=pytorch_job, depth=WHOLE, suspend=RUN_POLICY),
    (KUBEFLOW, "Notebook"): Row(plural="notebooks", fallback=BUILD),
    (KUBEFLOW, "ScheduledWorkflow"): Row(plural="scheduledworkflows"),
    ("trainer.kubeflow.org", "TrainJob"): Row(plural="trainjobs", shape=None, depth=WHOLE, suspend=SUSPEND),
    ("argoproj.io", "Workflow"): Row(plural="workflows", shape=None),
    (RUN_AI, "TrainingWorkload"): Row(plural="trainingworkloads", shape=None),
    (RUN_AI, "InteractiveWorkload"): Row(plural="interactiveworkloads", shape=None),
    (RUN_AI, "DistributedWorkload"): Row(plural="distributedworkloads", shape=None),
    (RUN_AI, "InferenceWorkload"): Row(plural="inferenceworkloads", shape=None),
    (RUN_AI, "DistributedInferenceWorkload"): Row(plural="distributedinferenceworkloads", shape=None),
    (RUN_AI, "RunaiJob"): Row(plural="runaijobs", shape=runai_job),
    ("nvidia.com", "DynamoGraphDeployment"): Row(plural="dynamographdeployments", shape=None),
    (RAY, "RayCluster"): Row(plural="rayclusters", shape=ray_cluster, depth=WHOLE, suspend=SUSPEND),
    (RAY, "RayJob"): Row(plural="rayjobs", shape=ray_job, depth=WHOLE, parts=BOTH, suspend=SUSPEND),
    (RAY, "RayService"): Row(plural="rayservices", shape=ray_service, depth=WHOLE, parts=BOTH),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): Row(
        plural="leaderworkersets", shape=leader_worker_set, depth=WHOLE
    ),
    (GROVE, "PodGangSet"): Row(plural="podgangsets", shape=grove),
    (GROVE, "PodCliqueSet"): Row(plural="podcliquesets", shape=grove),
    (GROVE, "PodCliqueScalingGroup"): Row(plural="podcliquescalinggroups", shape=grove),
    (GROVE, "PodClique"): Row(plural="podcliques", shape=grove),
    (POD_GANG.group, POD_GANG.name): Row(plural="podgangs", shape=grove, depth=WHOLE),
    (KNATIVE, "Service"): Row(plural="services", shape=knative, fallback=INFERENCE),
    (KNATIVE, "Configuration"): Row(plural="configurations", shape=knative, fallback=INFERENCE),
    (KNATIVE, "Revision"): Row(plural="revisions", shape=knative, fallback=INFERENCE),
    ("amlarc.azureml.com", "AmlJob"): Row(plural="amljobs", shape=aml_job, depth=WHOLE),
    ("egx.nvidia.io", "SPOTRequest"): Row(plural="spotrequests", fallback=INFERENCE),
    ("machinelearning.seldon.io", "SeldonDeployment"): Row(plural="seldondeployments"),
    ("kubevirt.io", "VirtualMachineInstance"): Row(plural="virtualmachineinstances"),
    ("workspace.devfile.io", "DevWorkspace"): Row(plural="devworkspaces"),
    ("tekton.dev", "PipelineRun"): Row(plural="pipelineruns"),
    ("tekton.dev", "TaskRun"): Row(plural="taskruns"),
    (NAMED.group, NAMED.name): Row(plural="podgroups", shape=named_group, depth=WHOLE),
}

RESOURCES: tuple[tuple[str, str], ...] = tuple((group, row.plural) for (group, _), row in TABLE.items() if group)
"""API group and plural of every kind in the table, for RBAC. Pods are excluded, because they are always followed."""


def row_of(kind: Kind) -> Row:
    """Return the row of a kind. All kinds without a row use the same default row."""
    return TABLE.get((kind.group, kind.name), UNLISTED)
