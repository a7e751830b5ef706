"""A stand-in for Kubeflow's training operator v1: the pods of PyTorchJob, TFJob, XGBoostJob and JAXJob.

Names, labels and owners are those of training-operator 1.9. A failed pod is created again if its job allows it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.system.api import Object
from tests.system.workloads.kinds import JAX_JOB, POD, PYTORCH_JOB, TF_JOB, XGBOOST_JOB, Kind
from tests.system.workloads.seen import Seen, all_run, is_true, now_true, phase_of, pod_of

SPECS = {
    PYTORCH_JOB: "pytorchReplicaSpecs",
    TF_JOB: "tfReplicaSpecs",
    XGBOOST_JOB: "xgbReplicaSpecs",
    JAX_JOB: "jaxReplicaSpecs",
}
MASTERS = ("Master", "Chief")
TYPE_LABEL, INDEX_LABEL = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"


class Replica(NamedTuple):
    """A pod that a job needs."""

    type: str
    number: int

    @property
    def key(self) -> tuple[str, str]:
        """Return the values of the labels of its pod."""
        return self.type.lower(), str(self.number)


def operate(seen: Seen) -> None:
    """Bring every job one step further."""
    for kind in SPECS:
        for job in seen.all(kind):
            _operate_job(seen, kind, job)


def _operate_job(seen: Seen, kind: Kind, job: Object) -> None:
    if is_true(job, "Succeeded") or is_true(job, "Failed"):
        return
    pods = {_key_of(pod): pod for pod in seen.owned(job, POD)}
    if job["spec"].get("runPolicy", {}).get("suspend"):
        _delete_all(seen, pods.values())
        seen.set_status(kind, job, conditions=now_true(job, "Suspended"))
        return
    wanted = {replica.key: replica for replica in _replicas(kind, job)}
    _delete_all(seen, (pod for key, pod in pods.items() if key not in wanted or _is_to_restart(kind, job, pod)))
    for key, replica in wanted.items():
        if key not in pods:
            seen.create(POD, _pod(kind, job, replica), owner=job, owner_kind=kind)
    _tell_status(seen, kind, job, [pods[key] for key in wanted if key in pods], len(wanted))


def _tell_status(seen: Seen, kind: Kind, job: Object, pods: list[Object], wanted: int) -> None:
    masters = [pod for pod in pods if _key_of(pod)[0] in {name.lower() for name in MASTERS}]
    deciding = masters or pods
    if any(phase_of(pod) == "Failed" and not _is_to_restart(kind, job, pod) for pod in pods):
        seen.set_status(kind, job, conditions=now_true(job, "Failed"))
    elif deciding and all(phase_of(pod) == "Succeeded" for pod in deciding):
        seen.set_status(kind, job, conditions=now_true(job, "Succeeded"))
    elif all_run(pods, wanted):
        seen.set_status(kind, job, conditions=now_true(job, "Running"))


def _replicas(kind: Kind, job: Object) -> Iterator[Replica]:
    for name, spec in job["spec"][SPECS[kind]].items():
        yield from (Replica(name, index) for index in range(spec.get("replicas", 1)))


def _pod(kind: Kind, job: Object, replica: Replica) -> Object:
    spec, name = job["spec"][SPECS[kind]][replica.type], job["metadata"]["name"]
    lower, index = replica.key
    labels = {
        "training.kubeflow.org/operator-name": f"{kind.name.lower()}-controller",
        "training.kubeflow.org/job-name": name,
        TYPE_LABEL: lower,
        INDEX_LABEL: index,
        **({"training.kubeflow.org/job-role": "master"} if replica.type in MASTERS else {}),
    }
    made = pod_of(job, spec["template"], f"{name}-{lower}-{index}", labels=labels)
    made["spec"]["restartPolicy"] = pod_policy(spec)
    return made


def pod_policy(spec: Object) -> str:
    """Return the restart policy of the pods of a replica spec; the one by exit codes is implemented by the operator."""
    policy = str(spec.get("restartPolicy", "OnFailure"))
    return "Never" if policy == "ExitCode" else policy


def _is_to_restart(kind: Kind, job: Object, pod: Object) -> bool:
    types = {name.lower(): spec for name, spec in job["spec"][SPECS[kind]].items()}
    spec = types.get(_key_of(pod)[0], {})
    return phase_of(pod) == "Failed" and spec.get("restartPolicy", "OnFailure") != "Never"


def _delete_all(seen: Seen, pods: Iterable[Object]) -> None:
    for pod in pods:
        seen.delete(POD, pod)


def _key_of(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels[TYPE_LABEL], labels[INDEX_LABEL]
