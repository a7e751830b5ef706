"""What is compared: the same pods through kube-scheduler alone and with Leeboard beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from app.model.marks import GATE
from tests.system.api import Object, gang, gpu_node, pod, queue

QUEUE = "bench"
GANG_SIZE = 20


class Work(Enum):
    """What has to be scheduled."""

    LONE_PODS = "lone pods"
    GANGS = f"gangs of {GANG_SIZE}"
    HELD_PODS = "held pods"
    HELD_GANGS = f"held gangs of {GANG_SIZE}"

    @property
    def free(self) -> "Work":
        """The same work without gates: what kube-scheduler alone is given."""
        return {Work.HELD_PODS: Work.LONE_PODS, Work.HELD_GANGS: Work.GANGS}.get(self, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the result."""

    name: str
    work: Work
    leeboard: bool
    """Whether Leeboard stands beside kube-scheduler; else the gangs are just pods."""


CASES = (
    Case(name="kube-scheduler alone", work=Work.LONE_PODS, leeboard=False),
    Case(name="with Leeboard", work=Work.LONE_PODS, leeboard=True),
    Case(name="kube-scheduler alone", work=Work.GANGS, leeboard=False),
    Case(name="with Leeboard", work=Work.GANGS, leeboard=True),
    Case(name="with Leeboard", work=Work.HELD_PODS, leeboard=True),
    Case(name="with Leeboard", work=Work.HELD_GANGS, leeboard=True),
)


def nodes(count: int) -> list[Object]:
    """Return nodes of 8 GPUs."""
    return [gpu_node(f"n{index:05}") for index in range(count)]


def objects(work: Work, pods: int) -> Sequence[Object]:
    """Return PodGroups and pods, single-GPU each, held by our gate or free; their queue comes with the release."""
    if work is not work.free:
        return [_held(item) for item in objects(work.free, pods)]
    if work is Work.LONE_PODS:
        return [pod(f"p-{index:05}", queue=QUEUE) for index in range(pods)]
    return [item for index in range(pods // GANG_SIZE) for item in gang(f"g-{index:04}", size=GANG_SIZE, queue=QUEUE)]


def _held(item: Object) -> Object:
    return {**item, "spec": item["spec"] | {"schedulingGates": [{"name": GATE}]}} if item["kind"] == "Pod" else item


def bench_queue() -> Object:
    """Return the queue without which Leeboard can decide nothing: creating it is what releases Leeboard."""
    return queue(QUEUE)
