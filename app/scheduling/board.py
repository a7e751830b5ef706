"""The free amounts while one plan is made: placing takes from it, and a gang that fails leaves no trace."""

from collections.abc import Iterable, Sequence

import numpy as np

from app.model.decision import Placement
from app.model.names import NodeName
from app.model.pod import Constraint, Pod
from app.model.reason import Refusal
from app.model.resources import Amounts, Resources
from app.model.snapshot import Mask, Snapshot
from app.scheduling import fit, score
from app.settings import PlacementStrategy

Shape = tuple[Resources, Constraint]
"""What decides where a pod fits; pods of one template share it."""


class Board:
    """Local to one plan and never shared. Only `place` changes it."""

    def __init__(self, snapshot: Snapshot, strategy: PlacementStrategy) -> None:
        """Start from what is free in the snapshot."""
        self.snapshot = snapshot
        self._strategy = strategy
        self._free: Amounts = snapshot.free.copy()
        # From how many pods of one shape on no room was found; nothing is given back in a plan, so it stays true.
        self._too_many: dict[Shape, int] = {}
        self.explained: dict[tuple[int, Shape], Refusal] = {}
        """What `explain` has found out in this plan, by the number and shape of the pods."""

    def place(self, pods: Sequence[Pod]) -> tuple[Placement, ...] | None:
        """Take the best node for every pod, or nothing at all and None."""
        shape = self.common_shape(pods)
        if shape is not None and len(pods) >= self._too_many.get(shape, len(pods) + 1):
            return None
        trial = self._free.copy() if len(pods) > 1 else self._free
        placements = self._place_each(trial, pods)
        if placements is None:
            if shape is not None:
                self._too_many[shape] = len(pods)
            return None
        self._free = trial
        return placements

    def count_fitting(self, pods: Iterable[Pod]) -> int:
        """Return how many of the pods would find a node together, taking nothing."""
        trial = self._free.copy()
        return sum(self._place_on(trial, pod) is not None for pod in sorted(pods, key=_largest_first))

    def allowed(self, pod: Pod, free: Amounts | None = None) -> Mask:
        """Return the nodes the pod may go to and has room on, shape [node]."""
        free = self._free if free is None else free
        return self.eligible(pod) & fit.room(pod.request, free)

    def eligible(self, pod: Pod) -> Mask:
        """Return the nodes the pod may go to whatever is free, shape [node]."""
        nodes = self.snapshot.nodes
        mask = fit.eligible(pod.constraint, nodes)
        if pod.uid in self.snapshot.refused:
            mask = mask & ~nodes.mask(self.snapshot.refused[pod.uid])
        return mask

    def costs(self, pod: Pod) -> Amounts:
        """Return what each node would cost the pod, shape [node]; the least is best."""
        return score.cost(pod.request, self._free, self.snapshot.nodes, self._strategy)

    @property
    def free(self) -> Amounts:
        """What is left now, shape [resource, node]; not to be written to."""
        return self._free

    def _place_each(self, free: Amounts, pods: Sequence[Pod]) -> tuple[Placement, ...] | None:
        placements: list[Placement] = []
        for pod in sorted(pods, key=_largest_first):
            placement = self._place_on(free, pod)
            if placement is None:
                return None
            placements.append(placement)
        return tuple(placements)

    def choose(self, pod: Pod, allowed: Mask) -> NodeName | None:
        """Return the best of the allowed nodes, taking nothing."""
        column = self._choose(pod, self._free, allowed)
        return None if column is None else self.snapshot.nodes.nodes[column].name

    def _place_on(self, free: Amounts, pod: Pod) -> Placement | None:
        column = self._choose(pod, free, self.allowed(pod, free))
        if column is None:
            return None
        free[:, column] -= np.array(pod.request.amounts, dtype=np.int64)
        return Placement(pod.uid, self.snapshot.nodes.nodes[column].name)

    def common_shape(self, pods: Sequence[Pod]) -> Shape | None:
        """Return the shape that all pods share, None where they differ or a pod's own refusals narrow it."""
        shape = (pods[0].request, pods[0].constraint)
        for pod in pods:
            if pod.uid in self.snapshot.refused:
                return None
            if (pod.request, pod.constraint) != shape:
                return None
        return shape

    def _choose(self, pod: Pod, free: Amounts, allowed: Mask) -> int | None:
        nominated = self._column(pod.nominated)
        if nominated is not None and allowed[nominated]:
            # kube-scheduler already holds that node for the pod; after a restart this rebuilds our promise.
            return nominated
        return score.best(score.cost(pod.request, free, self.snapshot.nodes, self._strategy), allowed)

    def _column(self, node: NodeName | None) -> int | None:
        return None if node is None else self.snapshot.nodes.index.get(node)


def _largest_first(pod: Pod) -> tuple[int, int, int]:
    return -pod.request.gpu_milli, -pod.request.cpu_milli, -pod.request.memory_bytes
