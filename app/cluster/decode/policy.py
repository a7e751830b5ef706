"""Reads the objects of administrators and owners: queues, PodGroups, topologies, priority classes, in KAI's fields."""

from collections.abc import Mapping, Sequence
from functools import partial

from app.cluster.decode.durations import duration_ms
from app.cluster.decode.origin import owner_of
from app.cluster.decode.pods import PREEMPTIBILITY
from app.cluster.decode.reading import Fields, ObjectReading, identified, int32
from app.cluster.decode.subgroups import members, tree
from app.model.names import GroupKey, QueueName
from app.model.podgroup import FOREVER_S, GroupSpec
from app.model.priority import PriorityClass
from app.model.quantity import queue_amount, shown, weight_micro
from app.model.queue import DEFAULT_PRIORITY, UNGOVERNED, Entitlement, Queue
from app.model.resources import UNLIMITED
from app.model.topology import Topology

GPU_SCALE, CPU_SCALE, MEMORY_SCALE = 1000, 1, 1_000_000
"""A Queue counts GPUs, millicores and megabytes of 10^6 bytes; Leeboard counts thousandths of a GPU, millicores and
bytes.
"""

NOT_SPECIFIED = (
    "resources must be specified: write spec.resources with gpu, cpu and memory, "
    "each with quota, limit and overQuotaWeight (-1 is no limit)"
)

MAX_LEVELS = 16

STALENESS_ANNOTATION = "kai.scheduler/staleness-grace-period"

NEVER_OVER_MS = -1


def queue(raw: object) -> Queue:
    """Decode a queue alone; `cluster.queues` judges over the whole tree whether its parents exist."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec = reading.mapping(fields, "spec")
    if spec.get("resources") is None:
        reading.doubt(NOT_SPECIFIED)
    resources = reading.mapping(spec, "resources")
    return Queue(
        name=QueueName(metadata["name"]),
        uid=metadata["uid"],
        parent=QueueName(reading.name(spec, "parentQueue")) or None,
        priority=reading.number("spec.priority", spec.get("priority"), int32, otherwise=DEFAULT_PRIORITY),
        created_at=reading.seconds(metadata, "creationTimestamp"),
        display_name=reading.name(spec, "displayName"),
        gpu_milli=_entitlement(reading, resources, "gpu", GPU_SCALE),
        cpu_milli=_entitlement(reading, resources, "cpu", CPU_SCALE),
        memory_bytes=_entitlement(reading, resources, "memory", MEMORY_SCALE),
        preempt_min_runtime_s=_min_runtime_s(reading, spec, "preemptMinRuntime"),
        reclaim_min_runtime_s=_min_runtime_s(reading, spec, "reclaimMinRuntime"),
        problem=reading.problem,
    )


def _min_runtime_s(reading: ObjectReading, spec: Fields, key: str) -> float | None:
    if spec.get(key) is None:
        return None
    unread = -1
    milliseconds = reading.number(f"spec.{key}", spec[key], duration_ms, otherwise=unread)
    return None if milliseconds == unread else milliseconds / 1000


def _entitlement(reading: ObjectReading, resources: Fields, name: str, scale: int) -> Entitlement:
    """Read one resource; KAI's zeros count in what is stated, except that a missing limit means no limit.

    KAI reads a missing limit as 0. With it, a queue could run nothing, which no administrator intends.
    """
    if resources.get(name) is None:
        return UNGOVERNED
    block, where = reading.mapping(resources, name), f"spec.resources.{name}"
    amount = partial(queue_amount, scale=scale)
    return Entitlement(
        deserved=reading.number(f"{where}.quota", block.get("quota"), amount),
        limit=reading.number(f"{where}.limit", block.get("limit"), amount, otherwise=UNLIMITED),
        over_quota_weight_micro=reading.number(f"{where}.overQuotaWeight", block.get("overQuotaWeight"), weight_micro),
    )


def pod_group(raw: object) -> GroupSpec:
    """Decode a PodGroup; `minMember: 0` (KAI 0.17: no gang) is 1, since a gang of one needs no other pods.

    With sub-groups, the minimum is the sum of its pod sets, whatever `spec.minMember` states (KAI).
    """
    fields, metadata = identified(raw)
    reading = ObjectReading()
    spec = reading.mapping(fields, "spec")
    min_member = max(1, reading.number("spec.minMember", spec.get("minMember"), members, otherwise=1))
    root = tree(reading, spec, min_member)
    queue_name, class_name = reading.name(spec, "queue"), reading.name(spec, "priorityClassName")
    return GroupSpec(
        key=GroupKey(reading.text(metadata, "namespace"), metadata["name"]),
        uid=metadata["uid"],
        queue=QueueName(queue_name) if queue_name else None,
        min_member=min_member if root is None else sum(leaf.min_member for leaf in root.leaves()),
        priority_classes=(class_name,) if class_name else (),
        preemptible=_preemptible(reading, spec),
        created_at=reading.seconds(metadata, "creationTimestamp"),
        root=root,
        stale_grace_s=_stale_grace_s(reading, spec, metadata),
        owner=owner_of(metadata),
        problem=reading.problem,
    )


def _preemptible(reading: ObjectReading, spec: Fields) -> bool | None:
    text = reading.text(spec, "preemptibility")
    if text and text not in PREEMPTIBILITY:
        reading.doubt(f"spec.preemptibility is {shown(text)}; write {' or '.join(PREEMPTIBILITY)}")
    return PREEMPTIBILITY.get(text)


def _stale_grace_s(reading: ObjectReading, spec: Fields, metadata: Fields) -> float | None:
    """Return how long the group may be stale: by its spec, else by its annotation; None when neither states it."""
    what, written = "spec.stalenessGracePeriod", spec.get("stalenessGracePeriod")
    if written is None:
        annotations = reading.mapping(metadata, "annotations")
        what, written = f"annotation {STALENESS_ANNOTATION}", annotations.get(STALENESS_ANNOTATION)
    if written is None:
        return None
    unread = NEVER_OVER_MS - 1
    milliseconds = reading.number(what, written, _grace_ms, otherwise=unread)
    if milliseconds == unread:
        return None
    return FOREVER_S if milliseconds == NEVER_OVER_MS else milliseconds / 1000


def _grace_ms(text: object) -> int:
    """Read a grace period in milliseconds; `NEVER_OVER_MS` for a negative one (KAI), with a unit or as -1 alone."""
    if text == "-1":
        return NEVER_OVER_MS
    if isinstance(text, str) and text.startswith("-"):
        return NEVER_OVER_MS if duration_ms(text.removeprefix("-")) else 0
    return duration_ms(text)


def priority_class(raw: object) -> PriorityClass:
    """Decode a PriorityClass."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    value = reading.number("value", fields.get("value"), int32)
    return PriorityClass(name=metadata["name"], value=value, problem=reading.problem)


def topology(raw: object) -> Topology:
    """Decode a Topology; the planner checks whether any node has its labels."""
    fields, metadata = identified(raw)
    reading = ObjectReading()
    levels = reading.mappings(reading.mapping(fields, "spec"), "levels")
    labels = tuple(reading.text(level, "nodeLabel") for level in levels[:MAX_LEVELS])
    if not 1 <= len(levels) <= MAX_LEVELS:
        reading.doubt(f"spec.levels has {len(levels)} items; list 1 to {MAX_LEVELS}, the widest first")
    if "" in labels:
        reading.doubt("a level has no nodeLabel; write the key of a node label, such as topology.kubernetes.io/zone")
    if len(set(labels)) < len(labels):
        reading.doubt("spec.levels lists a nodeLabel twice; list every level once")
    aliases = _aliases(reading, levels[:MAX_LEVELS], labels)
    return Topology(name=metadata["name"], levels=labels, aliases=aliases, problem=reading.problem)


def _aliases(reading: ObjectReading, levels: Sequence[Fields], labels: Sequence[str]) -> Mapping[str, str]:
    """Return the node label of each alias; KAI's rules for aliases."""
    named = [
        (alias, label) for level, label in zip(levels, labels, strict=True) if (alias := reading.text(level, "alias"))
    ]
    aliases = dict(named)
    if len(aliases) < len(named):
        reading.doubt("spec.levels uses an alias twice; give every level an alias of its own")
    if taken := next((alias for alias in aliases if alias in labels), ""):
        reading.doubt(f"spec.levels has the alias {shown(taken)}, which is a nodeLabel; write another alias")
    return aliases
