"""The row of JobSets: one PodGroup each, or one per replicated Job when these start one after the other."""

from collections import Counter
from collections.abc import Mapping

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.reading import Block, OwnerReading
from app.grouping.terms import group_name

NONE: Mapping[str, int] = {}


def jobset(case: Case) -> GroupShape:
    """Return one PodGroup for all Jobs if they start in any order, otherwise one for the Jobs of each template."""
    reading, ref = OwnerReading(case.owner), case.owner.ref
    spec = reading.spec()
    jobs = spec.blocks("replicatedJobs")
    there = _there(case) if any(_leads(case, one) for one in jobs) else NONE
    if _start_together(spec, jobs):
        total = sum(_pods(case, one, there) for one in jobs)
        return GroupShape(min_member=_least(reading, case, total), problem=reading.problem)
    template = case.label(marks.REPLICATED_JOB)
    if not template:
        reading.doubt(
            f"its pod {case.pod.name} has no label {marks.REPLICATED_JOB}; let the JobSet controller write it"
        )
        return GroupShape(problem=reading.problem)
    mine = (_pods(case, one, there) for one in jobs if one.text("name") == template)
    return GroupShape(
        name=group_name(ref.name, ref.uid, f"-{template}"),
        min_member=_least(reading, case, next(mine, 1)),
        problem=reading.problem,
    )


def _least(reading: OwnerReading, case: Case, pods: int) -> int:
    """Return how many of these pods must start together: all, or the number that the JobSet states."""
    asked = case.owner.annotations.get(marks.BATCH_MIN_MEMBER)
    if asked is None:
        return reading.members(pods)
    return min(reading.digits(f"annotation {marks.BATCH_MIN_MEMBER}", asked), reading.members(pods))


def _start_together(spec: Block, jobs: list[Block]) -> bool:
    """Return whether no Job waits for another. Otherwise a gang of all would wait for pods that are created later."""
    order = spec.block("startupPolicy").text("startupPolicyOrder")
    return order not in ("", "InOrder") and not any(job.fields.get("dependsOn") for job in jobs)


def _pods(case: Case, job: Block, there: Mapping[str, int]) -> int:
    """Return how many pods the Jobs of a template have at the same time; 0 when their parallelism is 0."""
    spec, replicas = job.block("template", "spec"), job.number("replicas", otherwise=1)
    # Only the first pods of the Jobs exist, as long as there are no others.
    if _leads(case, job) and there.get(job.text("name"), 0) <= replicas:
        return replicas
    parallelism = spec.number("parallelism", otherwise=1)
    return replicas * min(parallelism, spec.number("completions", otherwise=parallelism))


def _leads(case: Case, job: Block) -> bool:
    """Return whether JobSet creates only the first pod of each Job until it has a node. The others follow its node."""
    template, said = job.block("template"), case.owner.annotations
    exclusive, selected = (
        said.get(key) or template.annotation(key) for key in (marks.JOBSET_EXCLUSIVE, marks.JOBSET_NODE_SELECTOR)
    )
    return bool(exclusive and not selected)


def _there(case: Case) -> Mapping[str, int]:
    """Return how many pods the Jobs of each template have now. They are counted once for all templates."""
    origins = (pod.origin for pod in case.chain.siblings() if not pod.deleting)
    return Counter(origin.labels.get(marks.REPLICATED_JOB, "") for origin in origins if origin is not None)
