"""Computes, in columns, what evictions free at most and which pods are evicted first.

Call the functions on a plan, not on its copies.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from app.model.pod import Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU_MILLI, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.rows import Numbers
from app.scheduling.placement.slots import SIZES
from app.scheduling.placement.state import Timing
from app.scheduling.preemption import bound
from app.scheduling.preemption.evictable import EVERYBODY, Scope
from app.scheduling.preemption.foremost import Foremost, WantedPlaces, places
from app.scheduling.preemption.whatif import WhatIf

FEW = 1000
"""For every so many running PodGroups, the eviction order may be one change out of date where it is only a hint."""

_NOWHERE: Mask = np.zeros(1, dtype=np.bool_)


def may_suffice(state: WhatIf, pods: Sequence[Pod]) -> bool:
    """Return whether the pods might find places if all evictable pods were gone; False is certain."""
    return bound.may_suffice(state.board, pods, most(state))


def most(state: WhatIf, *scopes: Scope) -> Amounts:
    """Return an upper bound of what is free when all pods of these scopes are gone, shape [resource, node].

    Without scopes, all evictable pods count. Do not call this on a copy, and do not write to the result.
    """
    scopes, stock = scopes or (EVERYBODY,), state.board.stock
    now, (seen, known) = (stock, stock.changes), state.prospects.most
    if seen != now:
        known = {}
    found = known.get(scopes)
    if found is None:
        state.evictable.update(state.changed)
        may_move = placeable(state) if any(scope.moved for scope in scopes) else _NOWHERE
        found = state.evictable.most(scopes, stock, may_move)
        state.prospects.most = now, {**known, scopes: found}
    return found


def foremost(state: WhatIf, scopes: Sequence[Scope], candidates: Mask, needed: Amounts, most: int) -> Mask:
    """Return the candidates where so many GPUs become free first when pods of these scopes are evicted."""
    leaving = state.evictable.leaving(scopes, state.board.stock, placeable(state))
    return line(state).nodes(leaving, candidates, needed, most)


def first_victims(state: WhatIf, scopes: Sequence[Scope], pods: Sequence[Pod], nodes: Mask) -> list[PodGroup] | None:
    """Return the PodGroups of the first victims in order that may make room for all these pods, which are alike.

    The result is None if no victims on these nodes make enough room.
    """
    stock = state.board.stock
    asked = stock.taken(pods[0])
    there = places(stock.future[:, state.board.eligible(pods[0])], asked)
    wanted = WantedPlaces(
        asked=asked,
        count=len(pods) - there,
        nodes=nodes,
        future=stock.future,
        slots=state.slots().left(pods[:there], ()),
        taken=[pods[0].request.gpu_milli // GPU_MILLI // size for size in SIZES],
    )
    choice = partial(state.evictable.choice, scopes, stock, placeable(state))
    found = line(state).pods(wanted, choice).tolist()
    numbers = dict.fromkeys(state.evictable.rows.group[found].tolist())
    return [state.evictable.group(number) for number in numbers] if found else None


def in_line(state: WhatIf, groups: Mask) -> Numbers:
    """Return the numbers of these PodGroups in eviction order."""
    found = np.flatnonzero(groups)
    return found[np.argsort(line(state).places[found], kind="stable")]


def line(state: WhatIf) -> Foremost:
    """Return the PodGroups in eviction order; it may be a few changes out of date."""
    evictable, found = state.evictable, state.prospects.line
    if found is None or evictable.changes - found.changes > len(evictable.ids) // FEW:
        found = state.prospects.line = Foremost(evictable, state.roster, state.ledger, state.shares)
    return found


def placeable(state: WhatIf) -> Mask:
    """Return for which shapes of running pods there is room somewhere, shape [shape]."""
    examples, (seen, known), stock = state.evictable.examples, state.prospects.places, state.board.stock
    if known is None or seen != (stock, stock.changes) or len(known) != len(examples) + 1:
        found = (state.board.find(pod, timing=Timing.LATER) is not None for pod in examples)
        known = np.array([True, *found], dtype=np.bool_)
        state.prospects.places = (stock, stock.changes), known
    return known
