"""Random small clusters for property tests, summed up by plain loops that share nothing with the planner."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from app.model.decision import Plan
from app.model.names import NodeName, PodUid, QueueName
from app.model.node import Node
from app.model.pod import ANYWHERE, PPM, Constraint, Placed, Pod, Sharing
from app.model.podgroup import PodGroup, PodSet, SubGroup, TopologyConstraint
from app.model.queue import Queue
from app.model.resources import GPU, GPU_MILLI, NOTHING, Resources
from app.model.snapshot import PART, NodeTable, SharedDevice, Snapshot, Usage
from app.model.topology import Topology
from app.scheduling.queues.order import start_order
from tests import given

NOW = 1000.0
EAST = Constraint(node_selector=(("zone", "east"),))
TOPOLOGY = Topology(name="t", levels=("zone", "rack"))


# The nodes and the pods on them ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Hold:
    """What pods hold of one node."""

    kept: Resources = NOTHING
    leaving: Resources = NOTHING
    parts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """By shared device: the parts held by pods that stay, and by terminating pods."""

    def add(self, one: Placed, device_memory_mib: int, *, leaving: int) -> None:
        """Count a pod that stays (0) or terminates (1)."""
        if leaving:
            self.leaving += one.pod.request
        else:
            self.kept += one.pod.request
        for name in one.devices:
            self.parts[name][leaving] += parts_of(one.pod.sharing or Sharing(), device_memory_mib)

    @property
    def opened(self) -> int:
        """The devices that are in shared use, in milli."""
        return GPU_MILLI * len(self.parts)

    @property
    def whole_again(self) -> int:
        """Those of them that are idle when all terminating pods are gone, in milli."""
        return GPU_MILLI * sum(1 for kept, _ in self.parts.values() if not kept)


def parts_of(sharing: Sharing, device_memory_mib: int) -> int:
    """Return how many parts (`PART`) of one device are requested."""
    return sharing.memory_mib * PART or sharing.portion_ppm * device_memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A cluster at one moment."""

    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    groups: tuple[PodGroup, ...]
    leaving: tuple[tuple[PodGroup, Placed], ...] = ()
    """Pods that are being deleted, with the group that they belonged to."""
    now: float = NOW
    learnt: bool = False
    """Whether a typical mix of pods is known."""

    def snapshot(self) -> Snapshot:
        """Sum up what the planner sees."""
        table, held = NodeTable.of(self.nodes), self.held()
        free, releasing = table.allocatable.copy(), np.zeros_like(table.allocatable)
        for column, node in enumerate(table.nodes):
            here = held[node.name]
            free[:, column] -= (here.kept + here.leaving).amounts
            releasing[:, column] += here.leaving.amounts
            free[GPU, column] -= here.opened
            releasing[GPU, column] += here.whole_again
        return Snapshot(
            version=1,
            nodes=table,
            free=free,
            queues={each.name: each for each in self.queues},
            usage=self._usage(table),
            groups={group.key: group for group in self.groups if group.pending},
            running={group.key: group for group in self.groups if group.placed},
            total=table.capacity,
            releasing=releasing if self.leaving else None,
            shared={node.name: self._shared(node, held[node.name]) for node in table.nodes},
            topologies={TOPOLOGY.name: TOPOLOGY},
            mix=given.mix(self._pods()) if self.learnt else None,
        )

    def _pods(self) -> Iterator[Pod]:
        for group in self.groups:
            yield from group.pending
            yield from (one.pod for one in group.placed)

    def held(self) -> dict[NodeName, Hold]:
        """Sum up what pods hold of every node."""
        held, memory = {node.name: Hold() for node in self.nodes}, self._memory()
        for group in self.groups:
            for one in group.placed:
                held[one.node].add(one, memory[one.node], leaving=0)
        for _, one in self.leaving:
            held[one.node].add(one, memory[one.node], leaving=1)
        return held

    def overcommitted(self) -> list[str]:
        """Return what is held beyond the capacity, one sentence each."""
        return [sentence for node in self.nodes for sentence in _overcommitted(node, self.held()[node.name])]

    def _memory(self) -> dict[NodeName, int]:
        return {node.name: node.device_memory_mib for node in self.nodes}

    def _shared(self, node: Node, hold: Hold) -> tuple[SharedDevice, ...]:
        whole = node.device_memory_mib * PART
        return tuple(SharedDevice(name, whole - sum(parts), parts[1]) for name, parts in sorted(hold.parts.items()))

    def _usage(self, table: NodeTable) -> dict[QueueName, Usage]:
        sums: dict[QueueName, Usage] = {each.name: Usage() for each in self.queues}
        memory = self._memory()
        holding = [(group, one) for group in self.groups for one in group.placed]
        for group, one in (*holding, *self.leaving):
            _pay(sums, group, one.pod.charge(memory[one.node]))
        for group in self.groups:
            for pod in group.pending:
                before = sums[group.queue]
                asked = before.requested + pod.charge(table.smallest_device_mib)
                sums[group.queue] = replace(before, requested=asked)
        return sums

    # The effect of a plan -------------------------------------------------------------------------------------------

    def at_once(self, plan: Plan) -> "World":
        """Return the world in which the pods that start now run, and no victim is gone yet."""
        evicted = {each.pod for each in plan.evictions}
        leaving = [(group, one) for group in self.groups for one in group.placed if one.pod.uid in evicted]
        placed = _placements(plan, (start for start in plan.starts if not start.awaits_release))
        groups = tuple(self._changed(group, evicted, placed) for group in self.groups)
        return replace(self, groups=groups, leaving=(*self.leaving, *leaving))

    def after(self, plan: Plan) -> "World":
        """Return the world after all evictions and starts; evicted pods are pending again or run where they may."""
        evicted = {each.pod for each in plan.evictions}
        moved = {each.pod: (each.moves_to, each.devices) for each in plan.evictions if each.moves_to is not None}
        placed = _placements(plan, plan.starts) | moved
        return replace(self, groups=tuple(self._changed(group, evicted, placed) for group in self.groups), leaving=())

    def _changed(self, group: PodGroup, evicted: set[PodUid], placed: "Places") -> PodGroup:
        stay = [one for one in group.placed if one.pod.uid not in evicted]
        asking = [*group.pending, *(replace(one.pod, node=None) for one in group.placed if one.pod.uid in evicted)]
        come = [given.placed(pod, *_flat(placed[pod.uid])) for pod in asking if pod.uid in placed]
        wait = sorted((pod for pod in asking if pod.uid not in placed), key=start_order)
        after = replace(group, placed=(*stay, *come), pending=tuple(wait))
        started_at = (group.started_at if stay else self.now) if after.placed else None
        stale_since = None if is_whole(after) else group.stale_since or self.now
        return replace(after, started_at=started_at, stale_since=stale_since)


Place = tuple[NodeName, tuple[str, ...]]
Places = Mapping[PodUid, Place]


def _flat(place: Place) -> tuple[str, ...]:
    return place[0], *place[1]


def _placements(plan: Plan, starts: Iterable[object]) -> dict[PodUid, Place]:
    chosen = list(starts)
    return {one.pod: (one.node, one.devices) for start in plan.starts if start in chosen for one in start.placements}


def _pay(sums: dict[QueueName, Usage], group: PodGroup, charge: Resources) -> None:
    before = sums[group.queue]
    sums[group.queue] = Usage(
        allocated=before.allocated + charge,
        allocated_non_preemptible=before.allocated_non_preemptible + (NOTHING if group.preemptible else charge),
        requested=before.requested + charge,
    )


def _overcommitted(node: Node, hold: Hold) -> Iterator[str]:
    used = hold.kept + hold.leaving + Resources(gpu_milli=hold.opened)
    for amount, have in zip(used.amounts, node.allocatable.amounts, strict=True):
        if amount > have:
            yield f"{node}: {used} of {node.allocatable}"
    for name, (kept, leaving) in hold.parts.items():
        if kept + leaving > node.device_memory_mib * PART:
            yield f"{node}, device {name}: {(kept + leaving) / (node.device_memory_mib * PART):.0%}"


def is_whole(group: PodGroup) -> bool:
    """Whether every pod set has its minimum, or the group holds nothing at all."""
    held = group.held()
    return not group.placed or all(held.get(leaf.name, 0) >= leaf.min_member for leaf in group.tree.leaves())


# Building random worlds -----------------------------------------------------------------------------------------------


def world(dice: Random) -> World:
    """Build a random cluster: nodes and queues, running pods, a few terminating pods, and pending pods."""
    nodes, queues = tuple(_nodes(dice)), tuple(_queues(dice))
    parents = {each.parent for each in queues}
    leaves = [each for each in queues if each.name not in parents]
    filling = _Filling(dice, nodes)
    groups = [filling.settle(_group(dice, number, dice.choice(leaves))) for number in range(dice.randint(3, 12))]
    leaving = [group for group in groups if len(group.placed) == 1 and not group.pending and dice.random() < 0.1]
    return World(
        nodes=nodes,
        queues=queues,
        groups=tuple(group for group in groups if group not in leaving),
        leaving=tuple((group, group.placed[0]) for group in leaving),
    )


worlds: st.SearchStrategy[World] = st.builds(
    lambda dice, learnt: replace(world(dice), learnt=learnt), st.randoms(use_true_random=False), st.booleans()
)


def _nodes(dice: Random) -> Iterator[Node]:
    memory = dice.choice([100, 100, 81_920])
    for number in range(dice.choice([1, 2, 2, 3, 4, 6])):
        yield given.node(
            f"n{number}",
            gpus=dice.choice([1, 2, 2, 4, 4, 8]),
            cpu=dice.choice([64, 64, 6]),
            device_memory_mib=memory * dice.choice([1, 1, 2]),
            labels={"zone": dice.choice(["east", "west"]), "rack": dice.choice(["r0", "r1"])},
        )


def _queues(dice: Random) -> Iterator[Queue]:
    depth = dice.randint(1, 3)
    for top in range(dice.randint(1, 3)):
        yield from _branch(dice, f"q{top}", None, depth)


def _branch(dice: Random, name: str, parent: str | None, depth: int) -> Iterator[Queue]:
    own = given.queue(
        name,
        parent,
        deserved=dice.choice([0, 1, 2, 3, 4, 6]) * depth,
        limit=dice.choice([None, None, None, 4, 8]),
        weight=dice.choice([1, 1, 2, 0]),
    )
    seconds = dice.choice([None, None, None, 60.0])
    yield replace(own, preempt_min_runtime_s=seconds, reclaim_min_runtime_s=seconds, created_at=dice.choice([0.0, 1.0]))
    if depth > 1:
        for number in range(dice.randint(0, 2)):
            yield from _branch(dice, f"{name}.{number}", name, depth - 1)


def _group(dice: Random, number: int, queue: Queue) -> PodGroup:
    like = _template(dice)
    size, priority = dice.choice([1, 1, 2, 3, 4]), dice.choice([50, 50, 50, 75, 100])
    root = _root(dice, size)
    names = [leaf.name for leaf in root.leaves()] if root is not None else [""]
    pods = [
        replace(
            given.pod(f"g{number}-{index}", queue=queue.name, gang=f"g{number}"),
            subgroup=names[index % len(names)],
            created_at=float(number),
            **like,
        )
        for index in range(size)
    ]
    least = dice.randint(1, size) if root is None else sum(leaf.min_member for leaf in root.leaves())
    preemptible = priority < 100 if dice.random() < 0.9 else not priority < 100
    built = given.group(*pods, min_member=least, priority=priority, preemptible=preemptible, root=root)
    return replace(built, created_at=float(number))


def _template(dice: Random) -> dict[str, Any]:
    """Return the requests of the pods of a group."""
    constraint = dice.choice([ANYWHERE] * 7 + [EAST])
    gpus, cpu = dice.choice([1, 1, 1, 2, 2, 4, 0]), dice.choice([1, 1, 4])
    sharing = None
    if dice.random() < 0.3:
        portion, gpus = dice.choice([PPM // 2, PPM // 4, 333_333, 700_000]), 0
        devices = dice.choice([1, 1, 1, 2])
        by_memory = Sharing(memory_mib=dice.choice([30, 60, 100]), devices=devices)
        sharing = dice.choice([Sharing(portion_ppm=portion, devices=devices), by_memory])
    request = Resources(cpu_milli=cpu * 1000, gpu_milli=gpus * 1000, pods=1)
    return {"constraint": constraint, "request": request, "sharing": sharing}


def _root(dice: Random, size: int) -> SubGroup | None:
    if size == 1 or dice.random() < 0.7:
        return None
    near = TopologyConstraint("t", required=dice.choice(["", "zone", "rack"]), preferred=dice.choice(["", "rack"]))
    if dice.random() < 0.5:
        return SubGroup(topology=near, pod_sets=(PodSet(name="all", min_member=dice.randint(1, size)),))
    sets = (PodSet(name="a", min_member=1), PodSet(name="b", min_member=1, topology=dice.choice([None, near])))
    return SubGroup(topology=dice.choice([None, near]), pod_sets=sets)


class _Filling:
    """Fills nodes with running pods, as far as there is room."""

    def __init__(self, dice: Random, nodes: Sequence[Node]) -> None:
        self._dice = dice
        self._nodes = nodes
        self._held = {node.name: Hold() for node in nodes}

    def settle(self, group: PodGroup) -> PodGroup:
        """Let the group run with some of its pods, or leave it pending."""
        dice = self._dice
        if dice.random() < 0.35:
            return group
        wanted = len(group.pending) if dice.random() < 0.7 else dice.randint(1, len(group.pending))
        rack = self._rack(group)
        placed = [one for pod in group.pending[:wanted] if (one := self._place(pod, rack)) is not None]
        gone = {one.pod.uid for one in placed}
        after = replace(group, placed=tuple(placed), pending=tuple(p for p in group.pending if p.uid not in gone))
        if not is_whole(after) and dice.random() < 0.8:
            self._leave(placed)
            return group
        stale_since = None if is_whole(after) else NOW - dice.choice([10.0, 100.0])
        started_at = NOW - dice.choice([500.0, 500.0, 10.0]) if placed else None
        return replace(after, started_at=started_at, stale_since=stale_since)

    def _rack(self, group: PodGroup) -> Mapping[str, str]:
        """Return labels of the nodes that a group with a topology may use."""
        return {} if group.root is None else self._dice.choice(self._nodes).labels

    def _place(self, pod: Pod, labels: Mapping[str, str]) -> Placed | None:
        nodes = [node for node in self._nodes if not labels or node.labels == labels]
        nodes = [node for node in nodes if dict(pod.constraint.node_selector).items() <= node.labels.items()]
        for node in self._dice.sample(nodes, len(nodes)):
            one = self._on(pod, node)
            if one is not None:
                return one
        return None

    def _on(self, pod: Pod, node: Node) -> Placed | None:
        hold = self._held[node.name]
        devices: tuple[str, ...] = ()
        if pod.sharing is not None:
            names = [*hold.parts, *(f"{pod.uid}-{index}" for index in range(pod.sharing.devices))]
            free = node.device_memory_mib * PART - parts_of(pod.sharing, node.device_memory_mib)
            fitting = [name for name in names if sum(hold.parts.get(name, (0, 0))) <= free]
            devices = tuple(fitting[: pod.sharing.devices])
            if len(devices) < pod.sharing.devices:
                return None
        one = given.placed(pod, node.name, *devices)
        hold.add(one, node.device_memory_mib, leaving=0)
        if any(_overcommitted(node, hold)):
            self._remove(one)
            return None
        return one

    def _leave(self, placed: Iterable[Placed]) -> None:
        for one in placed:
            self._remove(one)

    def _remove(self, one: Placed) -> None:
        hold = self._held[one.node]
        hold.kept -= one.pod.request
        memory = next(node.device_memory_mib for node in self._nodes if node.name == one.node)
        for name in one.devices:
            hold.parts[name][0] -= parts_of(one.pod.sharing or Sharing(), memory)
            if not hold.parts[name][0]:
                del hold.parts[name]
