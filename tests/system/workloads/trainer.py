"""A stand-in for Kubeflow Trainer v2: the JobSet of a TrainJob, made from the runtime that it names."""

import copy

from tests.system.api import Object
from tests.system.workloads.kinds import JOB_SET, TRAIN_JOB, TRAINING_RUNTIME
from tests.system.workloads.seen import Seen

STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"


def operate(seen: Seen) -> None:
    """Bring every TrainJob one step further; one without its runtime waits for it."""
    for job in seen.all(TRAIN_JOB):
        (job_set,) = seen.owned(job, JOB_SET) or (None,)
        if job_set is not None:
            seen.set_spec(JOB_SET, job_set, suspend=_is_suspended(job))
            continue
        named = [
            one for one in seen.all(TRAINING_RUNTIME) if one["metadata"]["name"] == job["spec"]["runtimeRef"]["name"]
        ]
        for runtime in named:
            seen.create(JOB_SET, _job_set(job, runtime), owner=job, owner_kind=TRAIN_JOB)


def _job_set(job: Object, runtime: Object) -> Object:
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    made = JOB_SET.named(job, job["metadata"]["name"], spec | {"suspend": _is_suspended(job)})
    for part in ("labels", "annotations"):
        runtimes = runtime["spec"]["template"].get("metadata", {}).get(part, {})
        made["metadata"][part] = {**runtimes, **job["spec"].get(part, {})}
    for replicated in spec["replicatedJobs"]:
        template = replicated["template"]
        if template.get("metadata", {}).get("labels", {}).get(STEP_LABEL) == "trainer":
            _set_trainer(template["spec"], job, runtime)
    return made


def _set_trainer(spec: Object, job: Object, runtime: Object) -> None:
    """Set the number of training nodes, and the resources of each."""
    asked = job["spec"].get("trainer", {})
    number = asked.get("numNodes") or runtime["spec"].get("mlPolicy", {}).get("numNodes", 1)
    spec |= {"parallelism": number, "completions": number}
    for container in spec["template"]["spec"]["containers"]:
        if container["name"] == "node" and "resourcesPerNode" in asked:
            container["resources"] = asked["resourcesPerNode"]


def _is_suspended(job: Object) -> bool:
    return bool(job["spec"].get("suspend"))
