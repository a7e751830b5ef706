"""Holds room for pods until the pods that still use the room are gone, and turns the held room into reservations then.

A pod is nominated only then: before, kube-scheduler would see a full node, refuse the pod and clear the nomination.
Meanwhile our own reservation holds the room, in the state Awaiting.

A group that does not use room freed by evictions backs off for long. Otherwise a pod that kube-scheduler's own filters
refuse would cause evictions on one node after the other.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.cluster.changes import Changes
from app.cluster.ledger.reservations import Reservation, ReservationState
from app.cluster.state.cache import ClusterCache
from app.control.cycle.recheck import is_open
from app.control.cycle.waker import Waker
from app.control.journal import waits
from app.control.journal.waits import Wait
from app.control.writers.evictor import Evictor
from app.control.writers.unevictable import UnevictablePods
from app.model.decision import Start
from app.model.names import GroupKey, NodeName, PodUid
from app.model.reason import Reason, Refusal
from app.model.seam import rfc3339
from app.model.sentence import say
from app.settings import Settings


class Preparing(Protocol):
    """Makes GPUs ready for sharing."""

    def prepare(self, uids: Collection[PodUid]) -> bool:
        """Prepare the GPUs that these pods will share, when the room is free; return whether all are ready."""
        ...

    def obstacle(self, uids: Collection[PodUid]) -> str:
        """Return the error of the API server or the node that keeps these GPUs from being ready; "" if none."""
        ...


@dataclass(frozen=True, slots=True)
class FailedPreemption:
    """A group whose room will not be free, with the reason."""

    group: GroupKey
    error: str
    least_s: float = 0.0
    """The minimum time for which the group is left out of plans."""


RECONSIDERED_AFTER_S = 10.0
"""The minimum wait for pods that are terminating anyway, before a plan looks for free room elsewhere."""

WASTED_S = 60.0
"""The minimum time for which a group is left out of plans if pods were evicted for it in vain."""

JUDGED_EVERY_S = 1.0
"""The interval between two looks at all waits although nothing was freed: other pods may have taken the room."""


class PendingPreemptions:
    """The pods that wait for room that is being freed. Only `hold`, `review` and `stand_down` change it."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators come in through the constructor
        self,
        cache: ClusterCache,
        waker: Waker,
        evictor: Evictor,
        unevictable: UnevictablePods,
        gpus: Preparing,
        settings: Settings,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic, `wall_clock` is in seconds since the epoch.

        `gpus` prepares the GPUs that pods will share.
        """
        self._cache = cache
        self._waker = waker
        self._evictor = evictor
        self._unevictable = unevictable
        self._gpus = gpus
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._waits: list[Wait] = []
        self._served: dict[PodUid, GroupKey] = {}
        """Pods for which other pods were evicted, until these pods are bound."""
        self._preparing: dict[tuple[PodUid, ...], float] = {}
        """For pods whose room is free already: since when their GPUs are being prepared."""
        self._relieved: set[NodeName] = set()
        """Nodes on which less is held than at the last review, or that have changed."""
        self._judged_at = clock()
        self._limits = cache.room.limits()
        """The limits of one review."""

    def note_changes(self, changes: Changes) -> None:
        """Note which nodes may have room now."""
        self._relieved |= changes.relieved

    def hold(self, starts: Sequence[Start], victims: tuple[PodUid, ...]) -> None:
        """Hold the places of these starts, all of one group, until their room is free."""
        expires_at = self._clock() + self._settings.eviction_ttl_s
        for start in starts:
            for placement in start.placements:
                self._cache.promises.await_release(
                    placement.pod, placement.node, placement.devices, expires_at=expires_at
                )
            pods = tuple(placement.pod for placement in start.placements)
            nodes = frozenset(placement.node for placement in start.placements)
            known = (self._cache.pods.get(uid) for uid in victims)
            freed = nodes | {pod.node for pod in known if pod is not None and pod.node is not None}
            began = rfc3339(self._wall_clock())
            now, relief = self._clock(), self._cache.changes.relief
            self._waits.append(Wait(start.group, pods, nodes, victims, freed, since=now, began=began, relief=relief))

    def refusals(self) -> Mapping[GroupKey, Refusal]:
        """Return what each group with held room waits for."""
        found: dict[GroupKey, Refusal] = {}
        for wait in self._waits:
            if wait.group not in found and self._held(wait):
                found[wait.group] = self._said_of(wait)
        return found

    def refusals_of(self, group: GroupKey) -> Mapping[PodUid, Refusal]:
        """Return what each pod with held room in this group waits for.

        Pods beyond the group's minimum start one by one: each may wait for other victims, on another node.
        """
        found: dict[PodUid, Refusal] = {}
        for wait in self._waits:
            if wait.group == group and (held := self._held(wait)):
                found |= dict.fromkeys((one.pod for one in held), self._said_of(wait))
        return found

    def _said_of(self, wait: Wait) -> Refusal:
        if wait.pods in self._preparing:
            return waits.for_devices(wait, self._gpus.obstacle(wait.pods))
        return waits.for_victims(wait, self._cache)

    def stand_down(self) -> None:
        """Forget all waits, and cancel evictions that have not begun: another replica decides."""
        self._evictor.recall(victim for wait in self._waits for victim in wait.victims)
        self._waits.clear()
        self._served.clear()
        self._unevictable.forget_pods()
        self._preparing.clear()

    def review(self) -> list[FailedPreemption]:
        """Reserve the room that is free by now; return the failed groups, whose places are still held."""
        is_due = self._clock() >= self._judged_at + JUDGED_EVERY_S
        if is_due:
            self._judged_at = self._clock()
        if not (self._waits or self._served):
            self._unevictable.forget_pods()
            self._relieved.clear()
            return []
        self._limits = self._cache.room.limits()
        failures = [*self._failures(), *self._unused()]
        self._unevictable.forget_pods()
        relieved, self._relieved = self._relieved, set()
        looked_at = [wait for wait in self._waits if is_due or not relieved.isdisjoint(wait.freed)]
        self._end([wait for wait in looked_at if self._is_over(wait)])
        if is_due:
            failures += filter(None, map(self._judge, self._waits))
        return failures

    def _failures(self) -> Iterator[FailedPreemption]:
        now = self._clock()
        failures: dict[GroupKey, FailedPreemption] = {}
        for wait in self._waits:
            held = self._held(wait)
            if held and self._unevictable.overlaps(wait.victims):
                failures[wait.group] = FailedPreemption(wait.group, "a pod that has to leave for it cannot be evicted")
            elif any(one.expires_at <= now for one in held):
                failures[wait.group] = FailedPreemption(
                    wait.group, "the pods that had to leave for it did not end in time"
                )
            elif held and now >= self._preparing.get(wait.pods, now) + self._settings.device_ttl_s:
                # Read the error first: `_moves` drops what links these pods to the node.
                said = self._gpus.obstacle(wait.pods)
                if not self._moves(wait):
                    error = "the shared GPU was not ready in time"
                    error = say("{error}: {said}", error=error, said=said) if said else error
                    failures[wait.group] = FailedPreemption(wait.group, error)
        yield from failures.values()

    def _moves(self, wait: Wait) -> bool:
        """Plan pods again if their node gave them no GPU in time; return whether other nodes exist.

        Only this timeout reveals a node where a reservation pod is refused or fails for causes that we cannot see.
        """
        missing = [(uid, place) for uid in wait.pods for place in self._cache.gpus.not_ready(uid)]
        for uid, (node, _) in missing:
            self._cache.findings.refuse_node(uid, node)
        table = self._cache.snapshots.table()
        others = (table.shares_devices & ~table.mask(self._cache.findings.refused(uid)) for uid in wait.pods)
        if wait.victims or not all(mask.any() for mask in others):
            return False
        for _, place in missing:
            self._cache.gpu_books.doubt(*place)
        for one in self._held(wait):
            self._cache.promises.drop(one.pod)
        return True

    def _unused(self) -> Iterator[FailedPreemption]:
        for uid, group in list(self._served.items()):
            pod = self._cache.pods.get(uid)
            if pod is None or pod.node is not None:
                del self._served[uid]
            elif self._cache.reservations.get(uid) is None and not self._is_refused(group):
                del self._served[uid]
                said = f": {pod.said.because}" if pod.said.because else ""
                yield FailedPreemption(
                    group, f"kube-scheduler did not accept the room that evictions freed for it{said}", WASTED_S
                )

    def _is_refused(self, group: GroupKey) -> bool:
        # kube-scheduler may have looked at the node just before the room was free. No search for victims happens until
        # kube-scheduler offers nodes again.
        waiting = self._cache.groups.waiting().get(group)
        refusal = waiting.refusal if waiting else None
        return refusal is not None and refusal.reason is Reason.REFUSED_BY_SCHEDULER

    def _is_over(self, wait: Wait) -> bool:
        held = self._held(wait)
        if len(held) == len(wait.pods):
            if self._fulfil(held):
                self._served.update(dict.fromkeys(wait.pods if wait.victims else (), wait.group))
                return True
            if not self._may_fare_better(wait):
                return False
        # A pod or its reservation is gone, or there may be room elsewhere: all pods of the wait are planned again.
        for one in held:
            self._cache.promises.drop(one.pod)
        return True

    def _end(self, over: Sequence[Wait]) -> None:
        """Forget the waits that are over; cancel evictions whose beneficiaries got nothing."""
        if not over:
            return
        ended = set(over)
        self._waits = [wait for wait in self._waits if wait not in ended]
        for wait in over:
            self._preparing.pop(wait.pods, None)
        in_vain = [wait for wait in over if not any(map(self._cache.reservations.get, wait.pods))]
        needed = {victim for wait in self._waits for victim in wait.victims}
        self._evictor.recall(victim for wait in in_vain for victim in wait.victims if victim not in needed)

    def _judge(self, wait: Wait) -> FailedPreemption | None:
        """Return a failure if no eviction frees the room any more: other pods took it, or the node refuses it."""
        if not wait.victims or self._will_be_free(wait):
            return None
        have_left = any(self._cache.pods.get(victim) is None for victim in wait.victims)
        return FailedPreemption(
            wait.group,
            "other pods took the room that was reserved for it, or its node takes no pods now",
            WASTED_S if have_left else 0.0,
        )

    def _may_fare_better(self, wait: Wait) -> bool:
        """Whether pods that wait only for pods that are terminating anyway should be planned again."""
        if wait.victims or wait.pods in self._preparing:
            return False
        is_due = self._clock() >= wait.since + RECONSIDERED_AFTER_S
        return (is_due and self._cache.changes.relief != wait.relief) or not self._will_be_free(wait)

    def _will_be_free(self, wait: Wait) -> bool:
        """Whether the held places will be free and open to these pods when all terminating pods are gone.

        The limits of the queues count, too: a limit may have been lowered, or other pods may have been charged to it.
        """
        if not (self._cache.room.suffices_later(wait.pods) and self._limits.admit_later(wait.pods)):
            return False
        return self._are_open(self._held(wait))

    def _are_open(self, held: Collection[Reservation]) -> bool:
        return all(is_open(self._cache, one.pod, one.node) for one in held)

    def _fulfil(self, waiting: Collection[Reservation]) -> bool:
        """Turn all of these into reservations that kube-scheduler may use, or none; return whether this was done."""
        uids = tuple(one.pod for one in waiting)
        if not self._cache.room.suffices((*uids, *self._prepared_beside(waiting))) or not self._are_open(waiting):
            return False
        # The nodes may have had room all along: the victims may be evicted only to stay within the queue's limit.
        if not self._limits.admit(uids):
            return False
        if not self._gpus.prepare(uids):
            self._preparing.setdefault(uids, self._clock())
            return False
        self._limits.start(uids)
        for one in waiting:
            self._cache.promises.fulfil(one.pod)
            self._cache.reservations.extend(one.pod, self._clock() + self._settings.promise_ttl_s)
            self._waker.nominate(one.pod)
        return True

    def _prepared_beside(self, waiting: Collection[Reservation]) -> Iterator[PodUid]:
        """Yield the pods that GPUs are being prepared for on these nodes: reservation pods will take these GPUs."""
        nodes, mine = {one.node for one in waiting}, {one.pod for one in waiting}
        for uid in dict.fromkeys(uid for uids in self._preparing for uid in uids):
            held = self._cache.reservations.get(uid)
            if held is not None and held.state is ReservationState.AWAITING and held.node in nodes and uid not in mine:
                yield uid

    def _held(self, wait: Wait) -> list[Reservation]:
        held = (self._cache.reservations.get(uid) for uid in wait.pods)
        return [one for one in held if one is not None and one.state is ReservationState.AWAITING]
