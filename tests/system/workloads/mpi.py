"""A stand-in for the MPI operator v2beta1: workers as pods of their own, and the launcher as a Job.

Names, labels and owners are those of mpi-operator 0.7.
"""

import copy

from tests.system.api import Object
from tests.system.workloads.kinds import JOB, MPI_JOB, POD
from tests.system.workloads.kubeflow import INDEX_LABEL, pod_policy
from tests.system.workloads.seen import Seen, all_run, is_true, now_true, phase_of, pod_of


def operate(seen: Seen) -> None:
    """Bring every MPIJob one step further."""
    for job in seen.all(MPI_JOB):
        if not (is_true(job, "Succeeded") or is_true(job, "Failed")):
            _operate_job(seen, job)


def _operate_job(seen: Seen, job: Object) -> None:
    suspended = bool(job["spec"].get("runPolicy", {}).get("suspend"))
    wanted = 0 if suspended else job["spec"]["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0)
    workers = seen.owned(job, POD)
    _make_workers(seen, job, workers, wanted)
    (launcher,) = seen.owned(job, JOB) or (None,)
    if launcher is not None:
        seen.set_spec(JOB, launcher, suspend=suspended)
        _tell_status(seen, job, launcher)
    elif not _waits(job) or (not suspended and all_run(seen.pods(job), wanted)):
        seen.create(JOB, _launcher(job, suspended=suspended), owner=job, owner_kind=MPI_JOB)


def _make_workers(seen: Seen, job: Object, workers: list[Object], wanted: int) -> None:
    by_index = {int(pod["metadata"]["labels"][INDEX_LABEL]): pod for pod in workers}
    for index, pod in by_index.items():
        if index >= wanted or phase_of(pod) == "Failed":
            seen.delete(POD, pod)
    for index in range(wanted):
        if index not in by_index:
            seen.create(POD, _worker(job, index), owner=job, owner_kind=MPI_JOB)


def _waits(job: Object) -> bool:
    """Whether the launcher is created after its workers."""
    return bool(job["spec"].get("launcherCreationPolicy") == "WaitForWorkersReady")


def _worker(job: Object, index: int) -> Object:
    spec, name = job["spec"]["mpiReplicaSpecs"]["Worker"], job["metadata"]["name"]
    labels = {**_labels(job, "worker"), INDEX_LABEL: str(index)}
    made = pod_of(job, spec["template"], f"{name}-worker-{index}", labels=labels)
    made["spec"]["restartPolicy"] = pod_policy({"restartPolicy": "Never", **spec})
    return made


def _launcher(job: Object, *, suspended: bool) -> Object:
    name = job["metadata"]["name"]
    made = JOB.named(job, f"{name}-launcher", {"suspend": suspended})
    made["metadata"]["labels"] = {"app": name}
    spec = job["spec"]["mpiReplicaSpecs"]["Launcher"]
    template = copy.deepcopy(spec["template"])
    own = template.setdefault("metadata", {})
    own["labels"] = {**own.get("labels", {}), **_labels(job, "launcher")}
    template["spec"]["restartPolicy"] = pod_policy({"restartPolicy": "Never", **spec})
    made["spec"]["template"] = template
    return made


def _tell_status(seen: Seen, job: Object, launcher: Object) -> None:
    for theirs, ours in (("Complete", "Succeeded"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if is_true(launcher, theirs):
            seen.set_status(MPI_JOB, job, conditions=now_true(job, ours))
            return
    if launcher.get("status", {}).get("ready"):
        seen.set_status(MPI_JOB, job, conditions=now_true(job, "Running"))


def _labels(job: Object, role: str) -> dict[str, str]:
    return {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": job["metadata"]["name"],
        "training.kubeflow.org/job-role": role,
    }
