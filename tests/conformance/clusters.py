"""Turns the cluster of a scheduling case into the Snapshot of the product's planner."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.model.names import GroupKey, QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.resources import NOTHING, Resources
from app.model.snapshot import NodeTable, Snapshot, Usage
from app.model.topology import Topology
from tests import given
from tests.conformance.jobs import Jobs
from tests.conformance.machines import Room, table
from tests.conformance.seats import RELEASING, Seats
from tests.conformance.vectors import Case, bounded, exact, resources


@dataclass(frozen=True, slots=True)
class Cluster:
    """One case, read once; a Snapshot is taken of it for each session."""

    case: Case
    jobs: Jobs
    nodes: NodeTable
    queues: tuple[Queue, ...]

    @staticmethod
    def of(case: Case) -> "Cluster":
        """Read everything that does not change between sessions."""
        cluster = case["cluster"]
        governed = has_plugin(case, "proportion")
        read = queue if governed else _ungoverned
        queues = tuple(read(each) for each in (*cluster["departments"], *cluster["queues"]))
        return Cluster(case, Jobs.of(case), table(case), queues)

    def snapshot(self, seats: Seats, *, version: int = 1) -> Snapshot:
        """Take the snapshot of one moment."""
        room = self.room(seats)
        groups = self.jobs.groups(seats)
        return Snapshot(
            version=version,
            nodes=self.nodes,
            free=room.free,
            queues={each.name: each for each in self.queues},
            usage=self._usage(groups),
            groups=_by_key(group for group in groups if group.pending),
            running=_by_key(group for group in groups if group.placed),
            total=self._total(),
            releasing=room.releasing if room.releasing.any() else None,
            scalars=room.scalars,
            releasing_scalars=room.releasing_scalars,
            shared=room.shared,
            claimed=room.claimed,
            claim_users={key: count for key, (_, count) in given.claim_users(groups).items()},
            topologies={
                each["name"]: Topology(name=each["name"], levels=tuple(each["levels"]))
                for each in self.case["cluster"]["topologies"]
            },
            labelled=tuple(
                (pod.labels, self.nodes.nodes[self.nodes.index[seats[name].node]].name)  # type: ignore[index] # placed
                for name, pod in self.jobs.pods.items()
                if pod.labels is not None and seats[name].status == RELEASING
            ),
        )

    def room(self, seats: Seats) -> Room:
        """Return what the tasks leave of the nodes."""
        return Room.of(self.case, self.nodes, self.jobs.pods, seats)

    def _usage(self, groups: Sequence[PodGroup]) -> dict[QueueName, Usage]:
        usage = {each.name: Usage() for each in self.queues}
        for group in groups:
            before = usage.get(group.queue, Usage())
            held = self._held(group)
            usage[group.queue] = Usage(
                allocated=before.allocated + held,
                allocated_non_preemptible=before.allocated_non_preemptible + (NOTHING if group.preemptible else held),
                requested=before.requested + held + self._asked(group),
            )
        return given.with_claims(usage, given.claim_users(groups))

    def _held(self, group: PodGroup) -> Resources:
        index, memory = self.nodes.index, self.nodes.device_memory_mib
        charges = (each.pod.charge(int(memory[index[each.node]])) for each in group.placed if each.node in index)
        return sum(charges, NOTHING)

    def _asked(self, group: PodGroup) -> Resources:
        smallest = self.case["cluster"]["min_node_gpu_memory_mib"]
        return sum((pod.charge(smallest) for pod in group.pending), NOTHING)

    def _total(self) -> Resources:
        total = self.case["cluster"].get("total_resources")
        if total is None:
            return self.nodes.capacity
        return resources({"cpu": total["cpu_milli"], "memory": total["memory_bytes"], "gpu": total["gpu"]})


def has_plugin(case: Case, name: str) -> bool:
    """Return whether a plugin of KAI runs in the case; without a list, all of the default ones do."""
    plugins = case["config"]["plugins"]
    return plugins is None or any(each["name"] == name for each in plugins)


def queue(attributes: Case) -> Queue:
    """Read a queue or a department."""
    parent = attributes["parent"]
    return Queue(
        name=QueueName(attributes["name"]),
        parent=QueueName(parent) if parent else None,
        priority=attributes["priority"],
        created_at=attributes["creation_order"] or 0,
        cpu_milli=_entitlement(attributes["cpu_milli"], 1),
        memory_bytes=_entitlement(attributes["memory_bytes"], 1),
        gpu_milli=_entitlement(attributes["gpu"], 1000),
        preempt_min_runtime_s=attributes["preempt_min_runtime_s"],
        reclaim_min_runtime_s=attributes["reclaim_min_runtime_s"],
    )


def _entitlement(resource: Case, scale: int) -> Entitlement:
    return Entitlement(
        deserved=bounded(resource["deserved"], scale),
        limit=bounded(resource["limit"], scale),
        # The helper gives a department the weight of its deserved GPUs, -1 for all: it never divides a surplus then.
        over_quota_weight_micro=exact(max(0, resource["over_quota_weight"]), 1_000_000),
    )


def _ungoverned(attributes: Case) -> Queue:
    parent = attributes["parent"]
    return Queue(
        name=QueueName(attributes["name"]),
        parent=QueueName(parent) if parent else None,
        created_at=attributes["creation_order"] or 0,
    )


def _by_key(groups: Iterable[PodGroup]) -> dict[GroupKey, PodGroup]:
    return {group.key: group for group in groups}
