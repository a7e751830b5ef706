"""Looks for the fewest pods that have to leave so that a waiting PodGroup can start; one search for three aims.

1. the pods of the group that start together, one more at a time, keeping whom earlier ones made leave
2. victims by the reverse order of turns, one chunk more at a time; of those, the ones on one node at a time
3. as if they had left: the group and the victims are placed, in the order of turns; victims may find another place
4. whether the aim allows what that leaves behind
Rules: KAI v0.13 (solvers of the reclaim, preempt and consolidation actions).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from app.model.decision import Action
from app.model.names import GroupKey, NodeName, QueueName
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU, GPU_MILLI
from app.scheduling import fit, scenario
from app.scheduling.board import Timing
from app.scheduling.budget import Budget
from app.scheduling.order import Turns, next_chunk
from app.scheduling.victims import Chunk, Safety, Victims
from app.scheduling.whatif import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search has found, before its aim has judged it."""

    group: PodGroup
    """Who asked."""
    pods: Sequence[Pod]
    """Of it: those that have a place now."""
    before: WhatIf
    after: WhatIf
    chunks: Sequence[Chunk]
    """Who had to leave for it, in this order; some of them have found another place."""


THOROUGH = 16
"""Up to so many pods of a gang are placed anew with each victim; pods of larger ones, if all alike, one by one."""


class Aim(Protocol):
    """What a search may make leave, and what it may leave behind."""

    @property
    def action(self) -> Action:
        """Under which name the plan does it."""

    def may_begin(self, state: WhatIf, group: PodGroup, pods: Sequence[Pod]) -> bool:
        """Return whether the group may ask others to leave at all."""

    def concerns(self, group: PodGroup, queue: QueueName) -> bool:
        """Return whether anybody of a queue may have to leave."""

    def safety(self, group: PodGroup, other: PodGroup) -> Safety:
        """Return how far a preemptible running group is safe from the one that asks."""

    def allows(self, found: Found) -> bool:
        """Return whether what is left behind is fair."""


class Search:
    """One search, for one waiting group."""

    def __init__(self, state: WhatIf, group: PodGroup, aim: Aim, budget: Budget) -> None:
        self._before = state
        self._group = group = _as_it_is(group, state)
        self._aim = aim
        self._budget = budget
        self._victims: Victims | None = None
        # The chunks named so far, how far the walk over them has come, and those already made to leave.
        self._known: list[Chunk] = []
        self._walked = 0
        self._by_node: dict[NodeName, list[Chunk]] = {}
        self._by_group: dict[GroupKey, list[Chunk]] = {}
        self._taken: list[Chunk] = []

    def _all_victims(self) -> Victims:
        state = self._before
        return Victims(
            state.roster.of(partial(self._aim.concerns, self._group)),
            state.changed,
            partial(self._safety_of, self._aim, self._group, state.growing),
            ledger=state.ledger,
            shares=state.shares,
        )

    @staticmethod
    def _safety_of(aim: Aim, group: PodGroup, growing: Collection[GroupKey], other: PodGroup) -> Safety:
        return Safety.ALL if other.key == group.key or other.key in growing else aim.safety(group, other)

    def solve(self) -> WhatIf | None:
        """Return the plan with the group's next pods in it, None when nobody's leaving would help."""
        pods = () if _has_lost(self._group, self._before) else next_chunk(self._group)
        if not pods or not self._aim.may_begin(self._before, self._group, pods):
            return None
        if not self._before.may_suffice(pods):
            return None
        if len(pods) > THOROUGH and self._group.root is None and self._before.board.common_shape(pods) is not None:
            return self._solve_quickly(pods)
        return self._solve_thoroughly(pods)

    def _solve_thoroughly(self, pods: Sequence[Pod]) -> WhatIf | None:
        """Begin anew with every pod more, but for who had to leave: the others may sit better elsewhere (as KAI)."""
        found: WhatIf | None = None
        for number in range(1, len(pods) + 1):
            self._walked, self._by_node = 0, {}
            found = self._step(_Step(self._before, self._group, pods[:number], pods[:number], tuple(self._taken)))
            if found is None:
                return None
        return found

    def _solve_quickly(self, pods: Sequence[Pod]) -> WhatIf | None:
        """Go on from where the pod before found its place: what did not help it does not help its like either.

        The other way is of the third order in the number of pods, and pods that are all alike hardly gain by it.
        """
        found, group = self._before, self._group
        for number, pod in enumerate(pods, start=1):
            step = self._step(_Step(found, group, (pod,), pods[:number], ()))
            if step is None:
                return None
            found, group = step, _with_seats(group, step)
        found.bring_home(self._group.key)
        homeless = [one for one in scenario.homeless(self._taken, found) if one.pending]
        scenario.resettle(found, Turns(found.snapshot, found.ledger, found.shares, homeless))
        found.seated = tuple(seat for seat in found.all_seated if seat.pod.group == self._group.key)
        return found

    def _step(self, step: "_Step") -> WhatIf | None:
        found = self._try(step, ())
        if found is not None:
            return found
        taken = {id(chunk) for chunk in self._taken}
        room = _Room(step)
        while (chunk := self._next_chunk()) is not None:
            if not self._budget.walk():
                return None
            if id(chunk) in taken:
                continue
            nodes = list(dict.fromkeys(one.node for one in chunk.placed))
            for node in nodes:
                self._by_node.setdefault(node, []).append(chunk)
            for node in nodes:
                here = [each for each in self._by_node[node] if id(each) not in taken]
                if room.may_do(node, here):
                    found = self._try(step, self._with_spare(here, taken))
                    if found is not None:
                        return found
                    if self._budget.spent:
                        return None
        return None

    def _next_chunk(self) -> Chunk | None:
        if self._walked == len(self._known):
            if self._victims is None:
                self._victims = self._all_victims()
            chunk = self._victims.pop()
            if chunk is None:
                return None
            self._known.append(chunk)
            self._by_group.setdefault(chunk.group.key, []).append(chunk)
        self._walked += 1
        return self._known[self._walked - 1]

    def _with_spare(self, chunks: Iterable[Chunk], taken: Collection[int]) -> list[Chunk]:
        """Add to a gang that leaves as a whole what it had beyond its minimum elsewhere: that cannot run on alone."""
        found: dict[int, Chunk] = {}
        for chunk in chunks:
            is_whole = len(chunk.placed) == len(chunk.group.placed)
            together = self._by_group[chunk.group.key] if is_whole else [chunk]
            found |= {id(each): each for each in together if id(each) not in taken}
        return list(found.values())

    def _try(self, step: "_Step", more: Sequence[Chunk]) -> WhatIf | None:
        if not more and not step.may_do_without():
            return None
        if not self._budget.take():
            return None
        state, chunks = step.base.copy(), (*step.again, *more)
        for chunk in chunks:
            state.evict(chunk.group, chunk.placed, self._aim.action, self._group.key)
        if not self._settle(state, step, chunks):
            return None
        chunks = (*dict.fromkeys((*self._taken, *more)),)
        found = Found(group=self._group, pods=step.all_pods, before=self._before, after=state, chunks=chunks)
        if not self._aim.allows(found):
            return None
        self._taken = [chunk for chunk in chunks if scenario.is_touched(chunk, state, self._before)]
        return state

    def _settle(self, state: WhatIf, step: "_Step", chunks: Sequence[Chunk]) -> bool:
        """Place the group's pods and then whoever had to leave, in the order of turns; False when the group fails."""
        asking = replace(step.group, pending=tuple(step.pods))
        turns = Turns(state.snapshot, state.ledger, state.shares, [asking, *scenario.homeless(chunks, state)])
        if not scenario.resettle(state, turns, asking):
            return False
        keys = {chunk.group.key: None for chunk in chunks}
        state.evict_torn(keys, self._aim.action, self._group.key)
        return not any(scenario.is_torn(state.changed[key], self._before) for key in keys)


@dataclass(frozen=True, slots=True)
class _Step:
    """Some of a group's pods that look for places."""

    base: WhatIf
    group: PodGroup
    """With the places that its pods have in `base`."""
    pods: Sequence[Pod]
    all_pods: Sequence[Pod]
    """These and those of the steps before."""
    again: Sequence[Chunk]
    """Who had to leave for the steps before and is still there in `base`."""

    def may_do_without(self) -> bool:
        """Return whether the pods might find places although nobody else leaves; False is certain."""
        return (
            bool(self.again)
            or len(self.pods) > 1
            or self.base.board.find(self.pods[0], timing=Timing.LATER) is not None
        )


def _as_it_is(group: PodGroup, state: WhatIf) -> PodGroup:
    """Return a waiting group with its running pods where this plan has moved them."""
    now = state.changed.get(group.key)
    return group if now is None else replace(group, placed=now.placed)


def _has_lost(group: PodGroup, state: WhatIf) -> bool:
    """Whether pods of it leave in this plan: it asks again when it knows what it has left."""
    before = state.snapshot.running.get(group.key)
    return before is not None and len(group.placed) < len(before.placed)


def _with_seats(group: PodGroup, state: WhatIf) -> PodGroup:
    nodes = state.snapshot.nodes.nodes
    seats = tuple(Placed(pod=seat.pod, node=nodes[seat.column].name, devices=seat.devices) for seat in state.seated)
    return replace(group, placed=group.placed + seats)


class _Room:
    """Whether it can help that somebody leaves a node; a bound that never errs on the no."""

    def __init__(self, step: _Step) -> None:
        self._board = step.base.board
        # Where quota is in the way, it helps that somebody leaves, whatever there is room for.
        is_over = step.base.ledger.check(step.group, step.base.request(step.pods)) is not None
        # And somebody on one node may be what keeps a pod away from all others of a domain.
        is_near = any(pod.near or pod.labels is not None for pod in step.pods)
        self._is_moot = is_over or is_near
        asked = {tuple(amounts) for pod in step.pods if (amounts := self._board.stock.amounts(pod)) is not None}
        self._asked = list(asked)
        self._asks_for_part = any(pod.sharing is not None for pod in step.pods)
        # Who has left before may sit down where somebody else leaves, and make room elsewhere.
        # What a victim has claimed is free for others anywhere.
        is_bound = not step.again and not any(pod.claims for pod in step.pods)
        self._open = self._board.open_to_any(step.pods) if is_bound else None
        self._kept: dict[NodeName, list[Chunk]] = {}
        for chunk in step.again:
            for node in dict.fromkeys(one.node for one in chunk.placed):
                self._kept.setdefault(node, []).append(chunk)

    def may_do(self, node: NodeName, chunks: Sequence[Chunk]) -> bool:
        """Return whether one of the pods might sit on the node when these have left."""
        column = self._board.snapshot.nodes.index.get(node)
        if column is None:
            return False
        if self._is_moot:
            return True
        if self._open is not None and not self._open.item(column) and _leave_only(node, chunks):
            return False
        room: list[int] = self._board.stock.future[:, column].tolist()
        leaving = [one for chunk in (*self._kept.get(node, ()), *chunks) for one in chunk.placed if one.node == node]
        for one in leaving:
            if one.pod.claims or (one.pod.sharing is not None and self._asks_for_part):
                return True  # what becomes free with them is known to the board alone
            for row, amount in enumerate(self._board.stock.amounts(one.pod) or ()):
                room[row] += amount
        room[GPU] += GPU_MILLI * self._board.stock.devices.whole_without(leaving, column)
        return any(fit.suffices(asked, room) for asked in self._asked)


def _leave_only(node: NodeName, chunks: Iterable[Chunk]) -> bool:
    return all(one.node == node for chunk in chunks for one in chunk.placed)
