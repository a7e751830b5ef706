"""Keeps the fields of objects that own pods which grouping reads: one row for each row of its table that reads any."""

from collections.abc import Mapping

from app.cluster import decode
from app.cluster.decode.origin import KEPT_ANNOTATIONS, READ_LABELS, TOO_LARGE, USER
from app.cluster.decode.origin import MOST_VALUES as MOST_OF_OWNER
from app.cluster.decode.reading import MOST_ITEMS, DecodeError
from app.grouping import fields_read, marks
from app.grouping.grove import POD_GANG
from app.grouping.kubeflow import PYTORCH
from app.grouping.pods import NODE_COUNT
from app.grouping.ray import RAY
from app.grouping.reading import MOST_ITEMS as MOST_OF_LIST
from app.grouping.table import KUBEFLOW, NAMED, TABLE
from app.model.owner import Kind
from app.model.seam import RawObject
from app.recording.pod_fields import REFERENCES, STAMPS
from app.recording.whitelist import OTHER, Cut, chosen, compared, entries, fields, items, plain, texts, truth

TOO_MANY = {OTHER: [None] * (MOST_OF_OWNER + 1)}
"""Stands for the fields of an owner that is too large: it is too large as well, and nothing of it is read."""


def _template(*annotations: str, **more: Cut) -> Cut:
    """Return what keeps annotations of a pod template."""
    return fields({"metadata": fields({"annotations": fields(texts(*annotations))}), **more})


_SUSPENDED = texts("suspend")
_AT_ONCE = texts("parallelism", "completions")
_PLACED = (marks.TOPOLOGY, marks.REQUIRED_LEVEL, marks.PREFERRED_LEVEL)
_SEGMENTED = (marks.TOPOLOGY, marks.SEGMENT_SIZE, marks.SEGMENT_REQUIRED_LEVEL, marks.SEGMENT_PREFERRED_LEVEL)


def _replicas(field: str, role: Cut = fields(texts("replicas")), **more: Cut) -> Mapping[str, Cut]:  # noqa: B008 # immutable
    """Return the rules for a training job of Kubeflow, whose roles stand in this field."""
    policy = fields({**_SUSPENDED, "schedulingPolicy": fields(texts("minAvailable"))})
    return {"spec": fields({field: entries(role), "runPolicy": policy, **more})}


_JOBSET_JOB = fields(
    {
        **texts("name", "replicas"),
        "dependsOn": truth,
        "template": _template(marks.JOBSET_EXCLUSIVE, marks.JOBSET_NODE_SELECTOR, spec=fields(_AT_ONCE)),
    }
)
_RAY_GROUP = fields(
    {
        **texts("groupName", "suspend", "suspended", "replicas", "minReplicas", "maxReplicas", "numOfHosts"),
        "template": _template(*_PLACED),
    }
)
_PACK = fields({"packConstraint": fields(texts("required", "preferred"))})
_GROVE_GROUP = fields(
    {
        **texts("name", "minReplicas"),
        "podReferences": items(compared(texts("namespace", "name")), MOST_OF_OWNER),
        "topologyConstraint": _PACK,
    }
)
_GROVE_CONFIG = fields({"name": plain, "podGroupNames": items(plain, MOST_OF_OWNER), "topologyConstraint": _PACK})
_LEADER_WORKER = fields(
    {
        "size": plain,
        "subGroupPolicy": fields(texts("subGroupSize", "subGroupPolicyType")),
        "workerTemplate": _template(*_SEGMENTED),
    }
)
_RAY_CLUSTER = texts("rayClusterName")

READ: Mapping[tuple[str, str], Mapping[str, Cut]] = {
    ("batch", "Job"): {"spec": fields({**_SUSPENDED, **_AT_ONCE})},
    ("jobset.x-k8s.io", "JobSet"): {
        "spec": fields(
            {
                **_SUSPENDED,
                "startupPolicy": fields(texts("startupPolicyOrder")),
                "replicatedJobs": items(_JOBSET_JOB, MOST_OF_LIST),
            }
        )
    },
    (KUBEFLOW, "TFJob"): _replicas("tfReplicaSpecs"),
    (KUBEFLOW, "XGBoostJob"): _replicas("xgbReplicaSpecs"),
    (KUBEFLOW, "JAXJob"): _replicas("jaxReplicaSpecs"),
    (KUBEFLOW, "MPIJob"): _replicas("mpiReplicaSpecs", launcherCreationPolicy=plain),
    (KUBEFLOW, "PyTorchJob"): _replicas(
        PYTORCH,
        fields({"replicas": plain, "template": _template(*_SEGMENTED)}),
        elasticPolicy=fields(texts("minReplicas")),
    ),
    ("trainer.kubeflow.org", "TrainJob"): {"spec": fields(_SUSPENDED)},
    (RAY, "RayCluster"): {
        "spec": fields(
            {
                **_SUSPENDED,
                "enableInTreeAutoscaling": plain,
                "headGroupSpec": fields({"template": _template(*_PLACED)}),
                "workerGroupSpecs": items(_RAY_GROUP, MOST_OF_LIST),
            }
        )
    },
    (RAY, "RayJob"): {"spec": fields(_SUSPENDED), "status": fields(_RAY_CLUSTER)},
    (RAY, "RayService"): {
        "status": fields(dict.fromkeys(("activeServiceStatus", "pendingServiceStatus"), fields(_RAY_CLUSTER)))
    },
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): {
        "spec": fields({"startupPolicy": plain, "leaderWorkerTemplate": _LEADER_WORKER})
    },
    (POD_GANG.group, POD_GANG.name): {
        "spec": fields(
            {
                "priorityClassName": plain,
                "topologyConstraint": _PACK,
                "podgroups": items(_GROVE_GROUP, MOST_OF_LIST),
                "topologyConstraintGroupConfigs": items(_GROVE_CONFIG, MOST_OF_LIST),
            }
        )
    },
    ("amlarc.azureml.com", "AmlJob"): {
        "spec": fields({"job": fields({"options": fields({"envs": fields(texts(NODE_COUNT))})})})
    },
    (NAMED.group, NAMED.name): {"spec": fields(texts("minMember"))},
}
"""What is kept of `spec` and `status`, by group and name of the kind; nothing of any other kind."""

KINDS_BY_PLURAL = {(group, row.plural): name for (group, name), row in TABLE.items()}


def _matters(annotation: str) -> bool:
    return annotation == USER or annotation.startswith(KEPT_ANNOTATIONS)


def _labels(value: object) -> object:
    """Keep all labels, since the PodGroup of an owner gets them; of too many, those that are read."""
    return _LABELS(value) if isinstance(value, dict) and len(value) <= MOST_ITEMS else _READ_LABELS(value)


_LABELS = entries()
_READ_LABELS = chosen(lambda label: label.startswith(READ_LABELS), most=MOST_ITEMS)
_METADATA = fields(
    {
        **STAMPS,
        "labels": _labels,
        "annotations": chosen(_matters, most=MOST_ITEMS),
        "ownerReferences": REFERENCES,
    }
)


def owner(kind: Kind, raw: RawObject) -> RawObject:
    """Reduce an object that may own pods."""
    kept = {"metadata": _METADATA(raw["metadata"])} if "metadata" in raw else {}
    try:
        found = decode.owner(raw, kind=kind, parts=fields_read(kind))
    except DecodeError:
        return kept
    return kept | _content(kind, found.fields, found.problem)


def _content(kind: Kind, read: RawObject, problem: str) -> RawObject:
    """Keep the content that `decode` has read; it has left out the specs of containers."""
    if problem == TOO_LARGE and not read:
        return dict.fromkeys(sorted(fields_read(kind)), TOO_MANY)
    rules = READ.get((kind.group, kind.name), {})
    return {key: rules[key](value) for key, value in read.items() if key in rules}
