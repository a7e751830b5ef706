"""No more pods are evicted than needed: plans of random small clusters against every other set of victims.

One gang waits in the only queue, and up to eight running pods of lower priority may be evicted. Another set of victims
is better if the whole gang starts with it too, fewer pods are lost, and no pod in it is better protected: the best
protected pod of one set is compared with that of the other, the second with the second, and so on, by priority, by
whether the pod is beyond the minimum of its group, and by age. So no victim, and no gang among the victims, may be
superfluous. But an older pod stays although two younger ones are evicted in its place. If the pods of the gang differ,
only parts of the plan's set of victims are compared: each of these pods takes the first victims in the order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random

import pytest

from app.model.decision import Action, Plan
from app.model.names import PodUid
from app.model.node import Node
from app.model.pod import ANYWHERE, Constraint
from app.model.podgroup import PodGroup
from app.scheduling.planner.planner import plan
from app.scheduling.policy import Policy
from app.scheduling.queues.order import last_chunk, turn
from tests import given

pytestmark = pytest.mark.slow

EAST = Constraint(node_selector=(("zone", "east"),))
MOST_RUNNING = 8
SMALL = 4
PREEMPT = Policy(actions=(Action.PREEMPT,))
ALLOCATE = Policy(actions=(Action.ALLOCATE,), borrow_last=False)

Victims = frozenset[PodUid]
Protection = tuple[int, int, float]
"""How well a pod is protected, the best protected first."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, the pods that run there, and the gang that waits."""

    nodes: Sequence[Node]
    running: Sequence[PodGroup]
    gang: PodGroup

    def plan(self, policy: Policy) -> Plan:
        """Plan without any plan before."""
        return plan(given.snapshot(self.nodes, [given.queue("q", deserved=100)], [*self.running, self.gang]), policy)

    def starts(self, policy: Policy) -> bool:
        """Whether the whole gang starts."""
        return sum(len(start.placements) for start in self.plan(policy).starts) == len(self.gang.pending)

    def without(self, gone: Victims) -> "Cluster":
        """Return the cluster without some of the pods."""
        left = (
            replace(group, placed=tuple(one for one in group.placed if one.pod.uid not in gone))
            for group in self.running
        )
        return replace(self, running=[group for group in left if group.placed])

    def with_moves(self, found: Plan) -> "Cluster":
        """Return the cluster with the moved pods at their new places."""
        target = {each.pod: each.moves_to for each in found.evictions if each.moves_to is not None}
        groups = (
            replace(group, placed=tuple(replace(one, node=target.get(one.pod.uid, one.node)) for one in group.placed))
            for group in self.running
        )
        return replace(self, running=list(groups))

    def fits(self) -> bool:
        """Whether no node holds more GPUs than it has."""
        held = dict.fromkeys((node.name for node in self.nodes), 0)
        for group in self.running:
            for one in group.placed:
                held[one.node] += one.pod.request.gpu_milli
        return all(held[node.name] <= node.allocatable.gpu_milli for node in self.nodes)


def cluster(dice: Random, asked: Sequence[int]) -> Cluster:
    """Build a random cluster in which a gang waits whose pods request these numbers of GPUs."""
    nodes = [
        given.node(
            f"n{index}", gpus=dice.choice([6, 8, 10] if len(asked) > SMALL else [2, 4, 5, 8]), labels={"zone": zone}
        )
        for index, zone in enumerate(dice.choices(["east", "west"], k=dice.randint(2, 5)))
    ]
    pods = (given.pod(f"w{index:02}", gang="w", gpus=gpus) for index, gpus in enumerate(asked))
    return Cluster(nodes, list(_running(dice, nodes)), given.group(*pods, priority=9))


def _running(dice: Random, nodes: Sequence[Node]) -> Iterator[PodGroup]:
    free, left = {node.name: node.allocatable.gpu_milli // 1000 for node in nodes}, MOST_RUNNING
    for number in range(12):
        pods, gpus, is_bound = (
            min(dice.choice([1, 1, 1, 2, 3]), left),
            dice.choice([1, 1, 2, 2, 3, 4]),
            dice.random() < 0.2,
        )
        placed = []
        for index in range(pods):
            pod = given.pod(
                f"g{number}-{index}", gang=f"g{number}", gpus=gpus, constraint=EAST if is_bound else ANYWHERE
            )
            open_to = [
                node for node in nodes if free[node.name] >= gpus and (not is_bound or node.labels["zone"] == "east")
            ]
            if open_to:
                node = dice.choice(open_to).name
                free[node] -= gpus
                placed.append(given.placed(pod, node))
        if placed:
            left -= len(placed)
            least = dice.randint(1, len(placed)) if dice.random() < 0.4 else len(placed)
            yield given.group(running=placed, min_member=least, priority=dice.randint(0, 2), created_at=float(number))


def choices(group: PodGroup) -> Iterator[Mapping[PodUid, Protection]]:
    """Yield every set of pods of a group that may be evicted together, with the protection of each."""
    spare, rest = dict[PodUid, Protection](), group
    while 1 == len(last_chunk(rest)) < len(rest.placed):
        (one,) = last_chunk(rest)
        spare[one.pod.uid] = turn(rest)[:3]
        rest = replace(rest, placed=tuple(each for each in rest.placed if each is not one))
    for count in range(len(spare) + 1):
        for chosen in combinations(spare, count):
            yield {uid: spare[uid] for uid in chosen}
    yield spare | {one.pod.uid: turn(rest)[:3] for one in rest.placed}


def better(there: Cluster, found: Plan) -> Iterator[Victims]:
    """Yield the sets of victims that are better than that of the plan."""
    lost = lost_in(found)
    every = [list(choices(group)) for group in there.running]
    protection = {uid: each for sets in every for chosen in sets for uid, each in chosen.items()}
    for parts in product(*every):
        chosen = {uid: each for part in parts for uid, each in part.items()}
        if len(chosen) < len(lost) and _is_no_better_protected(chosen.values(), (protection[uid] for uid in lost)):
            gone = frozenset(chosen)
            after = (there.without(gone), there.with_moves(found).without(gone))
            if any(each.fits() and each.starts(ALLOCATE) for each in after):
                yield gone


def lost_in(found: Plan) -> Victims:
    """Return the pods that lose their place for good."""
    return frozenset(each.pod for each in found.evictions if each.moves_to is None)


def _is_no_better_protected(fewer: Iterable[Protection], more: Iterable[Protection]) -> bool:
    return all(one >= other for one, other in zip(sorted(fewer), sorted(more), strict=False))


def plans(seeds: int, asking: Callable[[Random], Sequence[int]]) -> Iterator[tuple[Cluster, Plan]]:
    """Yield clusters in which a pod has to be evicted for the gang, and the plans."""
    for seed in range(seeds):
        dice = Random(seed)  # not for secrets
        there = cluster(dice, asking(dice))
        found = there.plan(PREEMPT)
        if found.evictions:
            yield there, found


def alike(dice: Random) -> Sequence[int]:
    return [dice.choice([1, 1, 2, 3, 4])] * dice.randint(1, SMALL)


def unlike(dice: Random) -> Sequence[int]:
    return [dice.choice([1, 1, 2, 3, 4, 5]) for _ in range(dice.randint(2, SMALL))]


def many(dice: Random) -> Sequence[int]:
    return [1] * dice.randint(17, 20)


@pytest.mark.parametrize("asking", [alike, many])
def test_no_smaller_set_of_victims_with_no_better_protection_suffices(
    asking: Callable[[Random], Sequence[int]],
) -> None:
    made = list(plans(90, asking))

    assert [(there, found) for there, found in made if any(better(there, found))] == []
    assert len(made) > 20


def test_no_victim_of_a_gang_of_unlike_pods_is_unnecessary() -> None:
    made = list(plans(60, unlike))

    superfluous = [found for there, found in made if any(each < lost_in(found) for each in better(there, found))]
    assert superfluous == []
    assert len(made) > 20


@pytest.mark.parametrize("asking", [alike, unlike])
def test_a_gang_starts_whenever_some_set_of_victims_makes_room_for_it(
    asking: Callable[[Random], Sequence[int]],
) -> None:
    clusters = [cluster(dice, asking(dice)) for dice in map(Random, range(400))]  # not for secrets
    waiting = [there for there in clusters if not there.starts(PREEMPT)]

    assert [there for there in waiting if any(there.without(gone).starts(ALLOCATE) for gone in all_sets(there))] == []
    assert len(waiting) > 20


def all_sets(there: Cluster) -> Iterator[Victims]:
    """Yield every set of victims, none if all of them together do not suffice."""
    every = [list(choices(group)) for group in there.running]
    largest = frozenset(uid for sets in every for uid in sets[-1])
    if there.without(largest).starts(ALLOCATE):
        yield from (frozenset(uid for part in parts for uid in part) for parts in product(*every))
