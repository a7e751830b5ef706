"""The placement state and its devices give the answers of plain loops over nodes and devices."""

from dataclasses import replace

import numpy as np
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.model.node import Node
from app.model.pod import Pod, Sharing
from app.model.podgroup import PodGroup
from app.model.resources import CPU, GPU, GPU_MILLI
from app.model.snapshot import PART
from app.scheduling.placement.devices import SharedDevices
from app.scheduling.placement.ranks import Strategy
from app.scheduling.placement.state import PlacementState, Timing
from app.settings import Packing, PlacementStrategy
from tests.scheduling.worlds import World, parts_of, worlds

BINPACK = PlacementStrategy.BINPACK
examples = settings(max_examples=60)
strategies = st.builds(Strategy, st.sampled_from(PlacementStrategy), st.sampled_from(PlacementStrategy))


class SlowNode:
    """One node of a world, with plain arithmetic."""

    def __init__(self, world: World, node: Node) -> None:
        self.node = node
        hold = world.held()[node.name]
        free = node.allocatable - hold.kept - hold.leaving
        whole = free.gpu_milli - hold.opened
        self.now = replace(free, gpu_milli=whole)
        self.later = replace(free + hold.leaving, gpu_milli=whole + hold.leaving.gpu_milli + hold.whole_again)
        self.size = node.device_memory_mib * PART
        self.devices = {name: (self.size - kept - gone, self.size - kept) for name, (kept, gone) in hold.parts.items()}
        """By name: the parts that are free now and later."""

    def may_go(self, pod: Pod) -> bool:
        return dict(pod.constraint.node_selector).items() <= self.node.labels.items()

    def has_room(self, pod: Pod, *, later: bool) -> bool:
        free = self.later if later else self.now
        if any(asked > have for asked, have in zip(pod.request.amounts, free.amounts, strict=True) if asked):
            return False
        return pod.sharing is None or self._takes(pod.sharing, later=later)

    def _takes(self, sharing: Sharing, *, later: bool) -> bool:
        need = parts_of(sharing, self.node.device_memory_mib)
        if need > self.size:
            return False
        usable = [now >= need or (later and then >= need) for now, then in self.devices.values()]
        # A device whose pods are all terminating is whole again later, and counts as a GPU that is free then.
        again = sum(then == self.size for _, then in self.devices.values()) if later else 0
        whole = (self.later if later else self.now).gpu_milli // GPU_MILLI
        return sum(usable) + whole - again >= sharing.devices

    def cost(self, pod: Pod, strategy: PlacementStrategy) -> tuple[bool, int, str]:
        sign = 1 if strategy is BINPACK else -1
        wants_gpus = pod.request.gpu_milli > 0
        compared = self.later.gpu_milli if wants_gpus else self.later.cpu_milli
        return not wants_gpus and self.node.allocatable.gpu_milli > 0, sign * compared, self.node.name


def slow(world: World) -> list[SlowNode]:
    return [SlowNode(world, node) for node in sorted(world.nodes, key=lambda node: node.name)]


def waiting(world: World) -> list[Pod]:
    return [pod for group in world.groups for pod in group.pending]


@examples
@for_all(worlds, strategies)
def test_eligible_nodes_with_room_are_the_same_as_by_a_check_of_each_node(world: World, strategy: Strategy) -> None:
    board, nodes = PlacementState(world.snapshot(), strategy), slow(world)

    for pod in waiting(world):
        may_go = [node.may_go(pod) for node in nodes]
        later = [node.has_room(pod, later=True) for node in nodes]
        assert board.eligible(pod).tolist() == may_go
        assert board.allowed(pod).tolist() == [node.may_go(pod) and node.has_room(pod, later=False) for node in nodes]
        assert [board.may_stay(pod, column) for column in range(len(nodes))] == later


@examples
@for_all(worlds, strategies, st.sampled_from(Timing))
def test_the_assignment_is_on_the_cheapest_node_with_room_now_or_else_later(
    world: World, strategy: Strategy, timing: Timing
) -> None:
    best_fit = replace(strategy, packing=Packing.BEST_FIT)
    board, nodes = PlacementState(world.snapshot(), best_fit), slow(world)

    for pod in waiting(world):
        if pod.sharing is None:
            later = [node for node in nodes if node.may_go(pod) and node.has_room(pod, later=True)]
            now = [] if timing is Timing.LATER else [node for node in later if node.has_room(pod, later=False)]
            best = min(now or later, key=lambda node: node.cost(pod, strategy.nodes), default=None)
            seat = board.find(pod, timing=timing)
            assert (seat and (nodes[seat.column], seat.later)) == (best and (best, not now))


@examples
@for_all(worlds, st.sampled_from(PlacementStrategy))
def test_the_chosen_devices_have_room_for_the_part_and_are_the_fullest_or_the_emptiest(
    world: World, strategy: PlacementStrategy
) -> None:
    snapshot = world.snapshot()
    board, devices = PlacementState(snapshot, Strategy()), SharedDevices(snapshot, strategy)

    for pod in waiting(world):
        for column, node in enumerate(slow(world)):
            if pod.sharing is not None and node.has_room(pod, later=True):
                gpus = int(board.stock.free[GPU, column]), int(board.stock.future[GPU, column])
                names, _ = devices.choose(pod, pod.sharing, column, gpus)
                assert names == chosen(node, pod, pod.sharing, strategy)


def chosen(node: SlowNode, pod: Pod, sharing: Sharing, strategy: PlacementStrategy) -> tuple[str, ...]:
    """Return the devices that have room for the part, found by sorting all devices."""
    need, free = parts_of(sharing, node.node.device_memory_mib), node.later.gpu_milli // GPU_MILLI
    used = sorted((then, name) for name, (_, then) in node.devices.items() if then >= need)
    part = [name for then, name in used if then < node.size]
    again = [name for then, name in used if then == node.size][:free]
    new = [f"{pod.uid}-{index}" for index in range(min(free, sharing.devices))]
    ordered = [*part, *again, *new] if strategy is BINPACK else [*new, *reversed([*part, *again])]
    return tuple(ordered[: sharing.devices])


@examples
@for_all(worlds)
def test_taking_and_giving_back_restores_the_placement_state(world: World) -> None:
    for group in world.groups:
        board = PlacementState(world.snapshot(), Strategy())
        for one in group.placed:
            board.give_back(one)
        without = replace(world, groups=tuple(each if each is not group else _gone(each) for each in world.groups))
        then = [node.later for node in slow(without)]
        assert board.stock.future[GPU].tolist() == [free.gpu_milli for free in then]
        assert board.stock.future[CPU].tolist() == [free.cpu_milli for free in then]


def _gone(group: PodGroup) -> PodGroup:
    return replace(group, placed=())


@examples
@for_all(worlds)
def test_changes_of_a_copy_do_not_change_the_original_placement_state(world: World) -> None:
    snapshot = world.snapshot()
    board = PlacementState(snapshot, Strategy())

    trial = board.copy()
    for pod in waiting(world):
        seat = trial.find(pod)
        if seat is not None:
            trial.stock.take(seat)

    assert np.array_equal(board.stock.free, PlacementState(snapshot, Strategy()).stock.free)
    assert [board.find(pod) for pod in waiting(world)] == [
        PlacementState(snapshot, Strategy()).find(p) for p in waiting(world)
    ]
