"""Plays the people and their controllers: they submit work, stop while too much of theirs waits, give up and tidy up.

What was evicted is submitted again at once, as a Job's controller does it.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from app.model.seam import Deleted, NotFoundError, RawObject, Resource
from app.simulation.clock import Clock
from app.simulation.cluster import DISRUPTION_TARGET, Ref, SimulatedCluster
from app.simulation.manifests import GROUP_ANNOTATION
from app.simulation.workload import Arrival

MOST_WAITING = 80
"""With so many pods pending nobody submits more, so that a demo may run for days."""
PATIENCE_S = 900.0


class Users:
    """Submits one stream of work to one cluster."""

    def __init__(self, cluster: SimulatedCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def run(self, work: Iterable[Arrival]) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tidy())
            for arrival in work:
                await self._clock.sleep(arrival.after_s)
                await self._until_less_waits()
                tasks.create_task(self._give_up_later(self._submit(arrival)))

    def _submit(self, arrival: Arrival) -> list[Ref]:
        return [Ref.of(resource, self._cluster.create(resource, item)) for resource, item in arrival.objects]

    async def _until_less_waits(self) -> None:
        while sum(map(_is_pending, self._cluster.objects(Resource.PODS))) >= MOST_WAITING:
            await self._clock.sleep(1.0)

    async def _give_up_later(self, refs: list[Ref]) -> None:
        await self._clock.sleep(PATIENCE_S)
        ours = {ref.uid for ref in refs}
        for pod in filter(_is_pending, self._cluster.objects(Resource.PODS)):
            if pod["metadata"]["uid"] in ours:
                self._cluster.delete(Ref.of(Resource.PODS, pod))

    async def _tidy(self) -> None:
        async for event in self._cluster.follow(Resource.PODS):
            if isinstance(event, Deleted) and _is_evicted(event.object):
                self._cluster.create(Resource.PODS, _anew(event.object))
            elif isinstance(event, Deleted) and (group := _group_of(event.object)) is not None:
                self._remove_if_empty(group)

    def _remove_if_empty(self, group: Ref) -> None:
        left = (_group_of(pod) for pod in self._cluster.objects(Resource.PODS))
        if group not in left:
            with suppress(NotFoundError):
                self._cluster.delete(group)


def _is_pending(pod: RawObject) -> bool:
    return not pod["spec"].get("nodeName")


def _is_evicted(pod: RawObject) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(condition["type"] == DISRUPTION_TARGET for condition in conditions)


def _anew(pod: RawObject) -> RawObject:
    """Return the pod as it was submitted."""
    kept = ("name", "namespace", "labels", "annotations")
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    metadata = {name: pod["metadata"][name] for name in kept}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _group_of(pod: RawObject) -> Ref | None:
    metadata = pod["metadata"]
    name = metadata.get("annotations", {}).get(GROUP_ANNOTATION)
    return Ref(resource=Resource.POD_GROUPS, namespace=metadata["namespace"], name=name) if name else None
