"""Whether a victim search can help at all: a bound on what the nodes could ever have, which never errs on the no."""

from collections.abc import Iterable, Sequence

import numpy as np

from app.model.pod import Pod
from app.model.resources import Amounts
from app.model.snapshot import Mask
from app.scheduling import fit
from app.scheduling.board import Board
from app.scheduling.topology import fitting_counts


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


def candidates(board: Board, pods: Iterable[Pod], most: Amounts) -> Mask:
    """Return the nodes on which one of the pods might sit where nodes have `most`, shape [node]."""
    found = np.zeros(most.shape[1], dtype=np.bool_)
    for pod in board.unlike(pods):
        asked = board.stock.amounts(pod)
        if asked is not None:
            found |= board.eligible(pod) & fit.room(asked, most)
    return found
