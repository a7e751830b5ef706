"""What is wrong or unusual about a Queue or PodGroup, given the existing queues."""

from collections.abc import Iterable, Iterator, Mapping

from app.cluster import decode
from app.cluster.groups.groups import has_sub_groups
from app.cluster.groups.membership import Membership
from app.cluster.queues.tree import TOO_DEEP, circle_sentence
from app.model.names import QueueName
from app.model.podgroup import GroupSpec
from app.model.quantity import shown
from app.model.queue import MOST_LEVELS, Queue
from app.model.resources import CPU, GPU, MEMORY, UNLIMITED
from app.model.seam import RawObject
from app.model.snapshot import Usage
from app.model.spelling import hint_among

NAMES_SHOWN = 5
"""Child queues that a message names."""

FIELDS: Mapping[int, str] = {CPU: "cpu", MEMORY: "memory", GPU: "gpu"}


def missing_queue(name: QueueName, queues: Mapping[QueueName, Queue], consequence: str) -> str:
    """Return that a queue does not exist, with the name that may be meant; `consequence` lasts until it exists."""
    hint = hint_among(queues, name)
    return f"queue {shown(name)} does not exist: {consequence} until it does{f'; {hint}' if hint else ''}"


def queue_problem(raw: RawObject, queues: Mapping[QueueName, Queue]) -> str:
    """Return what is wrong with a queue among the existing queues."""
    queue = decode.queue(raw)
    return queue.problem or _above(queue, queues)


def queue_oddities(raw: RawObject, queues: Mapping[QueueName, Queue]) -> Iterator[str]:
    """Return why a queue does not work, or what does not mean what its owner may think."""
    queue = decode.queue(raw)
    if queue.parent is not None:
        parent = queues.get(queue.parent)
        if parent is None:
            yield f"its parent {missing_queue(queue.parent, queues, 'the queue takes no pods')}"
        elif parent.problem:
            yield f"its parent queue {shown(queue.parent)} is not valid: the queue takes no pods until it is"
    for axis, name in FIELDS.items():
        of = queue.entitlement(axis)
        if of.limit < of.deserved < UNLIMITED:
            where = f"spec.resources.{name}"
            yield f"{where}.limit is below {where}.quota: the queue never gets more than its limit"


def queue_loss(name: QueueName, queues: Iterable[Queue], usage: Usage | None) -> Iterator[str]:
    """Return the consequences of deleting a queue."""
    children = sorted(queue.name for queue in queues if queue.parent == name)
    if children:
        more = f" and {len(children) - NAMES_SHOWN} more" if len(children) > NAMES_SHOWN else ""
        names = f"{', '.join(children[:NAMES_SHOWN])}{more}"
        yield f"its child queues take no pods until a queue of this name exists again: {names}"
    if usage is not None and usage.requested.pods:
        running, waiting = usage.allocated.pods, usage.requested.pods - usage.allocated.pods
        if running:
            go_on = "keeps running and is" if running == 1 else "keep running and are"
            yield f"{running} of its pods {go_on} the first to be reclaimed"
        if waiting:
            wait = "waits" if waiting == 1 else "wait"
            yield f"{waiting} of its pods {wait} until a queue of this name exists again"


def group_problem(raw: RawObject) -> str:
    """Return what is wrong with a PodGroup."""
    return decode.pod_group(raw).problem


def group_oddities(raw: RawObject, queues: Mapping[QueueName, Queue]) -> Iterator[str]:
    """Return why a PodGroup cannot start, or what does not mean what its owner may think."""
    spec = decode.pod_group(raw)
    if spec.queue is not None and spec.queue not in queues:
        yield missing_queue(spec.queue, queues, "the pods wait")
    fields = raw.get("spec")
    stated = fields.get("minMember") if isinstance(fields, dict) else None
    if has_sub_groups(spec) and isinstance(stated, int) and stated > spec.min_member:
        together = f"the sub-groups start with {spec.min_member} pods together, the sum of their minMember"
        yield f"spec.minMember is {shown(stated)} and has no effect: {together}"


def group_change(old: RawObject, new: RawObject, *, starting: int) -> Iterator[str]:
    """Return the consequence of changing a PodGroup while some of its pods are being started."""
    if starting and _terms(decode.pod_group(old)) != _terms(decode.pod_group(new)):
        are = "is" if starting == 1 else "are"
        yield f"{starting} of its pods {are} being started: the change counts at once for those that are not bound yet"


def group_keeps(raw: RawObject, groups: Membership) -> Iterator[str]:
    """Return which statements of a PodGroup do not count, because some of its pods have started on other terms."""
    spec = decode.pod_group(raw)
    started = groups.terms.kept_preemptible(spec.key, spec)
    if started:
        have = "has" if started == 1 else "have"
        yield (
            f"{started} of its pods {have} started as preemptible: the group stays preemptible as long as any of them"
            " exists; delete them to start the group again on other terms"
        )


def topology_problem(raw: RawObject) -> str:
    """Return what is wrong with a Topology."""
    return decode.topology(raw).problem


def _terms(spec: GroupSpec) -> tuple[object, ...]:
    return spec.queue, spec.min_member, spec.root, spec.priority_classes, spec.preemptible


def _above(queue: Queue, queues: Mapping[QueueName, Queue]) -> str:
    """Return what is wrong above a queue: a circle that it would close, or too many levels; empty when nothing is."""
    line: dict[QueueName, None] = {queue.name: None}
    at = queue.parent
    while at is not None and at in queues and at not in line and len(line) <= MOST_LEVELS:
        line[at] = None
        at = queues[at].parent
    if at == queue.name:
        return circle_sentence(list(line))
    return TOO_DEEP if len(line) > MOST_LEVELS else ""
