"""The kinds that stand-in operators read and write."""

from dataclasses import dataclass

from tests.system.api import Object

RAY, KUBEFLOW, MPI = "ray.io/v1", "kubeflow.org/v1", "kubeflow.org/v2beta1"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, and where the API server lists it."""

    api_version: str
    name: str
    plural: str

    @property
    def path(self) -> str:
        """Return the path that lists all of them, over all namespaces."""
        root = "apis" if "/" in self.api_version else "api"
        return f"/{root}/{self.api_version}/{self.plural}"

    def path_of(self, item: Object) -> str:
        """Return the path of one of them."""
        metadata = item["metadata"]
        root, _, _ = self.path.rpartition("/")
        return f"{root}/namespaces/{metadata['namespace']}/{self.plural}/{metadata['name']}"

    def named(self, owner: Object, name: str, spec: Object) -> Object:
        """Build one of them in the namespace of its owner."""
        metadata = {"name": name, "namespace": owner["metadata"]["namespace"], "labels": {}, "annotations": {}}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": metadata, "spec": spec}


POD = Kind("v1", "Pod", "pods")
JOB = Kind("batch/v1", "Job", "jobs")
CRON_JOB = Kind("batch/v1", "CronJob", "cronjobs")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
RAY_CLUSTER = Kind(RAY, "RayCluster", "rayclusters")
RAY_JOB = Kind(RAY, "RayJob", "rayjobs")
RAY_SERVICE = Kind(RAY, "RayService", "rayservices")
PYTORCH_JOB = Kind(KUBEFLOW, "PyTorchJob", "pytorchjobs")
TF_JOB = Kind(KUBEFLOW, "TFJob", "tfjobs")
XGBOOST_JOB = Kind(KUBEFLOW, "XGBoostJob", "xgboostjobs")
JAX_JOB = Kind(KUBEFLOW, "JAXJob", "jaxjobs")
MPI_JOB = Kind(MPI, "MPIJob", "mpijobs")
TRAINING_RUNTIME = Kind("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes")
TRAIN_JOB = Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
JOB_SET = Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")

OWNERS = (
    *(RAY_JOB, RAY_SERVICE, RAY_CLUSTER),
    *(PYTORCH_JOB, TF_JOB, XGBOOST_JOB, JAX_JOB, MPI_JOB),
    *(TRAIN_JOB, JOB_SET, LEADER_WORKER_SET),
)
"""The submitted kinds, owners before what they own."""
