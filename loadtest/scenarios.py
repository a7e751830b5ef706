"""What every scheduler is given to do: the six kinds of work, in one size or another."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from loadtest.contender import Batch, Entitled
from tests.system.api import Object
from tests.system.machines import SIMULATED, machine_node

GPUS_A_NODE = 8
QUEUE, RICH, POOR = "bench", "rich", "poor"
BIG_GANGS = 4


class ImpossibleSizeError(ValueError):
    """The sizes asked for make no scenario; the message is one sentence."""


class Arrival(Enum):
    """When the pods come that are counted."""

    BEFORE = "before the clock starts"
    LATE = "all at once, while everything runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the first scenario is; the others follow it."""

    nodes: int = 500
    pods: int = 3000

    def __post_init__(self) -> None:
        """Raise `ImpossibleSizeError` where the pods could not all run."""
        if self.nodes < 10 or self.pods < 60:  # noqa: PLR2004 - below, a scenario would have no pod or no node left
            raise ImpossibleSizeError("Give at least 10 nodes and 60 pods, so that every scenario has some.")
        if self.pods > self.nodes * GPUS_A_NODE:
            gpus = self.nodes * GPUS_A_NODE
            raise ImpossibleSizeError(f"{self.pods} pods cannot run on {gpus} GPUs; give fewer pods or more nodes.")


QUICK = Size(nodes=40, pods=240)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of work. What is counted is `batch`: from its release, or its first creation, to its last bind."""

    name: str
    nodes: int
    batch: Batch
    arrival: Arrival = Arrival.BEFORE
    running: Batch | None = None
    """Pods that fill nodes from the start."""
    early: Batch | None = None
    """As many as `batch`, created and bound before there is a backlog: what `batch` is compared with."""
    backlog: Batch | None = None
    """Pods that fit nowhere, created and worked on before `batch`."""
    queues: Sequence[Entitled] = (Entitled(name=QUEUE),)

    @property
    def title(self) -> str:
        """Return what it is, in words."""
        on = f"on {self.nodes:,} nodes x {GPUS_A_NODE} GPUs"
        if self.running:
            return f"{_said(self.batch)} reclaims its share of {self.running.count:,} single-GPU pods {on}"
        if self.backlog:
            return f"{_said(self.batch)} behind {self.backlog.count:,} pods that fit nowhere, {on}"
        return f"{_said(self.batch)} {on}"

    @property
    def there_before(self) -> Sequence[Batch]:
        """Return what is there before the clock starts."""
        batches = (self.running, self.batch if self.arrival is Arrival.BEFORE else None)
        return [batch for batch in batches if batch]

    @property
    def batches(self) -> Sequence[Batch]:
        """Return all its pods."""
        return [batch for batch in (self.running, self.early, self.backlog, self.batch) if batch]


def node_objects(count: int) -> Sequence[Object]:
    """Return so many nodes."""
    return [machine_node(name) for name in node_names(count)]


def node_names(count: int) -> Sequence[str]:
    """Return the names of so many nodes: such as the simulated device plugins look after."""
    return [f"{SIMULATED}{index:05}" for index in range(count)]


def scenarios(size: Size) -> Sequence[Scenario]:
    """Return all, in the order in which they run."""
    return (
        _lone("lone", size.nodes, size.pods),
        _lone("lone-large", size.nodes * 2, size.pods * 5 // 3),
        _gangs(size),
        _big_gangs(size),
        _backlog(size),
        _reclaim(size),
        _fractions(size),
    )


def _lone(name: str, nodes: int, pods: int) -> Scenario:
    return Scenario(name=name, nodes=nodes, batch=Batch(name="p", count=pods, queue=QUEUE))


def _gangs(size: Size) -> Scenario:
    batch = Batch(name="g", count=size.pods // 30 * 20, queue=QUEUE, gang_size=20)
    return Scenario(name="gangs", nodes=size.nodes, batch=batch)


def _big_gangs(size: Size) -> Scenario:
    members = size.pods // 6
    batch = Batch(name="g", count=BIG_GANGS * members, queue=QUEUE, gang_size=members)
    return Scenario(name="big-gangs", nodes=size.nodes, batch=batch)


def _backlog(size: Size) -> Scenario:
    fitting = size.pods // 6
    return Scenario(
        name="backlog",
        nodes=size.nodes,
        batch=Batch(name="fit", count=fitting, queue=QUEUE),
        arrival=Arrival.LATE,
        early=Batch(name="early", count=fitting, queue=QUEUE),
        backlog=Batch(name="misfit", count=size.pods * 2 // 3, queue=QUEUE, gpus=2 * GPUS_A_NODE),
    )


def _reclaim(size: Size) -> Scenario:
    nodes = size.nodes // 5 * 2
    quota = nodes * GPUS_A_NODE // 2
    return Scenario(
        name="reclaim",
        nodes=nodes,
        batch=Batch(name="g", count=nodes // 2, queue=POOR, gang_size=nodes // 2, gpus=GPUS_A_NODE),
        arrival=Arrival.LATE,
        running=Batch(name="r", count=nodes * GPUS_A_NODE, queue=RICH, on=node_names(nodes)),
        queues=(Entitled(name=RICH, quota_gpus=quota), Entitled(name=POOR, quota_gpus=quota)),
    )


def _fractions(size: Size) -> Scenario:
    batch = Batch(name="half", count=size.pods * 2 // 3, queue=QUEUE, gpus=0, fraction="0.5")
    halves_a_node = 2 * GPUS_A_NODE
    nodes = max(size.nodes // 5 * 2, -(-batch.count // halves_a_node))
    return Scenario(name="fractions", nodes=nodes, batch=batch)


def _said(batch: Batch) -> str:
    asks = f"{batch.fraction} GPU" if batch.fraction else f"{batch.gpus} GPU" + "s" * (batch.gpus > 1)
    if batch.gang_size == 1:
        return f"{batch.count:,} pods of {asks}"
    gangs = batch.count // batch.gang_size
    many = "a gang" if gangs == 1 else f"{gangs:,} gangs"
    return f"{many} of {batch.gang_size:,} pods of {asks}"
