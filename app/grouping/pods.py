"""Rows of kinds whose pods start independently, and of kinds whose pods are grouped by one value on the pods."""

from dataclasses import replace

from app.grouping import marks
from app.grouping.case import Case, GroupShape
from app.grouping.reading import Block, OwnerReading
from app.grouping.terms import group_name
from app.model.owner import Kind, Origin, Owner, OwnerRef
from app.model.pod import Pod
from app.model.sentence import counted

POD = Kind("", "v1", "Pod")
NODE_COUNT = "AZUREML_NODE_COUNT"


def together(_: Case) -> GroupShape:
    """All pods of an owner are one PodGroup with a minimum of one pod (KAI's default)."""
    return GroupShape()


def apart(case: Case) -> GroupShape:
    """Each pod is a PodGroup, with the terms of its owner."""
    return GroupShape(name=group_name(case.pod.name, case.pod.uid), alone=True)


def pod_owner(case: Case) -> GroupShape:
    """Pods of one Spark application, or created by one pod, are one PodGroup. Any other pod is its own group."""
    if is_spark(case.origin):
        return GroupShape(name=case.label(marks.SPARK_SELECTOR))
    return apart(case) if case.owner.ref.uid == case.pod.uid else together(case)


def is_spark(origin: Origin) -> bool:
    """Return whether the pod is the driver or an executor of a Spark application."""
    return bool(origin.labels.get(marks.SPARK_NAME) and origin.labels.get(marks.SPARK_SELECTOR))


def as_owner(pod: Pod, origin: Origin) -> Owner:
    """Return the pod as the owner of its own PodGroup."""
    return Owner(
        ref=OwnerRef(POD, pod.name, pod.uid),
        namespace=pod.namespace,
        labels=origin.labels,
        annotations=origin.annotations,
        created_at=pod.created_at,
    )


def job(case: Case) -> GroupShape:
    """Each pod of a Job is a PodGroup. With a minimum, the whole Job is one."""
    if marks.BATCH_MIN_MEMBER in case.owner.annotations:
        return whole_job(case.owner)
    return GroupShape(name=group_name(case.pod.name, case.owner.ref.uid), alone=True)


def cron_job(case: Case) -> GroupShape:
    """Each Job of a CronJob is a PodGroup."""
    made = case.owner_of_kind("batch", "Job")
    if made is not None:
        return whole_job(made)
    reading = OwnerReading(case.owner)
    reading.doubt(f"pod {case.pod.name} belongs to none of its Jobs; let the CronJob make its pods by a Job")
    return GroupShape(problem=reading.problem)


def whole_job(owner: Owner) -> GroupShape:
    """All pods of a Job are one PodGroup. Its minimum is the one that the Job states, by default one."""
    reading = OwnerReading(owner)
    asked = owner.annotations.get(marks.BATCH_MIN_MEMBER, "1")
    least, most = reading.digits(f"annotation {marks.BATCH_MIN_MEMBER}", asked), _at_once(reading.spec())
    if most is not None and least > most > 0:
        reading.doubt(
            f"annotation {marks.BATCH_MIN_MEMBER} is {least} and it never has more than {counted(most, 'pod')} at once;"
            f" write 1 to {most}, or raise spec.parallelism and spec.completions"
        )
    return GroupShape(min_member=least, owner=owner, problem=reading.problem)


def _at_once(spec: Block) -> int | None:
    """Return the most pods that a Job runs at the same time; None when the Job sets no limit."""
    limits = (spec.number(key, otherwise=-1) for key in ("parallelism", "completions"))
    return min((limit for limit in limits if limit >= 0), default=None)


def runai_job(case: Case) -> GroupShape:
    """Pods whose names differ only in the last part are one PodGroup."""
    return GroupShape(name=group_name(case.pod.name.rpartition("-")[0] or case.pod.name, case.owner.ref.uid))


def named_group(case: Case) -> GroupShape:
    """Pods that name a PodGroup of scheduler-plugins have its minimum."""
    reading = OwnerReading(case.owner)
    least = reading.spec().number("minMember", otherwise=1)
    return GroupShape(min_member=least, asked_for=True, problem=reading.problem)


def aml_job(case: Case) -> GroupShape:
    """All nodes of an AmlJob start together."""
    reading = OwnerReading(case.owner)
    envs = reading.spec().block("job", "options", "envs")
    count = envs.fields.get(NODE_COUNT)
    if count is None:
        reading.doubt(f"{envs.where} has no {NODE_COUNT}; write the number of its nodes there")
        return GroupShape(problem=reading.problem)
    where = f"{envs.where}.{NODE_COUNT}"
    is_text = isinstance(count, str)
    least = reading.digits(where, count) if is_text else envs.number(NODE_COUNT, otherwise=1, minimum=1)
    return GroupShape(min_member=least, problem=reading.problem)


def below(skipped: Owner, owner: Owner) -> Owner:
    """Return the owner that decides in place of the one above it, merged with labels and annotations of the latter."""
    labels, annotations = {**skipped.labels, **owner.labels}, {**skipped.annotations, **owner.annotations}
    return replace(owner, labels=labels, annotations=annotations)
