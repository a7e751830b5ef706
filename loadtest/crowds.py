"""Makes crowded clusters: 90 % of the GPUs are held by fractions, lone pods and gangs, and thousands of PodGroups wait.

The same seed makes the same cluster. Many of the waiting PodGroups cannot be helped by anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from app.model.names import NodeName, QueueName
from app.model.pod import ANYWHERE, PPM, Constraint, Placed, Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.resources import GPU, GPU_MILLI, Resources
from app.model.snapshot import PART, NodeTable, SharedDevice, Snapshot
from loadtest.snapshots import DEVICE_MIB, GPUS, NOW, learnt, pod, snapshot, waiting, with_memory

DEPARTMENTS, TEAMS = 4, 5
"""Teams are the leaf queues, so many below each department."""

KIND, FEW = "kind", 8
"""A label of the first few nodes."""

ON_FEW = Constraint(node_selector=((KIND, "few"),))
NOWHERE = Constraint(node_selector=((KIND, "none"),))

PRIORITIES = (25, 50, 50, 75)
FIRM = 125
"""A priority from 100 on means non-preemptible."""


def crowded(nodes: int, *, waiting: int = 2000, seed: int = 1) -> Snapshot:
    """Build a cluster of `nodes` nodes with 8 GPUs each, and so many waiting PodGroups."""
    random = Random(seed)  # not for secrets
    running = list(_Filling(nodes, random).groups())
    groups = [*running, *(_asking(index, random) for index in range(waiting))]
    made = snapshot(nodes, groups, {})
    return learnt(_with_queues(_with_devices(made), nodes))


def _queue_name(random: Random) -> str:
    """Choose a team; the first ones hold most of the cluster."""
    return _team(min(int(random.expovariate(0.15)), DEPARTMENTS * TEAMS - 1))


def _team(index: int) -> str:
    return f"team{index:02}"


@dataclass(slots=True)
class _Filling:
    """What runs; gangs are spread over the nodes that follow one another."""

    nodes: int
    random: Random
    made: int = 0

    def groups(self) -> Iterator[PodGroup]:
        """Yield the running PodGroups, node by node."""
        gang: list[Placed] = []
        for index in range(self.nodes):
            node, left = f"n{index:05}", GPUS - self.random.choice((0, 0, 0, 1, 1, 3))
            device = 0
            while left:
                kind = self.random.choice(("half", "lone", "lone", "gang"))
                gpus = min(left, 1 if kind == "half" else self.random.choice((1, 1, 2, 4)))
                if kind == "half":
                    yield from self._fractions(node, f"d{device}")
                    device += 1
                elif kind == "lone":
                    yield self._group([self._pod(node, gpus)])
                else:
                    gang.append(self._pod(node, gpus))
                    if len(gang) == 4:  # noqa: PLR2004 # pods of a gang
                        yield self._group(gang)
                        gang = []
                left -= gpus
        if gang:
            yield self._group(gang)

    def _fractions(self, node: str, device: str) -> Iterator[PodGroup]:
        for portion in self.random.choice(((2, 2), (2,), (4, 4), (4, 2))):
            sharing = Sharing(portion_ppm=PPM // portion)
            one = self._pod(node, 0)
            held = replace(one.pod, sharing=sharing, devices=(device,), device_uuids=(device,))
            yield self._group([replace(one, pod=held, devices=(device,))])

    def _pod(self, node: str, gpus: int) -> Placed:
        self.made += 1
        name = f"r{self.made:06}"
        return Placed(pod=replace(pod(name, name, "", gpus=gpus, at=0.0), node=NodeName(node)), node=NodeName(node))

    def _group(self, placed: list[Placed]) -> PodGroup:
        queue, key = QueueName(_queue_name(self.random)), placed[0].pod.group
        priority = FIRM if self.random.random() < 0.1 else self.random.choice(PRIORITIES)  # noqa: PLR2004 # a tenth
        return PodGroup(
            key=key,
            queue=queue,
            priority=priority,
            preemptible=priority < FIRM,
            min_member=len(placed),
            created_at=float(self.made),
            placed=tuple(replace(one, pod=replace(one.pod, group=key, queue=queue)) for one in placed),
            started_at=NOW - 10_000 + self.random.randrange(9000),
        )


def _asking(index: int, random: Random) -> PodGroup:
    kind = random.choice(("lone", "lone", "half", "gang", "gang", "huge", "greedy", "nowhere"))
    pods = {"gang": random.choice((2, 4, 8)), "huge": FEW + 1}.get(kind, 1)
    gpus = {"half": 0, "huge": 8}.get(kind, random.choice((1, 2, 4, 8)))
    made = waiting(f"w{index:05}", _team(random.randrange(DEPARTMENTS * TEAMS)), pods=pods, gpus=gpus, at=NOW + index)
    more = Resources(cpu_milli=100 * random.randrange(8) + (127_900 if kind == "greedy" else 0))
    sharing = Sharing(portion_ppm=PPM // random.choice((2, 4))) if kind == "half" else None
    where = {"nowhere": NOWHERE, "huge": ON_FEW}.get(kind, ANYWHERE)
    members = (_varied(one, more, sharing, where) for one in made.pending)
    return replace(made, priority=random.choice(PRIORITIES), pending=tuple(members))


def _varied(one: Pod, more: Resources, sharing: Sharing | None, where: Constraint) -> Pod:
    return replace(one, request=one.request + more, sharing=sharing, constraint=where)


def _with_devices(made: Snapshot) -> Snapshot:
    """Give the nodes the devices that the fractions share."""
    held: dict[NodeName, dict[str, int]] = {}
    for group in made.running.values():
        for one in group.placed:
            for device in one.devices:
                devices = held.setdefault(one.node, {})
                portion = one.pod.sharing.portion_ppm if one.pod.sharing else 0
                devices[device] = devices.get(device, DEVICE_MIB * PART) - DEVICE_MIB * portion
    free = made.free.copy()
    for node, devices in held.items():
        free[GPU, made.nodes.index[node]] -= len(devices) * GPU_MILLI
    shared = {node: tuple(SharedDevice(*each) for each in devices.items()) for node, devices in held.items()}
    table = with_memory(made.nodes)
    few = (replace(each, labels={KIND: "few"}) if index < FEW else each for index, each in enumerate(table.nodes))
    return replace(made, free=free, shared=shared, nodes=NodeTable.of(few))


def _with_queues(made: Snapshot, nodes: int) -> Snapshot:
    """Let the teams deserve four fifths of the GPUs; the last one of each department deserves nothing."""
    share = nodes * GPUS * GPU_MILLI * 4 // 5 // (DEPARTMENTS * (TEAMS - 1))
    queues = [
        Queue(name=QueueName(f"dept{each}"), gpu_milli=Entitlement(deserved=share * (TEAMS - 1)))
        for each in range(DEPARTMENTS)
    ]
    for index in range(DEPARTMENTS * TEAMS):
        deserved = 0 if index % TEAMS == TEAMS - 1 else share
        parent = QueueName(f"dept{index // TEAMS}")
        queues.append(Queue(name=QueueName(_team(index)), parent=parent, gpu_milli=Entitlement(deserved=deserved)))
    return replace(made, queues={each.name: each for each in queues})
