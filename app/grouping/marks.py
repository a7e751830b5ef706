"""The labels and annotations that grouping reads: KAI's own, and those that operators write on their pods."""

QUEUES = ("kai.scheduler/queue", "runai/queue")
PROJECT = "project"
NODE_POOL = "kai.scheduler/node-pool"
PRIORITY_CLASS = "priorityClassName"
PREEMPTIBILITY = "kai.scheduler/preemptibility"
USER = "user"

SKIP = "kai.scheduler/skip-podgrouper"
BATCH_MIN_MEMBER = "kai.scheduler/batch-min-member"
STALENESS_GRACE = "kai.scheduler/staleness-grace-period"
TOP_OWNER = "kai.scheduler/top-owner-metadata"
KAI_PREFIX = "kai.scheduler/"

TOPOLOGY = "kai.scheduler/topology"
REQUIRED_LEVEL = "kai.scheduler/topology-required-placement"
PREFERRED_LEVEL = "kai.scheduler/topology-preferred-placement"
SEGMENT_SIZE = "kai.scheduler/segment-size"
SEGMENT_REQUIRED_LEVEL = "kai.scheduler/segment-topology-required-placement"
SEGMENT_PREFERRED_LEVEL = "kai.scheduler/segment-topology-preferred-placement"

NAMED_GROUPS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""Labels by which a pod names a PodGroup of scheduler-plugins. The newer one is first."""

SPARK_NAME, SPARK_SELECTOR = "spark-app-name", "spark-app-selector"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOBSET_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
JOB_ROLE = "training.kubeflow.org/job-role"
RAY_GROUP = "ray.io/group"
RAY_NODE_TYPE = "ray.io/node-type"
RAY_PRIORITY_CLASS = "ray.io/priority-class-name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
POD_GANG = "grove.io/podgang"
POD_CLIQUE = "grove.io/podclique"
GROVE_TOPOLOGY = "grove.io/topology-name"
REVISION = "serving.knative.dev/revision"
MIN_SCALES = ("autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/minScale")

POD_LABELS: frozenset[str] = frozenset(
    {
        *QUEUES,
        PROJECT,
        NODE_POOL,
        PRIORITY_CLASS,
        PREEMPTIBILITY,
        USER,
        *NAMED_GROUPS,
        SPARK_NAME,
        SPARK_SELECTOR,
        REPLICATED_JOB,
        REPLICA_TYPE,
        REPLICA_INDEX,
        JOB_ROLE,
        RAY_GROUP,
        RAY_NODE_TYPE,
        LWS_GROUP,
        LWS_WORKER,
        POD_GANG,
        POD_CLIQUE,
        REVISION,
    }
)
"""The labels of pods that some row reads."""

POD_ANNOTATIONS: frozenset[str] = frozenset(
    {
        USER,
        SKIP,
        STALENESS_GRACE,
        TOPOLOGY,
        REQUIRED_LEVEL,
        PREFERRED_LEVEL,
        SEGMENT_SIZE,
        SEGMENT_REQUIRED_LEVEL,
        SEGMENT_PREFERRED_LEVEL,
        LWS_SIZE,
    }
)
"""The annotations of pods that some row reads."""
