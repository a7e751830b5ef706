"""Turns: in which order the pending PodGroups are tried, and how charges change the order."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import given as for_all
from hypothesis import strategies as st

from app.model.decision import Share
from app.model.names import QueueName
from app.model.podgroup import PodGroup
from app.model.queue import Entitlement, Queue
from app.model.reason import Reason, Refusal
from app.model.resources import NOTHING, Resources
from app.model.snapshot import Snapshot
from app.scheduling.queues.accounts import quantities
from app.scheduling.queues.fairshare import fair_shares
from app.scheduling.queues.order import Contender, Rank, Turns, next_chunk, turn
from app.scheduling.queues.quota import QueueLedger
from tests import given

NODES = [given.node("n", gpus=16)]


def waiting(name: str, queue: str = "q", *, gpus: int = 1, pods: int = 1, **more: object) -> PodGroup:
    members = [given.pod(f"{name}-{index}", gang=name, queue=queue, gpus=gpus) for index in range(pods)]
    return given.group(*members, **more)  # type: ignore[arg-type] # free-form, as in the builders


def request(group: PodGroup) -> Resources:
    return sum((pod.request for pod in next_chunk(group)), NOTHING)


def names(queues: Iterable[Queue], groups: Iterable[PodGroup]) -> list[str]:
    """Pop everything, charging each as if it started."""
    snapshot = given.snapshot(NODES, queues, groups)
    ledger = QueueLedger(snapshot)
    turns = Turns(snapshot, ledger, fair_shares(snapshot))
    popped = []
    while (group := turns.pop()) is not None:
        popped.append(group.key.name)
        if ledger.standing(group) is None:
            ledger.charge(group, request(group))
    return popped


def test_a_queue_orders_podgroups_by_priority_then_age_then_name() -> None:
    groups = [
        waiting("b", created_at=2.0),
        waiting("a", created_at=2.0),
        waiting("old", created_at=1.0),
        waiting("urgent", created_at=9.0, priority=100),
    ]

    assert names([given.queue("q")], groups) == ["urgent", "old", "a", "b"]


def test_a_queue_orders_podgroups_below_their_minimum_before_those_at_it_and_above_it() -> None:
    groups = [
        waiting("above", min_member=1, active=2),
        waiting("at", min_member=1, active=1),
        waiting("below", min_member=1),
    ]

    assert names([given.queue("q")], groups) == ["below", "at", "above"]


def test_equal_queues_take_turns_as_they_are_charged() -> None:
    queues = [given.queue("q"), given.queue("r")]
    groups = [waiting(f"{queue}{index}", queue) for queue in "qr" for index in range(3)]

    assert names(queues, groups) == ["q0", "r0", "q1", "r1", "q2", "r2"]


def test_a_queue_whose_next_podgroup_fits_its_deserved_share_is_before_a_queue_of_higher_priority() -> None:
    queues = [replace(given.queue("q"), priority=200), given.queue("poor", deserved=1)]
    groups = [waiting("q0", "q"), waiting("poor0", "poor"), waiting("poor1", "poor")]

    assert names(queues, groups) == ["poor0", "q0", "poor1"]


def test_of_queues_beyond_their_deserved_share_the_higher_priority_is_first() -> None:
    queues = [given.queue("low"), replace(given.queue("high"), priority=200)]
    groups = [waiting(f"{queue}{index}", queue) for queue in ("low", "high") for index in range(2)]

    assert names(queues, groups) == ["high0", "high1", "low0", "low1"]


def test_podgroups_that_cannot_be_considered_are_last() -> None:
    refusal = Refusal(reason=Reason.MEMBERS_MISSING, sentence="It waits for 1 more pod.")
    groups = [
        waiting("lost", "nowhere", priority=100),
        waiting("short", priority=99, refusal=refusal),
        waiting("inner", "p", priority=98),
        waiting("sound"),
    ]

    assert names([given.queue("p"), given.queue("q", "p")], groups) == ["sound", "lost", "short", "inner"]


def test_a_pushed_podgroup_gets_another_turn_behind_those_that_have_less() -> None:
    snapshot = given.snapshot(NODES, [given.queue("q")], [waiting("first", pods=2, min_member=1), waiting("second")])
    turns = Turns(snapshot, QueueLedger(snapshot), fair_shares(snapshot))

    first = turns.pop()
    assert first is not None
    turns.push(replace(first, pending=first.pending[1:], placed=(given.placed(first.pending[0], "n"),)))

    assert [group.key.name for group in (turns.pop(), turns.pop()) if group] == ["second", "first"]
    assert turns.pop() is None


def test_a_podgroup_pushed_into_an_empty_queue_gets_a_turn() -> None:
    snapshot = given.snapshot(NODES, [given.queue("q")], [])
    turns = Turns(snapshot, QueueLedger(snapshot), fair_shares(snapshot))

    turns.push(waiting("late"))

    assert turns.pop() == waiting("late")


def test_every_charge_counts_for_the_order() -> None:
    snapshot = given.snapshot(NODES, [given.queue("q"), given.queue("r")], [waiting("q0", "q"), waiting("r0", "r")])
    ledger = QueueLedger(snapshot)
    turns = Turns(snapshot, ledger, fair_shares(snapshot))

    ledger.charge(waiting("elsewhere", "q"), Resources(gpu_milli=1000))

    assert turns.pop() == waiting("r0", "r")


ALL = Resources(cpu_milli=1000, memory_bytes=1000, gpu_milli=1000)


def rank(queue: Queue, *, fair: Resources = NOTHING, holds: Resources = NOTHING, asks: Resources = NOTHING) -> Rank:
    total = Resources(cpu_milli=100_000, memory_bytes=100_000, gpu_milli=100_000)
    return Contender.of(queue, fair_share=fair, total=total).rank(quantities(holds), quantities(asks))


def test_a_queue_exceeds_its_fair_share_only_if_it_is_above_it_in_every_resource() -> None:
    over = rank(replace(given.queue("over"), priority=200), holds=ALL)
    above_in_gpus = rank(given.queue("r"), fair=Resources(cpu_milli=1000), holds=ALL)

    assert above_in_gpus < over


def test_a_queue_that_would_use_a_resource_without_a_share_is_after_one_far_above_its_share() -> None:
    without_share = rank(given.queue("a"), asks=Resources(gpu_milli=1))
    far_above = rank(given.queue("b"), fair=Resources(gpu_milli=1000), asks=Resources(gpu_milli=9000))

    assert far_above < without_share


def test_the_smaller_dominant_share_including_the_next_podgroup_is_first() -> None:
    fair = Resources(gpu_milli=8000)

    small_next = rank(given.queue("z"), fair=fair, holds=Resources(gpu_milli=2000), asks=Resources(gpu_milli=1000))
    large_next = rank(given.queue("a"), fair=fair, asks=Resources(gpu_milli=4000))

    assert small_next < large_next


def test_of_equal_dominant_shares_the_queue_with_the_lower_current_use_is_first() -> None:
    fair = Resources(gpu_milli=8000)

    holds_less = rank(given.queue("z"), fair=fair, asks=Resources(gpu_milli=2000))
    holds_more = rank(given.queue("a"), fair=fair, holds=Resources(gpu_milli=1000), asks=Resources(gpu_milli=1000))

    assert holds_less < holds_more


def test_of_equal_use_the_queue_of_lower_weight_is_first() -> None:
    weak, strong = Resources(gpu_milli=1000), Resources(gpu_milli=2000)

    assert rank(given.queue("z"), fair=weak) < rank(given.queue("a"), fair=strong)


def test_the_older_queue_is_first_when_all_else_is_equal() -> None:
    older, younger = (replace(given.queue(name), created_at=age) for name, age in (("z", 1.0), ("a", 2.0)))

    assert rank(older) < rank(younger)


def test_shares_are_compared_exactly() -> None:
    larger, smaller = (Entitlement(deserved=(1 << 50) + spare) for spare in (2, 1))
    held = Resources(memory_bytes=1 << 49)

    less = rank(replace(given.queue("z"), memory_bytes=larger), holds=held)
    more = rank(replace(given.queue("a"), memory_bytes=smaller), holds=held)

    assert less < more


class SlowTurns:
    """The plain twin: it checks every pending group again before each pop."""

    def __init__(self, snapshot: Snapshot, ledger: QueueLedger, shares: Mapping[QueueName, Share]) -> None:
        self.snapshot, self.ledger, self.shares = snapshot, ledger, shares
        self.groups = list(snapshot.groups.values())

    def push(self, group: PodGroup) -> None:
        self.groups.append(group)

    def pop(self) -> PodGroup | None:
        if not self.groups:
            return None
        chosen = min(self.groups, key=self.key)
        self.groups.remove(chosen)
        return chosen

    def key(self, group: PodGroup) -> tuple[object, ...]:
        is_last = self.is_last(group)
        line = [] if is_last else [account.name for account in reversed(self.ledger.ancestors(group.queue))]
        return (is_last, *(self.rank(name) for name in line), turn(group))

    def is_last(self, group: PodGroup) -> bool:
        return group.refusal is not None or self.ledger.standing(group) is not None

    def rank(self, name: QueueName) -> tuple[object, ...]:
        """Rank a queue by the group that would be next below it: the best group there decides."""
        best = self.best_below(name)
        contender = Contender.of(
            self.snapshot.queues[name], fair_share=self.shares[name].fair_share, total=self.snapshot.total
        )
        return contender.rank(self.ledger.accounts[name].allocated, quantities(request(best)))

    def best_below(self, name: QueueName) -> PodGroup:
        children = [each.name for each in self.snapshot.queues.values() if each.parent == name and self.any_below(each)]
        if children:
            return self.best_below(min(children, key=self.rank))
        return min((group for group in self.in_line() if group.queue == name), key=turn)

    def any_below(self, queue: Queue) -> bool:
        return any(
            queue.name in {account.name for account in self.ledger.ancestors(group.queue)} for group in self.in_line()
        )

    def in_line(self) -> list[PodGroup]:
        return [group for group in self.groups if not self.is_last(group)]


def played(turns: Turns | SlowTurns, ledger: QueueLedger, starts: Iterable[bool]) -> list[str]:
    """Pop everything; start what `starts` says, charge it, and push what is left of it."""
    popped, chances = [], iter(starts)
    while (group := turns.pop()) is not None:
        popped.append(group.key.name)
        if ledger.standing(group) is not None or not next(chances, True):
            continue
        ledger.charge(group, request(group))
        chunk = len(next_chunk(group))
        if group.pending[chunk:]:
            started = tuple(given.placed(pod, "n") for pod in group.pending[:chunk])
            turns.push(replace(group, pending=group.pending[chunk:], placed=group.placed + started))
    return popped


QUEUES = st.fixed_dictionaries(
    {name: st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(99, 101)) for name in ("p", "q", "a", "b", "c")}
)
PARENTS = {"p": None, "q": None, "a": "p", "b": "p", "c": "q"}
GROUPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "c", "p", "nowhere"]),
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=9,
)


@for_all(QUEUES, GROUPS, st.lists(st.booleans(), max_size=20))
def test_turns_equal_those_of_sorting_again_before_each_pop(
    queues: dict[str, tuple[int, int, int]],
    groups: list[tuple[str, int, int, int, int]],
    starts: list[bool],
) -> None:
    tree = [
        replace(given.queue(name, PARENTS[name], deserved=deserved, weight=weight), priority=priority)
        for name, (deserved, weight, priority) in queues.items()
    ]
    crowd = [
        waiting(f"g{index}", queue, gpus=gpus, pods=pods, min_member=least, active=active, created_at=float(gpus))
        for index, (queue, gpus, pods, least, active) in enumerate(groups)
    ]
    snapshot = given.snapshot(NODES, tree, crowd)
    shares = fair_shares(snapshot)
    fast, slow = QueueLedger(snapshot), QueueLedger(snapshot)

    assert played(Turns(snapshot, fast, shares), fast, starts) == played(
        SlowTurns(snapshot, slow, shares), slow, starts
    )
