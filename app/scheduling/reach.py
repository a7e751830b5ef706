"""Whether a victim search can help at all: a bound on what the nodes could ever have, which never errs on the no."""

from collections.abc import Iterable, Sequence

import numpy as np

from app.model.pod import Placed, Pod
from app.model.resources import GPU, GPU_MILLI, Amounts
from app.scheduling import fit
from app.scheduling.board import Board
from app.scheduling.topology import fitting_counts
from app.scheduling.victims import Roster


def held(board: Board, placed: Iterable[Placed]) -> Amounts:
    """Return what is free when these have left, at most, shape [resource, node]."""
    free, index = np.zeros_like(board.stock.future), board.snapshot.nodes.index
    columns, amounts = list[int](), list[Sequence[int]]()
    for one in placed:
        column, asked = index.get(one.node), board.stock.amounts(one.pod)
        if column is None or asked is None:
            continue
        if one.pod.sharing is not None:
            # Nobody else may be on those devices.
            free[GPU, column] += GPU_MILLI * one.pod.sharing.devices
        columns.append(column)
        amounts.append(asked)
    if columns:
        np.add.at(free.T, columns, np.array(amounts, dtype=np.int64))
    return free


def held_by_all(board: Board, roster: Roster) -> Amounts:
    """Return what is free when everybody has left who may ever have to, at most, shape [resource, node]."""
    return held(board, (one for groups in roster.queues.values() for group in groups for one in group.placed))


def may_suffice(board: Board, pods: Sequence[Pod], most: Amounts) -> bool:
    """Return whether the pods might find places together where nodes have `most`, shape [resource, node]."""
    may_go = np.zeros(most.shape[1], dtype=np.bool_)
    for pod in board.unlike(pods):
        if pod.near or pod.labels is not None or pod.claims:
            return True  # who leaves may take with it what is in their way
        asked = board.stock.amounts(pod)
        if asked is None:
            return False
        fitting = board.eligible(pod) & fit.room(asked, most)
        if not fitting.any():
            return False
        may_go |= fitting
    asked_by_all = np.array([board.stock.taken(pod) for pod in pods], dtype=np.int64)
    return bool(fitting_counts(asked_by_all, most)[may_go].sum() >= len(pods))
