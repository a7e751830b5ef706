"""Fair shares: the rules of division, for siblings and for trees."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import example
from hypothesis import given as for_all
from hypothesis import strategies as st

from app.model.names import QueueName
from app.model.past import MICRO, NO_PAST, Past
from app.model.queue import Queue
from app.model.resources import GPU, UNLIMITED, Resources
from app.model.snapshot import Snapshot, Usage
from app.scheduling.queues.fairshare import ShareRequest, divide, fair_shares
from tests import given

ENOUGH = 1_000_000


def claim(
    name: str = "q", *, asks: int = ENOUGH, weight: int = 1, deserved: int = 0, limit: int = UNLIMITED
) -> ShareRequest:
    return ShareRequest(
        name=name, requested=asks, over_quota_weight_micro=weight * MICRO, deserved=deserved, limit=limit
    )


def asking(queues: Sequence[Queue], *, gpus: int, asks: dict[str, int]) -> Snapshot:
    node = given.node("n", gpus=gpus)
    usage = {QueueName(name): Usage(requested=Resources(gpu_milli=asked * 1000)) for name, asked in asks.items()}
    return replace(given.snapshot([node], queues, []), usage=usage)


def gpus_of(snapshot: Snapshot, past: Past = NO_PAST) -> dict[str, int]:
    return {
        name: share.fair_share.gpu_milli // 1000 for name, share in fair_shares(replace(snapshot, past=past)).items()
    }


EXAMPLE = [
    given.queue("p", deserved=8),
    given.queue("a", "p", deserved=4, weight=1),
    given.queue("b", "p", deserved=4, weight=3),
    given.queue("q", deserved=0),
    given.queue("c", "q", deserved=0),
]


def test_children_divide_the_share_of_their_parent_beyond_their_deserved_shares_by_weight() -> None:
    snapshot = asking(EXAMPLE, gpus=24, asks={"a": 24, "b": 24, "c": 24})

    assert gpus_of(snapshot) == {"p": 16, "a": 6, "b": 10, "q": 8, "c": 8}


def test_the_sum_of_deserved_shares_may_exceed_the_capacity() -> None:
    assert divide(4, [claim("a", deserved=4), claim("b", deserved=3)], unit=1) == [4, 3]


def test_no_queue_gets_more_than_its_request_or_its_limit() -> None:
    assert divide(100, [claim("a", asks=10), claim("b", limit=20), claim("c")], unit=1) == [10, 20, 70]


def test_queues_of_higher_priority_are_satisfied_first() -> None:
    high = replace(claim("high", asks=7), priority=2)

    assert divide(10, [claim("low"), high], unit=1) == [3, 7]


def test_gpus_are_divided_in_whole_units_and_the_largest_fraction_gets_the_rest() -> None:
    assert divide(5000, [claim("a", weight=1), claim("b", weight=2)], unit=1000) == [2000, 3000]


def test_of_equal_fractions_the_older_queue_gets_the_rest() -> None:
    older = replace(claim("z"), created_at=1.0)
    younger = replace(claim("a"), created_at=2.0)

    assert divide(3, [younger, older], unit=1) == [1, 2]


def test_a_request_that_is_met_exactly_is_not_cut_to_whole_units() -> None:
    assert divide(3000, [claim("a", asks=1500), claim("b")], unit=1000) == [1500, 1500]


def test_a_queue_cut_in_one_round_and_satisfied_in_the_next_takes_no_leftovers() -> None:
    claims = [claim("a", asks=1, weight=1), claim("b", asks=1, weight=3), claim("c", asks=1, weight=2)]

    assert divide(4, claims, unit=1) == [1, 1, 1]


def test_a_queue_of_weight_zero_gets_only_its_deserved_share() -> None:
    assert divide(10, [claim("a", deserved=2, weight=0), claim("b", asks=5)], unit=1) == [2, 5]


def test_an_unlimited_deserved_share_means_the_whole_capacity() -> None:
    assert divide(10, [claim("a", asks=30, deserved=UNLIMITED), claim("b")], unit=1) == [10, 0]


def test_past_usage_shifts_the_weights() -> None:
    usage = {QueueName("a"): (0, 0, MICRO), QueueName("b"): (0, 0, 0)}
    snapshot = asking([given.queue("a"), given.queue("b")], gpus=8, asks={"a": 8, "b": 8})

    assert gpus_of(snapshot) == {"a": 4, "b": 4}
    assert gpus_of(snapshot, Past(k_micro=MICRO // 2, usage_micro=usage)) == {"a": 2, "b": 6}


def test_invalid_queues_orphans_and_cycles_get_no_share() -> None:
    queues = [
        given.queue("good"),
        replace(given.queue("bad"), problem="its weight is negative"),
        given.queue("below-bad", "bad"),
        given.queue("orphan", "nowhere"),
        given.queue("ring-1", "ring-2"),
        given.queue("ring-2", "ring-1"),
        given.queue("self", "self"),
    ]

    shares = gpus_of(asking(queues, gpus=8, asks={queue.name: 8 for queue in queues}))

    assert shares == {"good": 8}


def test_the_usage_of_an_invalid_queue_is_charged_to_its_parent() -> None:
    queues = [given.queue("p"), replace(given.queue("bad", "p"), problem="its weight is negative")]
    held = Usage(allocated=Resources(gpu_milli=2000), requested=Resources(gpu_milli=5000))
    snapshot = replace(given.snapshot([given.node("n")], queues, []), usage={QueueName("bad"): held})

    share = fair_shares(snapshot)[QueueName("p")]

    assert (share.allocated.gpu_milli, share.requested.gpu_milli) == (2000, 2000)


amounts = st.integers(0, 40_000)
siblings = st.lists(
    st.builds(
        ShareRequest,
        name=st.sampled_from("abc"),
        requested=amounts,
        priority=st.integers(0, 2),
        created_at=st.sampled_from([0.0, 1.0]),
        deserved=amounts | st.just(UNLIMITED),
        limit=amounts | st.just(UNLIMITED),
        over_quota_weight_micro=st.integers(0, 5).map(lambda weight: weight * MICRO),
        usage_micro=st.integers(0, MICRO),
    ),
    max_size=6,
)
units = st.sampled_from([1, 1000])


def guaranteed(amount: int, each: ShareRequest) -> int:
    return min(amount if each.deserved == UNLIMITED else each.deserved, each.requestable)


@for_all(amounts, siblings, units, st.integers(0, 3 * MICRO))
def test_fair_shares_beyond_the_deserved_ones_do_not_exceed_the_capacity(
    amount: int, each: list[ShareRequest], unit: int, k_micro: int
) -> None:
    shares = divide(amount, each, unit=unit, k_micro=k_micro)

    floors = [guaranteed(amount, one) for one in each]
    assert sum(shares) <= max(amount, sum(floors))
    assert all(share >= floor for share, floor in zip(shares, floors, strict=True))


@for_all(amounts, siblings, units, st.integers(0, 3 * MICRO))
def test_no_queue_gets_more_than_it_can_use_by_a_unit(
    amount: int, each: list[ShareRequest], unit: int, k_micro: int
) -> None:
    shares = divide(amount, each, unit=unit, k_micro=k_micro)

    assert all(share < one.requestable + unit for share, one in zip(shares, each, strict=True) if share)


@for_all(amounts, siblings, units)
def test_nothing_is_left_over_while_a_queue_with_weight_requests_more(
    amount: int, each: list[ShareRequest], unit: int
) -> None:
    shares = divide(amount, each, unit=unit)

    wanting = [one for share, one in zip(shares, each, strict=True) if share < one.requestable]
    assert sum(shares) >= amount or not any(one.over_quota_weight_micro for one in wanting)


@for_all(amounts, siblings, units, st.integers(1, 20_000))
def test_a_larger_capacity_never_gives_smaller_shares(
    amount: int, each: list[ShareRequest], unit: int, more: int
) -> None:
    assert sum(divide(amount + more, each, unit=unit)) >= sum(divide(amount, each, unit=unit))


@for_all(amounts, siblings, units, st.integers(1, 5))
@example(7, [], 1, 1)
def test_the_heavier_of_two_like_queues_never_gets_less(
    amount: int, others: list[ShareRequest], unit: int, heavier_by: int
) -> None:
    light = claim("light", asks=20_000)
    heavy = replace(light, name="heavy", over_quota_weight_micro=(1 + heavier_by) * MICRO)

    light_share, heavy_share, *_ = divide(amount, [light, heavy, *others], unit=unit)

    assert heavy_share >= light_share


@for_all(amounts, st.lists(st.integers(1, 9), min_size=1, max_size=6), units)
def test_queues_that_request_everything_get_their_proportion_to_within_a_unit(
    amount: int, weights: list[int], unit: int
) -> None:
    shares = divide(amount, [claim(str(index), weight=each) for index, each in enumerate(weights)], unit=unit)

    ideal = [Fraction(amount * weight, sum(weights)) for weight in weights]
    assert sum(shares) == amount
    assert all(abs(share - part) < unit for share, part in zip(shares, ideal, strict=True))


@for_all(st.integers(0, 64), st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 64)))
def test_the_shares_of_children_exceed_that_of_their_parent_only_by_deserved_shares(
    gpus: int, asks: dict[str, int]
) -> None:
    shares = fair_shares(asking(EXAMPLE, gpus=gpus, asks=asks))

    fair = {name: share.fair_share.amounts[GPU] for name, share in shares.items()}
    assert fair[QueueName("a")] + fair[QueueName("b")] <= max(fair[QueueName("p")], 8000)
    assert fair[QueueName("c")] <= fair[QueueName("q")]
