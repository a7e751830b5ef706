"""Who is in a batch: the names of its gangs and pods, which are the same for every peer."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.contender import Batch
from tests.system.api import Object, pod

RUNNING: Object = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One pod of a batch."""

    name: str
    group: str = ""
    """Its gang; empty: it is alone."""
    node: str = ""
    """Where it runs already; empty: it waits."""


def gangs(batch: Batch) -> Sequence[str]:
    """Return the names of its gangs; pods that are alone are none."""
    if batch.gang_size == 1:
        return []
    return [f"{batch.name}-{index:04}" for index in range(batch.count // batch.gang_size)]


def members(batch: Batch) -> Sequence[Member]:
    """Return its pods, gang by gang."""
    groups = gangs(batch)
    return [
        Member(
            name=f"{batch.name}-{index:05}",
            group=groups[index // batch.gang_size] if groups else "",
            node=batch.on[index % len(batch.on)] if batch.on else "",
        )
        for index in range(batch.count)
    ]


def pod_of(batch: Batch, member: Member, *, scheduler: str) -> Object:
    """Return its pod without labels and annotations; one that runs already is gone at once when it is evicted."""
    if not member.node:
        return pod(member.name, gpus=batch.gpus, scheduler=scheduler)
    spec = {"nodeName": member.node, "terminationGracePeriodSeconds": 0}
    return {**pod(member.name, gpus=batch.gpus, scheduler=scheduler, spec=spec), "status": RUNNING}
