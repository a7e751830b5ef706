"""Ranks the nodes for pods of one shape: the cost of each node, and when it has room for the pods.

The lowest rank is best. What decides between the nodes with room, the first that differs:

1. the node is not withheld from the pod, and is in the topology domain of the pod's gang (`Where`);
2. by best fit and spread only: a device in shared use takes the part of a GPU that the pod requests (`UNSHARED`);
3. the pod can start now (`LATER`);
4. kube-scheduler has nominated the node for the pod (`best`);
5. for a pod without GPUs, the node has none (`score.WRONG_KIND`);
6. the NVLinks between the pod's whole GPUs (`connections`);
7. the cost: by expected use (`packing`), or by the free amount (`score`). The latter counts for pods that wait for
   evictions, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.model.pod import Pod, Sharing
from app.model.resources import CPU, GPU, GPU_MILLI, Amounts
from app.model.snapshot import Mask, Snapshot
from app.scheduling.placement import score
from app.scheduling.placement.connections import Connections
from app.scheduling.placement.expected_use import expected_use
from app.scheduling.placement.free_resources import FreeResources
from app.scheduling.placement.packing import PackingCosts
from app.settings import Packing, PlacementStrategy

LATER = 1 << 61
"""The step of a node on which the pod has to wait for room. All costs are below it."""

UNSHARED = 1 << 62
"""The step of a node where no device in shared use can take the part, if shared devices are to be filled first.

Waiting for a part of a device that is already shared is better than opening a new device (KAI's gpusharingorder).
"""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Whether nodes, and devices in shared use, are filled one after the other or evenly."""

    nodes: PlacementStrategy = PlacementStrategy.BINPACK
    devices: PlacementStrategy = PlacementStrategy.BINPACK
    packing: Packing = Packing.EXPECTED_USE


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """Which nodes the pods of a gang may use, and which of these nodes are preferred."""

    within: Mask | None = None
    """None: all nodes."""
    steps: Amounts | None = None
    """Shape [node]: nodes with more steps are preferred over every other reason; None: all nodes are equal."""

    def narrowed(self, ranks: Amounts) -> Amounts:
        """Return the ranks of the remaining nodes with the most steps. All other nodes are forbidden."""
        if self.within is not None:
            ranks = only(self.within, ranks)
        if self.steps is not None:
            fitting = self.steps[ranks < score.FORBIDDEN]
            ranks = only(self.steps == fitting.max(), ranks) if fitting.size else ranks
        return ranks


ANYWHERE = Where()


def only(mask: Mask, ranks: Amounts) -> Amounts:
    """Return the ranks of these nodes. All other nodes are forbidden."""
    return np.where(mask, ranks, np.int64(score.FORBIDDEN))


def best(ranks: Amounts, nominated: int | None) -> int | None:
    """Return the column of the lowest rank, or the nominated one on the same step. Return None if all are forbidden.

    kube-scheduler already holds the nominated node for the pod. After a restart this restores the reservation.
    """
    column = int(ranks.argmin()) if ranks.size else None
    if column is None or (least := ranks.item(column)) == score.FORBIDDEN:
        return None
    there = score.FORBIDDEN if nominated is None else ranks.item(nominated)
    return nominated if there < score.FORBIDDEN and there // LATER == least // LATER else column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wish:
    """What pods of one shape request, and which nodes they may use."""

    amounts: Sequence[int]
    """In the rows of the `FreeResources`."""
    sharing: Sharing | None
    eligible: Mask
    """Shape [node]: the nodes that the pods may use, whatever is free."""
    compared: int
    """The resource by which nodes are compared."""
    gpus: int
    """The number of whole GPUs, which should be well connected."""
    waits: bool
    """The pods start together with others that have to wait, so room that is free now is no advantage."""

    @staticmethod
    def of(pod: Pod, amounts: Sequence[int], eligible: Mask, *, waits: bool) -> "Wish":
        """Read the request of a pod."""
        return Wish(
            amounts=amounts,
            sharing=pod.sharing,
            eligible=eligible,
            compared=score.axis(pod),
            gpus=pod.request.gpu_milli // GPU_MILLI,
            waits=waits,
        )


class Ranks:
    """The ranks of the nodes. All copies of a placement state share it, because it only caches."""

    def __init__(self, snapshot: Snapshot, strategy: Strategy, rows: Mapping[str, int]) -> None:
        """Use the nodes of the snapshot. `rows` are those of the extended resources in `FreeResources`."""
        self._nodes = snapshot.nodes
        self._strategy = strategy.nodes
        self._packing = _packing(snapshot, strategy, rows)
        self._fills_shared = strategy.devices is PlacementStrategy.BINPACK
        self._connections = Connections(snapshot)

    def _packing_for(self, wish: Wish) -> PackingCosts | None:
        """Return the costs by expected use. Return None where the free amount decides.

        It decides for pods that wait for evictions, too: their victims were chosen for one node.
        """
        return None if wish.waits else self._packing

    def _fills_shared_for(self, wish: Wish) -> bool:
        """Whether a device in shared use comes first for a part. The expected use counts the rest of a new device."""
        return self._fills_shared and self._packing_for(wish) is None

    def costs(self, wish: Wish, stock: FreeResources) -> Amounts:
        """Return the cost of each node, shape [node]; the lowest is best."""
        packing = self._packing_for(wish)
        if packing is None:
            costs = score.scarcity(stock.future[wish.compared], self._strategy)
        else:
            costs = packing.costs(wish.amounts, wish.sharing, stock)
        losses = self._connections.losses(wish.gpus, stock.free[GPU])
        if losses is not None:
            costs += losses
        if wish.compared == CPU:
            costs += np.where(self._nodes.has_gpus, np.int64(score.WRONG_KIND), np.int64(0))
        return costs

    def of(self, wish: Wish, stock: FreeResources) -> Amounts:
        """Return the rank of every node, shape [node]. Do not write to it. It is valid until the stock changes."""
        return stock.remembered.answer(
            (wish, stock.is_leaving), lambda: self.everywhere(wish, stock), lambda column: self.at(wish, stock, column)
        )

    def everywhere(self, wish: Wish, stock: FreeResources) -> Amounts:
        """Return the rank of every node, shape [node]; `score.FORBIDDEN` where there is no room."""
        amounts, sharing = wish.amounts, wish.sharing
        ranks = self.costs(wish, stock)
        if sharing is not None and self._fills_shared_for(wish):
            ranks[~stock.fits_shared(sharing)] += UNSHARED
        now = None if wish.waits else stock.room_now(amounts, sharing)
        # Without terminating pods there is no more room later than now.
        room = stock.room_later(amounts, sharing) if now is None or stock.is_leaving else now
        if now is not None and now is not room:
            ranks[~now] += LATER
        ranks[~(room & wish.eligible)] = score.FORBIDDEN
        return ranks

    def at(self, wish: Wish, stock: FreeResources, column: int) -> int:
        """Return the same for one node."""
        amounts, sharing = wish.amounts, wish.sharing
        if not wish.eligible.item(column):
            return score.FORBIDDEN
        may_wait = wish.waits or stock.is_leaving
        if may_wait and not stock.has_room_later(amounts, sharing, column):
            return score.FORBIDDEN
        rank = self._cost_at(wish, stock, column)
        if not wish.waits and not stock.has_room_now(amounts, sharing, column):
            if not may_wait:
                return score.FORBIDDEN
            rank += LATER
        if sharing is not None and self._fills_shared_for(wish) and not stock.has_shared(sharing, column):
            rank += UNSHARED
        return rank

    def _cost_at(self, wish: Wish, stock: FreeResources, column: int) -> int:
        packing = self._packing_for(wish)
        if packing is None:
            cost = score.scarcity_of(stock.future.item(wish.compared, column), self._strategy)
        else:
            cost = packing.cost_at(wish.amounts, wish.sharing, stock, column)
        if wish.gpus > 1:
            cost += self._connections.loss(wish.gpus, column, stock.free.item(GPU, column))
        if wish.compared == CPU and self._nodes.has_gpus.item(column):
            cost += score.WRONG_KIND
        return cost


def _packing(snapshot: Snapshot, strategy: Strategy, rows: Mapping[str, int]) -> PackingCosts | None:
    """Return the costs by expected use. Return None where the strategy is another one, or no typical mix is known."""
    if strategy.nodes is PlacementStrategy.SPREAD or strategy.packing is Packing.BEST_FIT or snapshot.mix is None:
        return None
    use, opens_first = expected_use(snapshot.mix), strategy.devices is PlacementStrategy.SPREAD
    return None if use is None else PackingCosts.of(use, snapshot.nodes, rows, opens_first=opens_first)
