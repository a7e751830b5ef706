"""Tells which nodes a pod may not use whatever is free there, each node by its first cause.

The causes, in their order:
1. the node is not ready, or cannot be read
2. the node is cordoned, or has another taint that the pod does not tolerate
3. the pod's node selector or node affinity excludes the node
4. affinity between pods, or the resource claims that the pod shares with others
5. the scheduler's own filters refuse the node, for causes that Leeboard does not see
6. the node is withheld for a PodGroup that has been pending for long
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from app.model.node import DEVICES_PREFIX
from app.model.pod import Constraint, Pod, Toleration
from app.model.snapshot import Mask
from app.scheduling.placement import fit
from app.scheduling.placement.state import PlacementState

EVERYTHING = (Toleration(operator="Exists"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Nodes that one cause excludes."""

    key: str
    """The name of the cause in the details of a refusal."""
    count: int
    one: str
    """The words for one node, and for several nodes."""
    many: str

    @property
    def words(self) -> str:
        """Return the words that match the number of nodes."""
        return self.one if self.count == 1 else self.many


def exclusions(pod: Pod, board: PlacementState) -> list[Exclusion]:
    """Return what excludes nodes for the pod: together all nodes that are not in `PlacementState.eligible`."""
    found: list[Exclusion] = []
    left = np.ones(len(board.snapshot.nodes.nodes), dtype=np.bool_)
    if board.eligible(pod).all():
        return found
    for mask, key, one, many in _causes(pod, board):
        count = int((left & mask).sum())
        if count:
            found.append(Exclusion(key=key, count=count, one=one, many=many))
            left &= ~mask
    return found


def refused(pod: Pod, board: PlacementState) -> Mask:
    """Return the nodes that the scheduler's own filters refuse for the pod, shape [node]."""
    return board.snapshot.nodes.mask(board.snapshot.refused.get(pod.uid, ()))


def _causes(pod: Pod, board: PlacementState) -> Iterator[tuple[Mask, str, str, str]]:
    nodes, stock = board.snapshot.nodes, board.stock
    idle = np.flatnonzero(~nodes.takes_work).tolist()
    unread = {node.name: node.problem for node in (nodes.nodes[column] for column in idle) if node.problem}
    unreadable = nodes.mask(unread)
    yield ~nodes.takes_work & ~unreadable, "not_ready", "is not ready", "are not ready"
    if unread:
        # Only this sentence reports it: the node looks healthy, but takes no new pods.
        first = f"{min(unread)}: {unread[min(unread)].rstrip('.')}"
        yield unreadable, "unreadable", f"cannot be read ({first})", f"cannot be read (such as {first})"
    yield from _taints(pod, board)
    stated = without_devices(pod.constraint)
    selected = fit.eligible(replace(stated, tolerations=EVERYTHING), nodes)
    not_selected = "excluded by its node selector or affinity"
    yield ~selected, "not_selected", f"is {not_selected}", f"are {not_selected}"
    if stated != pod.constraint:
        devices = "not the devices that its ResourceClaims ask for"
        yield ~fit.eligible(pod.constraint, nodes), "no_devices", f"has {devices}", f"have {devices}"
    if pod.asks_by_name and nodes.by_claim_only is not None:
        how = "GPUs by ResourceClaims only"
        yield nodes.by_claim_only, "by_claim", f"gives {how}", f"give {how}"
    if pod.near or pod.labels is not None:
        apart = "excluded by affinity between pods"
        yield ~stock.neighbours.mask(pod), "apart", f"is {apart}", f"are {apart}"
    for claim in pod.claims:
        yield ~stock.usable(pod, claim), "claims", "cannot give its ResourceClaims", "cannot give its ResourceClaims"
    if pod.uid in board.snapshot.refused:
        by = _refusing(pod)
        yield refused(pod, board), "refused", f"is {by}", f"are {by}"
    if board.withheld is not None and board.is_closed:
        kept = f"kept free for {board.withheld_for}"
        yield board.withheld, "withheld", f"is {kept}", f"are {kept}"


def _taints(pod: Pod, board: PlacementState) -> Iterator[tuple[Mask, str, str, str]]:
    """Yield the cordoned nodes, then the nodes with other taints, under the taint that most of them have."""
    found = fit.untolerated(pod.constraint.tolerations, board.snapshot.nodes)
    cordoned = found.pop(fit.UNSCHEDULABLE, None)
    if cordoned is not None:
        yield cordoned, "cordoned", "is cordoned", "are cordoned"
    if found:
        takes_work, nodes = board.snapshot.nodes.takes_work, Counter[str]()
        for each in sorted(found):
            nodes[each.key] += int((found[each] & takes_work).sum())
        ((commonest, _),) = nodes.most_common(1)
        taint = f"a taint that it does not tolerate ({'mostly ' * (len(nodes) > 1)}{commonest})"
        yield np.logical_or.reduce(list(found.values())), "tainted", f"has {taint}", f"have {taint}"


def without_devices(constraint: Constraint) -> Constraint:
    """Return what the author of a pod states about its nodes, without what follows from its ResourceClaims."""
    if constraint.terms is None:
        return constraint
    terms = [tuple(one for one in term if not one.key.startswith(DEVICES_PREFIX)) for term in constraint.terms]
    if not any(map(len, terms)) and constraint.terms:
        return replace(constraint, terms=None)
    return replace(constraint, terms=tuple(dict.fromkeys(terms)))


def _refusing(pod: Pod) -> str:
    if pod.sharing is not None:
        # Nodes that gave the pod no GPU in time are excluded for a while, as if kube-scheduler had refused them.
        return (
            "excluded after a failed attempt (the filters of kube-scheduler refused it, or no GPU was ready to share)"
        )
    said = f": {pod.said.because}" if pod.said.because else ""
    return f"refused by the filters of kube-scheduler{said}"
