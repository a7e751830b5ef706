"""A stand-in for the JobSet controller: it creates the Jobs of a JobSet, and the real Job controller their pods.

Names, labels and owners are those of JobSet 0.10. When a Job fails, all are created again as often as the policy
allows.
"""

import copy
from collections.abc import Iterator

from tests.system.api import Object
from tests.system.workloads.kinds import JOB, JOB_SET
from tests.system.workloads.seen import Seen, is_leaving, is_true, now_true, short_hash

PREFIX = "jobset.sigs.k8s.io"
RESTARTS = f"{PREFIX}/restart-attempt"


def operate(seen: Seen) -> None:
    """Bring every JobSet one step further."""
    for job_set in seen.all(JOB_SET):
        if not (is_true(job_set, "Completed") or is_true(job_set, "Failed")):
            _operate_job_set(seen, job_set)


def _operate_job_set(seen: Seen, job_set: Object) -> None:
    owned = seen.owned(job_set, JOB)
    attempt = _restarts(job_set)
    stale = [job for job in owned if job["metadata"]["labels"][RESTARTS] != str(attempt)]
    for job in stale:
        seen.delete(JOB, job)
    jobs = {job["metadata"]["name"]: job for job in owned if job not in stale and not is_leaving(job)}
    if any(is_true(job, "Failed") for job in jobs.values()):
        _fail(seen, job_set)
        return
    for job in jobs.values():
        seen.set_spec(JOB, job, suspend=_is_suspended(job_set))
    _make_jobs(seen, job_set, jobs)
    wanted = sum(replicated.get("replicas", 1) for replicated in job_set["spec"]["replicatedJobs"])
    if len(jobs) == wanted and all(is_true(job, "Complete") for job in jobs.values()):
        seen.set_status(JOB_SET, job_set, conditions=now_true(job_set, "Completed"))


def _fail(seen: Seen, job_set: Object) -> None:
    """Begin a new attempt, if another one is allowed."""
    done = _restarts(job_set)
    if done < job_set["spec"].get("failurePolicy", {}).get("maxRestarts", 0):
        seen.set_status(JOB_SET, job_set, restarts=done + 1)
    else:
        seen.set_status(JOB_SET, job_set, conditions=now_true(job_set, "Failed"))


def _make_jobs(seen: Seen, job_set: Object, jobs: dict[str, Object]) -> None:
    """Create the missing Jobs; in order, those of the next kind once the earlier ones have started."""
    in_order = job_set["spec"].get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder"
    for replicated in job_set["spec"]["replicatedJobs"]:
        made = list(_jobs_of(job_set, replicated))
        for job in made:
            if job["metadata"]["name"] not in jobs:
                seen.create(JOB, job, owner=job_set, owner_kind=JOB_SET)
        there = [jobs.get(job["metadata"]["name"]) for job in made]
        if in_order and not _is_suspended(job_set) and not all(job and _has_started(job) for job in there):
            return


def _has_started(job: Object) -> bool:
    status = job.get("status", {})
    started = status.get("ready", 0) + status.get("succeeded", 0) + status.get("failed", 0)
    return bool(started >= job["spec"]["parallelism"])


def _jobs_of(job_set: Object, replicated: Object) -> Iterator[Object]:
    for index in range(replicated.get("replicas", 1)):
        yield _job(job_set, replicated, index)


def _job(job_set: Object, replicated: Object, index: int) -> Object:
    template = copy.deepcopy(replicated["template"])
    name = f"{job_set['metadata']['name']}-{replicated['name']}-{index}"
    made = JOB.named(job_set, name, template["spec"] | {"suspend": _is_suspended(job_set)})
    # The webhook of JobSet sets this default; a Job needs a value.
    made["spec"]["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    marks = _marks(job_set, replicated, index, name)
    # The Job has the metadata of its template; the labels of the Job and of its pods name their JobSet.
    made["metadata"] |= {part: template.get("metadata", {}).get(part, {}) for part in ("labels", "annotations")}
    for marked in (made["metadata"], made["spec"]["template"].setdefault("metadata", {})):
        for part in ("labels", "annotations"):
            marked[part] = {**marked.get(part, {}), **marks}
    return made


def _marks(job_set: Object, replicated: Object, index: int, name: str) -> dict[str, str]:
    metadata, replicas = job_set["metadata"], replicated.get("replicas", 1)
    return {
        f"{PREFIX}/jobset-name": metadata["name"],
        f"{PREFIX}/jobset-uid": metadata["uid"],
        f"{PREFIX}/replicatedjob-name": replicated["name"],
        f"{PREFIX}/replicatedjob-replicas": str(replicas),
        f"{PREFIX}/job-index": str(index),
        f"{PREFIX}/job-key": short_hash(f"{metadata['namespace']}/{name}"),
        RESTARTS: str(_restarts(job_set)),
    }


def _restarts(job_set: Object) -> int:
    return int(job_set.get("status", {}).get("restarts", 0))


def _is_suspended(job_set: Object) -> bool:
    return bool(job_set["spec"].get("suspend"))
