"""Tells for which PodGroups a larger cluster is requested, and for how many pods of which kind."""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from app.model.names import QueueName
from app.model.pod import PPM, Pod
from app.model.podgroup import PodGroup
from app.model.resources import NOTHING
from app.model.scaling import PodShape
from app.model.snapshot import Snapshot
from app.scheduling.queues.order import next_chunk
from app.scheduling.queues.quota import QueueLedger, least_charge

PATIENCE = 20
"""A queue is skipped only after this many of its groups were refused: a smaller one may still fit."""

LONGEST_PREFIX = 40
"""The longest prefix of a PodGroup's name in generated names. People can find it, and numbers still fit after it."""


def lacking(group: PodGroup) -> tuple[Pod, ...]:
    """Return the pods for which a group without room needs nodes. Return none when an autoscaler cannot help.

    These are the pods that start together. Pods of a group beyond its minimum use what is free, and no nodes are added
    for them. Pods without a scheduling gate are visible to the autoscaler already. The purpose of a DRA claim is
    unknown.
    """
    if group.owed == 0:
        return ()
    pods = next_chunk(group)
    if any(pod.claims or not pod.held for pod in pods):
        return ()
    return pods


def within_quota(snapshot: Snapshot, groups: Iterable[PodGroup], most: int) -> list[PodGroup]:
    """Return the groups that could all start in a cluster with enough room, in the given order and `most` at most.

    Each group was refused for lack of room, so its queue allows it alone. The queue may not allow ten of them.
    """
    ledger, chosen = QueueLedger(snapshot), list[PodGroup]()
    refused = Counter[QueueName]()
    for group in groups:
        pods = () if refused[group.queue] == PATIENCE else lacking(group)
        if not pods:
            continue
        request = sum((least_charge(pod, snapshot.nodes) for pod in pods), NOTHING)
        if ledger.check(group, request) is not None:
            refused[group.queue] += 1
            continue
        ledger.charge(group, request)
        chosen.append(group)
        if len(chosen) == most:
            break
    return chosen


def shapes(pods: Sequence[Pod], device_mib: int) -> tuple[PodShape, ...]:
    """Group pods by their requests. `device_mib` is the memory that is assumed for a GPU."""
    alike = dict[str, list[Pod]]()
    for pod in pods:
        alike.setdefault(_likeness(pod), []).append(pod)
    return tuple(_shape(members, device_mib) for members in alike.values())


def name_of(group: PodGroup, parts: Iterable[PodShape], provisioning_class: str) -> str:
    """Return the name of the object that is made for these shapes of a group."""
    said = [(_likeness(part.sample), part.count, part.pods_each) for part in parts]
    digest = sha256(repr((group.key, provisioning_class, sorted(said))).encode()).hexdigest()[:10]
    first = group.pending[0]
    prefix = (group.key.name if first.names_group else first.name)[:LONGEST_PREFIX].strip("-.")
    return f"{prefix.replace('.', '-')}-{digest}"


def _likeness(pod: Pod) -> str:
    asks = pod.request.amounts, pod.scalars, pod.sharing
    return repr((asks, pod.constraint, pod.near, pod.subgroup))


def _shape(members: Sequence[Pod], device_mib: int) -> PodShape:
    sharing = members[0].sharing
    if sharing is None:
        return PodShape(sample=members[0], count=len(members))
    held_mib = sharing.memory_mib + sharing.overhead_mib
    each = device_mib // held_mib if sharing.memory_mib else PPM // max(sharing.portion_ppm, 1)
    each = max(1, min(each, len(members)))
    return PodShape(sample=members[0], count=-(-len(members) // each), pods_each=each)
