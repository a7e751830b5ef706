"""Simulates users and their controllers: they submit jobs, unless too many wait, and later give up and clean up.

An evicted pod is submitted again at once, a failed pod after a pause, as a Job's controller does it.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from app.model.seam import Deleted, NotFoundError, RawObject, Resource
from app.simulation.admission import admitted, submitted
from app.simulation.clock import Clock
from app.simulation.cluster import DISRUPTION_TARGET, Ref, SimulatedCluster
from app.simulation.manifests import GROUP_ANNOTATION, QUEUE_LABEL
from app.simulation.workload import NEVER_START, Arrival

MOST_WAITING = 32
"""With this many pending pods in a namespace its users submit no more, so that a demo can run for days."""
MOST_IN_VAIN = 2
"""How many jobs of each kind that can never start wait at the same time."""
PATIENCE_S = 900.0
PAUSE_S = 10.0
"""The pause before a failed pod is submitted again, because it may fail again at once."""
AGAIN = "again"
"""The kind of jobs that are submitted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """A submitted job. It exists until its user gives up."""

    kind: str
    refs: tuple[Ref, ...]


class Users:
    """Submits one stream of jobs to one cluster."""

    def __init__(self, cluster: SimulatedCluster, clock: Clock) -> None:
        """Start without jobs.

        `_in_vain` holds the waiting jobs that can never start; `_submit` and `_give_up_later` change it.
        """
        self._cluster = cluster
        self._clock = clock
        self._in_vain: list[_Submission] = []

    async def run(self, work: Iterable[Arrival]) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tidy(tasks))
            for arrival in work:
                await self._clock.sleep(arrival.after_s)
                if self._has_room_for(arrival):
                    tasks.create_task(self._give_up_later(self._submit(arrival)))

    def _has_room_for(self, arrival: Arrival) -> bool:
        """Return whether few enough pods wait. Jobs that can never start must not block other jobs."""
        if arrival.kind in NEVER_START:
            return sum(piece.kind == arrival.kind for piece in self._in_vain) < MOST_IN_VAIN
        namespaces = {item["metadata"]["namespace"] for _, item in arrival.objects}
        in_vain = {ref.uid for piece in self._in_vain for ref in piece.refs}
        waiting = (pod["metadata"] for pod in filter(_is_pending, self._cluster.objects(Resource.PODS)))
        return sum(pod["namespace"] in namespaces and pod["uid"] not in in_vain for pod in waiting) < MOST_WAITING

    def _submit(self, arrival: Arrival) -> _Submission:
        refs = tuple(self._create(resource, item) for resource, item in arrival.objects)
        piece = _Submission(kind=arrival.kind, refs=refs)
        if arrival.kind in NEVER_START:
            self._in_vain.append(piece)
        return piece

    def _create(self, resource: Resource, item: RawObject) -> Ref:
        stored = admitted(item) if resource is Resource.PODS else item
        return Ref.of(resource, self._cluster.create(resource, stored))

    async def _give_up_later(self, piece: _Submission) -> None:
        await self._clock.sleep(PATIENCE_S)
        if piece in self._in_vain:
            self._in_vain.remove(piece)
        ours = {ref.uid for ref in piece.refs}
        for pod in filter(_is_pending, self._cluster.objects(Resource.PODS)):
            if pod["metadata"]["uid"] in ours:
                self._cluster.delete(Ref.of(Resource.PODS, pod))

    async def _tidy(self, tasks: asyncio.TaskGroup) -> None:
        async for event in self._cluster.watch_whole(Resource.PODS):
            if isinstance(event, Deleted) and self._clear_away(event.object):
                tasks.create_task(self._submit_after_a_pause(event.object))
            elif isinstance(event, Deleted) and _is_evicted(event.object):
                # At once: otherwise its PodGroup would be cleaned up.
                tasks.create_task(self._give_up_later(self._submit(_again(event.object))))
            elif isinstance(event, Deleted) and (group := _group_of(event.object)) is not None:
                self._remove_if_empty(group)

    async def _submit_after_a_pause(self, pod: RawObject) -> None:
        await self._clock.sleep(PAUSE_S)
        await self._give_up_later(self._submit(_again(pod)))

    def _clear_away(self, pod: RawObject) -> bool:
        """Remove a failed pod of these users; return whether there was one."""
        if QUEUE_LABEL not in pod["metadata"].get("labels", {}):
            return False  # The owners of other pods clean up themselves.
        uid, pods = pod["metadata"]["uid"], self._cluster.objects(Resource.PODS)
        failed = [one for one in pods if one["metadata"]["uid"] == uid and one["status"].get("phase") == "Failed"]
        for one in failed:
            self._cluster.delete(Ref.of(Resource.PODS, one))
        return bool(failed)

    def _remove_if_empty(self, group: Ref) -> None:
        left = (_group_of(pod) for pod in self._cluster.objects(Resource.PODS))
        if group not in left:
            with suppress(NotFoundError):
                self._cluster.delete(group)


def _is_pending(pod: RawObject) -> bool:
    return not pod["spec"].get("nodeName")


def _again(pod: RawObject) -> Arrival:
    # It is given up like any other: the rest of a gang with finished members never starts.
    return Arrival(after_s=0, kind=AGAIN, objects=((Resource.PODS, submitted(pod)),))


def _is_evicted(pod: RawObject) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(condition["type"] == DISRUPTION_TARGET for condition in conditions)


def _group_of(pod: RawObject) -> Ref | None:
    metadata = pod["metadata"]
    name = metadata.get("annotations", {}).get(GROUP_ANNOTATION)
    return Ref(resource=Resource.POD_GROUPS, namespace=metadata["namespace"], name=name) if name else None
