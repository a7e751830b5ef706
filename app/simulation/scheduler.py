"""Simulates kube-scheduler, which calls the webhooks.

Its filters are in `stock`, its queue in `waiting`, the wire in `webhooks`. The steps for a pod: 1. its turn  2. the
nominated node first, then all  3. stock filters  4. /filter  5. /prioritize for several nodes  6. assume  7. /bind in
its own task. A refused pod is parked until something changes. After an error it backs off.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from app.model.seam import Changed, Deleted, Listed, NotFoundError, RawObject, Resource, rfc3339
from app.simulation.clock import Clock
from app.simulation.cluster import Ref, SimulatedCluster
from app.simulation.ledger import Holdings
from app.simulation.manifests import PROFILE
from app.simulation.stock import barred, lacking, requests
from app.simulation.waiting import SchedulingQueue
from app.simulation.webhooks import ExtenderError, Filtered

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 10.0


class ExtenderClient(Protocol):
    """The client of an extender. Each method raises `ExtenderError`."""

    async def filter(self, pod: RawObject, names: Sequence[str]) -> Filtered:
        """Return the nodes that remain."""
        ...

    async def prioritize(self, pod: RawObject, names: Sequence[str]) -> Mapping[str, int]:
        """Return scores by node."""
        ...

    async def bind(self, pod: RawObject, node: str) -> None:
        """Bind the pod."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A node, or the reasons against every node."""

    node: str | None = None
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The refusal in the words of kube-scheduler's FitError."""
        counts = Counter(reason for reasons in self.reasons.values() for reason in reasons)
        parts = sorted(f"{count} {reason}" for reason, count in counts.items())
        head = f"0/{len(self.reasons)} nodes are available"
        return f"{head}: {', '.join(parts)}." if parts else f"{head}."


class Scheduler:
    """One profile of kube-scheduler with one extender."""

    def __init__(self, cluster: SimulatedCluster, extender: ExtenderClient, clock: Clock) -> None:
        self._cluster = cluster
        self._extender = extender
        self._clock = clock
        # Watched objects, bound or assumed pods, and failed attempts. Only this class changes them.
        self._nodes: dict[str, RawObject] = {}
        self._pods: dict[str, RawObject] = {}
        self._ledger = Holdings()
        self._failures: Counter[str] = Counter()
        self._queue = SchedulingQueue()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_nodes())
            tasks.create_task(self._follow_pods())
            while True:
                pod = self._pods[await self._queue.pop()]
                await self._schedule(pod, tasks)

    # Watching.

    async def _follow_nodes(self) -> None:
        async for event in self._cluster.watch_whole(Resource.NODES):
            match event:
                case Listed(objects):
                    self._nodes = {node["metadata"]["name"]: node for node in objects}
                case Changed(node):
                    self._nodes[node["metadata"]["name"]] = node
                case Deleted(node):
                    self._nodes.pop(node["metadata"]["name"], None)
                case _:
                    continue
            self._queue.wake_all()

    async def _follow_pods(self) -> None:
        async for event in self._cluster.watch_whole(Resource.PODS):
            match event:
                case Listed(objects):
                    for pod in objects:
                        self._see(pod)
                case Changed(pod):
                    self._see(pod)
                case Deleted(pod):
                    self._forget(pod)
                case _:
                    pass

    def _see(self, pod: RawObject) -> None:
        uid = pod["metadata"]["uid"]
        before, self._pods[uid] = self._pods.get(uid), pod
        if node := pod["spec"].get("nodeName"):
            self._ledger.hold(uid, node, requests(pod))
            self._queue.remove(uid)
        elif pod["spec"].get("schedulerName") == PROFILE and not pod["spec"].get("schedulingGates"):
            self._queue.add(uid, priority=pod["spec"].get("priority", 0))
            if before is not None and _what_wakes(before) != _what_wakes(pod):
                self._queue.wake(uid)

    def _forget(self, pod: RawObject) -> None:
        uid = pod["metadata"]["uid"]
        held_a_node = uid in self._ledger
        self._ledger.release(uid)
        self._pods.pop(uid, None)
        self._failures.pop(uid, None)
        self._queue.remove(uid)
        if held_a_node:
            self._queue.wake_all()

    # Scheduling.

    async def _schedule(self, pod: RawObject, tasks: asyncio.TaskGroup) -> None:
        uid = pod["metadata"]["uid"]
        try:
            choice = await self._choose(pod)
        except ExtenderError as error:
            tasks.create_task(self._retry_later(pod, error))
            return
        if choice.node is None:
            self._refuse(pod, reason="Unschedulable", message=choice.message)
            self._queue.park(uid)
        elif uid in self._pods:
            self._ledger.hold(uid, choice.node, requests(pod))
            tasks.create_task(self._bind(pod, choice.node))

    async def _choose(self, pod: RawObject) -> Choice:
        nominated = pod.get("status", {}).get("nominatedNodeName")
        if nominated in self._nodes:
            with suppress(ExtenderError):  # kube-scheduler logs the error and evaluates all nodes.
                choice = await self._choose_among(pod, [nominated])
                if choice.node is not None:
                    return choice
        return await self._choose_among(pod, list(self._nodes))

    async def _choose_among(self, pod: RawObject, names: Sequence[str]) -> Choice:
        reasons = self._reasons_against(pod, names)
        fitting = [name for name in names if not reasons[name]]
        if not fitting:
            return Choice(reasons=reasons)
        filtered = await self._extender.filter(pod, fitting)
        if not filtered.names:
            return Choice(reasons=reasons | {name: [reason] for name, reason in filtered.reasons.items()})
        return Choice(node=await self._best(pod, filtered.names))

    async def _best(self, pod: RawObject, names: Sequence[str]) -> str:
        if len(names) == 1:
            return names[0]
        scores = await self._extender.prioritize(pod, names)
        return max(names, key=lambda name: scores.get(name, 0))

    def _reasons_against(self, pod: RawObject, names: Sequence[str]) -> dict[str, list[str]]:
        asked, nodes = requests(pod), self._nodes
        return {
            name: barred(pod, nodes[name]) or lacking(asked, nodes[name], self._ledger.used(name)) for name in names
        }

    async def _bind(self, pod: RawObject, node: str) -> None:
        uid = pod["metadata"]["uid"]
        try:
            await self._extender.bind(pod, node)
        except ExtenderError as error:
            if self._is_pending(uid):  # Otherwise the write was done although the answer was lost.
                self._ledger.release(uid)
                self._queue.wake_all()
                await self._retry_later(pod, error)

    def _is_pending(self, uid: str) -> bool:
        return uid in self._pods and not self._pods[uid]["spec"].get("nodeName")

    async def _retry_later(self, pod: RawObject, error: ExtenderError) -> None:
        uid = pod["metadata"]["uid"]
        self._queue.back_off(uid)
        self._refuse(pod, reason="SchedulerError", message=str(error))
        await self._clock.sleep(min(FIRST_BACKOFF_S * 2 ** self._failures[uid], LONGEST_BACKOFF_S))
        self._failures[uid] += 1
        self._queue.resume(uid)

    def _refuse(self, pod: RawObject, *, reason: str, message: str) -> None:
        status: RawObject = {"conditions": [self._condition(pod, reason, message)]}
        if pod.get("status", {}).get("nominatedNodeName"):
            status["nominatedNodeName"] = None  # Only the nomination that was tried. A newer one stays.
        with suppress(NotFoundError):
            self._cluster.patch(Ref.of(Resource.PODS, pod), {"status": status})

    def _condition(self, pod: RawObject, reason: str, message: str) -> RawObject:
        # The time is that of the last change of status. The same refusal is therefore the same object, and causes no
        # write.
        before = _scheduled_condition(pod.get("status", {}).get("conditions", ()))
        now = rfc3339(self._clock.now())
        since = before.get("lastTransitionTime", now)
        return {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
        }


def _what_wakes(pod: RawObject) -> object:
    metadata, status = pod["metadata"], pod.get("status", {})
    return metadata.get("labels"), metadata.get("annotations"), pod["spec"], status.get("nominatedNodeName")


def _scheduled_condition(conditions: Iterable[RawObject]) -> RawObject:
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})
