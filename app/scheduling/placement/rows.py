"""Placed pods of running PodGroups as columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.model.names import GroupKey, NodeName, PodUid
from app.model.pod import Placed, Pod
from app.model.podgroup import PodGroup
from app.model.resources import GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.state import Shape, shape_of

MOST_SHAPES = 256
"""The most shapes of pods whose possible places are calculated. Other shapes may use any place."""

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class Rows:
    """Placed pods, shape [pod]. Pods of changed groups are no longer `alive`. Rows are only added."""

    node: Numbers
    group: Numbers
    shape: Numbers
    """The number of its shape; 0 for an unknown shape."""
    amounts: Amounts
    """Shape [pod, resource]: the most that is free when the pod is gone, so each pod has all devices of its claims."""
    elsewhere: NDArray[np.float64]
    """The part of its milli-GPUs that counts for the other pods that share its claims."""
    alive: Mask
    shares: Mask
    """Whether the pod has parts of GPUs."""
    sharer: Numbers
    """Shape [part]: the row of a pod that has a part of a GPU. The next field is that GPU."""
    device: Numbers

    def followed_by(self, more: "Rows") -> "Rows":
        """Return these rows and the other rows."""
        return Rows(
            node=np.concatenate([self.node, more.node]),
            group=np.concatenate([self.group, more.group]),
            shape=np.concatenate([self.shape, more.shape]),
            amounts=np.concatenate([self.amounts, more.amounts]),
            elsewhere=np.concatenate([self.elsewhere, more.elsewhere]),
            alive=np.concatenate([self.alive, more.alive]),
            shares=np.concatenate([self.shares, more.shares]),
            sharer=np.concatenate([self.sharer, more.sharer + len(self.node)]),
            device=np.concatenate([self.device, more.device]),
        )

    def gpus(self) -> NDArray[np.float64]:
        """Return how many milli-GPUs the pods hold, shape [pod]: their part of shared GPUs and claims."""
        found = self.amounts[:, GPU] - self.elsewhere
        sharing = self.alive[self.sharer]
        sharer, device = self.sharer[sharing], self.device[sharing]
        if device.size:
            found += np.bincount(sharer, GPU_MILLI / np.bincount(device)[device], minlength=len(found))
        return found


@dataclass(slots=True)
class _Added:
    """Rows under construction."""

    node: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    amounts: list[list[int]] = field(default_factory=list)
    elsewhere: list[float] = field(default_factory=list)
    shares: list[bool] = field(default_factory=list)
    sharer: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)


class RowMaker:
    """Makes the rows of one plan, and numbers the shapes and the shared GPUs."""

    def __init__(self, stock: FreeResources, numbers: Mapping[GroupKey, int]) -> None:
        """Start without rows. `numbers` are the numbers of the running PodGroups."""
        self._stock = stock
        self._numbers = numbers
        self._shapes: dict[Shape, int] = {}
        self.examples: list[Pod] = []
        """One pod of each known shape, in the order of the shape numbers, which start with 1."""
        self.row_of: dict[PodUid, int] = {}
        """The current row of a pod among all rows made so far."""
        self._made = 0
        self._devices: dict[tuple[NodeName, str], int] = {}
        self.device_node: list[int] = []
        """The column of the node of each shared GPU."""

    def made(self, groups: Iterable[PodGroup]) -> Rows:
        """Return the rows of these PodGroups."""
        made, stock = _Added(), self._stock
        for group in groups:
            number = self._numbers[group.key]
            for one in group.placed:
                column, amounts = stock.column(one.node), stock.amounts_alone(one.pod)
                if column is None or amounts is None:
                    continue
                for name in one.devices:
                    made.sharer.append(len(made.node))
                    made.device.append(self._device(one.node, column, name))
                self.row_of[one.pod.uid] = self._made + len(made.node)
                made.node.append(column)
                made.group.append(number)
                made.shape.append(self._shape(one.pod))
                made.amounts.append(list(amounts))
                made.elsewhere.append(sum(each.gpu_milli * (1 - 1 / stock.users(each)) for each in one.pod.claims))
                made.shares.append(bool(one.devices))
        self._made += len(made.node)
        return Rows(
            node=np.array(made.node, dtype=np.int64),
            group=np.array(made.group, dtype=np.int64),
            shape=np.array(made.shape, dtype=np.int64),
            amounts=np.array(made.amounts, dtype=np.int64).reshape(len(made.node), stock.future.shape[0]),
            elsewhere=np.array(made.elsewhere, dtype=np.float64),
            alive=np.ones(len(made.node), dtype=np.bool_),
            shares=np.array(made.shares, dtype=np.bool_),
            sharer=np.array(made.sharer, dtype=np.int64),
            device=np.array(made.device, dtype=np.int64),
        )

    def _shape(self, pod: Pod) -> int:
        if pod.near or pod.claims or pod.labels is not None:
            return 0
        shape = shape_of(pod)
        found = self._shapes.get(shape)
        if found is None and len(self.examples) < MOST_SHAPES:
            found = self._shapes[shape] = len(self.examples) + 1
            self.examples.append(pod)
        return found or 0

    def _device(self, node: NodeName, column: int, name: str) -> int:
        found = self._devices.get((node, name))
        if found is None:
            found = self._devices[node, name] = len(self.device_node)
            self.device_node.append(column)
        return found


def are_alike(placed: Sequence[Placed]) -> bool:
    """Return whether pods have one shape. If not, one pod may move to the place that another pod leaves."""
    return len(placed) < 2 or len({shape_of(one.pod) for one in placed}) == 1  # noqa: PLR2004 - a single pod
