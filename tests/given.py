"""Builders of clusters for tests, with defaults for everything that a test does not say."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.model.dra import ClaimKey
from app.model.mix import TypicalMix, TypicalPod
from app.model.names import GroupKey, NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import Placed, Pod, ResourceClaim
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.resources import CPU, GPU, MEMORY, NOTHING, QUOTA_AXES, UNLIMITED, Resources
from app.model.snapshot import NO_USERS, ClaimUsers, NodeTable, Snapshot, Usage

GIB = 1 << 30


def node(name: str, *, gpus: int = 8, cpu: int = 64, **more: object) -> Node:
    """Build a Ready node of `gpus` whole GPUs, `cpu` cores, 512 GiB and 110 pods."""
    amounts = Resources(cpu_milli=cpu * 1000, memory_bytes=512 * GIB, gpu_milli=gpus * 1000, pods=110)
    return Node(name=NodeName(name), allocatable=amounts, **more)  # type: ignore[arg-type] # free-form by design


def pod(name: str, *, gpus: int = 1, cpu: int = 1, queue: str = "q", gang: str = "", **more: object) -> Pod:
    """Build a pending pod of namespace `default`, a group of its own unless `gang` names one."""
    return Pod(
        uid=PodUid(f"uid-{name}"),
        namespace="default",
        name=name,
        group=GroupKey("default", gang or f"uid-{name}"),
        names_group=bool(gang),
        queue=QueueName(queue),
        request=Resources(cpu_milli=cpu * 1000, gpu_milli=gpus * 1000, pods=1),
        **more,  # type: ignore[arg-type] # free-form by design
    )


def claim_key(text: str) -> ClaimKey:
    """Read `namespace/name`; the namespace is `default` where none is stated."""
    namespace, _, name = text.rpartition("/")
    return ClaimKey(namespace or "default", name)


def claim(key: str, device_class: str, count: int, **more: object) -> ResourceClaim:
    """Build a claim for devices that nodes have as the resource `dra:<device_class>`; each costs a GPU."""
    asked = ((f"dra:{device_class}", count),)
    return ResourceClaim(key=claim_key(key), scalars=asked, cost_milli=1000 * count, **more)  # type: ignore[arg-type] # free-form


def placed(pod: Pod, on: str, *devices: str) -> Placed:
    """Build a pod that has a node."""
    return Placed(pod=replace(pod, node=NodeName(on)), node=NodeName(on), devices=devices)


def group(
    *pods: Pod,
    min_member: int | None = None,
    active: int = 0,
    succeeded: int = 0,
    running: Iterable[Placed] = (),
    **more: object,
) -> PodGroup:
    """Build a PodGroup of pending pods, all of which must start together unless `min_member` says less.

    `running` have nodes; `active` is the number of further pods on nodes about which nothing is known.
    """
    like = pods[0] if pods else next(iter(running)).pod
    elsewhere = (pod(f"{like.group.name}-active-{index}", gang=like.group.name) for index in range(active))
    return PodGroup(
        key=like.group,
        queue=like.queue,
        min_member=len(pods) if min_member is None else min_member,
        pending=pods,
        placed=(*running, *(placed(one, "elsewhere") for one in elsewhere)),
        succeeded={"": succeeded} if succeeded else {},
        **more,  # type: ignore[arg-type] # free-form by design
    )


def queue(
    name: str, parent: str | None = None, *, deserved: int = 0, limit: int | None = None, weight: int = 1
) -> Queue:
    """Build a queue that limits whole GPUs and leaves CPU and memory unlimited."""
    gpu = Entitlement(
        deserved=deserved * 1000,
        limit=UNLIMITED if limit is None else limit * 1000,
        over_quota_weight_micro=weight * 1_000_000,
    )
    return Queue(name=QueueName(name), parent=QueueName(parent) if parent else None, gpu_milli=gpu)


def snapshot(nodes: Iterable[Node], queues: Iterable[Queue], groups: Iterable[PodGroup], **more: object) -> Snapshot:
    """Build a snapshot of a cluster with only these pending and running `groups`."""
    table = NodeTable.of(nodes)
    waiting = {one.key: one for one in groups}
    running = {one.key: one for one in waiting.values() if one.placed}
    waiting = {key: one for key, one in waiting.items() if one.pending or one.refusal}
    free = table.allocatable.copy()
    usage: dict[QueueName, Usage] = {}
    for one in (waiting | running).values():
        there = [(each.pod, table.index[each.node]) for each in one.placed if each.node in table.index]
        held = sum((each.charge(int(table.device_memory_mib[column])) for each, column in there), NOTHING)
        asked = sum((each.charge(table.smallest_device_mib) for each in one.pending), held)
        before = usage.get(one.queue, Usage())
        firm = NOTHING if one.preemptible else held
        usage[one.queue] = Usage(
            allocated=before.allocated + held,
            allocated_non_preemptible=before.allocated_non_preemptible + firm,
            requested=before.requested + asked,
        )
        for each in one.placed:
            if each.node in table.index:
                free[:, table.index[each.node]] -= each.pod.request.amounts
    users = claim_users((waiting | running).values())
    return Snapshot(
        version=1,
        nodes=table,
        free=free,
        queues={one.name: one for one in queues},
        usage=with_claims(usage, users),
        groups=waiting,
        running=running,
        total=Resources.of(table.allocatable.sum(axis=1)),
        claim_users={key: count for key, (_, count) in users.items()},
        **more,  # type: ignore[arg-type] # free-form by design
    )


ClaimCosts = dict[tuple[QueueName, ClaimKey], tuple[int, ClaimUsers]]


def with_claims(usage: dict[QueueName, Usage], users: ClaimCosts) -> dict[QueueName, Usage]:
    """Return what queues hold, with the claims that their pods share: once each."""
    found = dict(usage)
    for (name, _), (cost_milli, count) in users.items():
        cost, before = Resources(gpu_milli=cost_milli), found[name]
        found[name] = Usage(
            allocated=before.allocated + (cost if count.placed else NOTHING),
            allocated_non_preemptible=before.allocated_non_preemptible + (cost if count.firm else NOTHING),
            requested=before.requested + cost,
        )
    return found


def claim_users(groups: Iterable[PodGroup]) -> ClaimCosts:
    """Return what each queue pays for each claim that its pods share, and the pods that use it."""
    found: ClaimCosts = {}
    for group in groups:
        for pod, placed in (*((each.pod, 1) for each in group.placed), *((each, 0) for each in group.pending)):
            for each in pod.claims:
                _, count = found.get((group.queue, each.key), (0, NO_USERS))
                firm = 0 if group.preemptible else placed
                count = ClaimUsers(count.placed + placed, count.firm + firm, count.known + 1)
                found[group.queue, each.key] = each.cost_milli, count
    return found


__all__ = ["CPU", "GIB", "GPU", "MEMORY", "QUOTA_AXES", "group", "node", "placed", "pod", "queue", "snapshot"]


@dataclass(slots=True)
class GpuSizes:
    """Nodes that are all alike: each GPU has this memory, and the device plugin offers so many."""

    memory_mib: int
    gpus_a_node: int
    shares: bool = True

    def gpus(self, name: NodeName) -> tuple[int, int]:
        del name
        return self.memory_mib, self.gpus_a_node

    def divides(self, name: NodeName) -> bool:
        del name
        return self.shares


def mix(pods: Iterable[Pod], *, rooms: int = 1, device_memory_mib: int = 1000) -> TypicalMix | None:
    """Build the typical mix of these pods, with as many nodes with room for each kind; None without pods."""
    counts = Counter(kind for pod in pods if (kind := TypicalPod.of(pod, device_memory_mib)) is not None)
    kinds = sorted(counts)
    thousandths = tuple(1000 * counts[kind] for kind in kinds)
    return TypicalMix(tuple(kinds), thousandths, (rooms,) * len(kinds), gpu_nodes=1) if kinds else None
