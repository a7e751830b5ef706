"""The accounts of queues follow every change, and only changed accounts are computed again."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given as for_all
from hypothesis import strategies as st

from app.model.names import QueueName
from app.model.queue import Queue
from app.model.resources import Resources
from app.model.snapshot import Snapshot, Usage
from app.scheduling.queues.accounts import Account, Tree
from app.scheduling.queues.quota import QueueLedger
from tests import given

NAMES = ["a", "b", "c", "d", "e", "f"]


def holding(gpus: int, asked: int = 0, *, firm: int = 0) -> Usage:
    held = Resources(cpu_milli=10 * gpus, gpu_milli=1000 * gpus)
    return Usage(
        allocated=held,
        allocated_non_preemptible=Resources(gpu_milli=1000 * firm),
        requested=held + Resources(gpu_milli=1000 * asked),
    )


def wide(number: int) -> dict[QueueName, Queue]:
    """Build a queue `top` and `size` queues below it."""
    queues = [given.queue("top"), *(given.queue(f"q{each}", "top") for each in range(number))]
    return {queue.name: queue for queue in queues}


def snapshot(queues: Mapping[QueueName, Queue], usage: Mapping[QueueName, Usage]) -> Snapshot:
    return replace(given.snapshot((), (), ()), queues=queues, usage=usage)


def sums(accounts: Mapping[QueueName, Account]) -> list[object]:
    return [
        (each.name, each.queue, each.deserved, each.limit, each.allocated, each.non_preemptible, each.requested)
        for each in accounts.values()
    ]


def test_a_new_pod_changes_only_the_accounts_of_its_queue_and_the_queues_above() -> None:
    tree, before = Tree(wide(100)), {QueueName(f"q{each}"): holding(1) for each in range(100)}
    first = tree.opened(before)
    second = tree.opened(before | {QueueName("q7"): holding(2)})

    assert [name for name in first if first[name] is not second[name]] == ["top", "q7"]
    assert (first[QueueName("top")].allocated[2], second[QueueName("top")].allocated[2]) == (100_000, 101_000)


def test_unchanged_queues_keep_their_accounts() -> None:
    queues, usage = wide(100), {QueueName(f"q{each}"): holding(1) for each in range(100)}
    before = Tree(queues)
    first = before.opened(usage)
    after = Tree(queues | {QueueName("q7"): given.queue("q7", "top", deserved=3)}, before)
    second = after.opened(usage)

    assert [name for name in queues if before.accounts[name] is not after.accounts[name]] == ["q7"]
    # The amounts subtracted from the queue above, and added there again, make another account of it.
    assert [name for name in queues if first[name] is not second[name]] == ["top", "q7"]
    assert second[QueueName("top")].allocated[2] == 100_000


queues_of_any_shape = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(st.none() | st.sampled_from([*NAMES, "missing"]), st.integers(0, 2), st.sampled_from(["", "", "wrong"])),
)
usages = st.dictionaries(st.sampled_from([*NAMES, "gone"]), st.tuples(st.integers(0, 3), st.integers(0, 3)))


@for_all(st.lists(st.tuples(queues_of_any_shape, usages), max_size=5))
def test_accounts_updated_step_by_step_equal_accounts_built_from_scratch(
    steps: list[tuple[dict[str, tuple[str | None, int, str]], dict[str, tuple[int, int]]]],
) -> None:
    known: dict[QueueName, Queue] = {}
    for stated, used in steps:
        made = {
            QueueName(name): replace(given.queue(name, parent, deserved=deserved), problem=problem)
            for name, (parent, deserved, problem) in stated.items()
        }
        # As in the cache: an unchanged queue is the same object.
        known = {name: known[name] if known.get(name) == each else each for name, each in made.items()}
        usage = {QueueName(name): holding(held, asked, firm=held // 2) for name, (held, asked) in used.items()}
        followed = QueueLedger(snapshot(known, usage))
        fresh = Tree(known)

        lost = [name for name in followed.accounts if name not in known]
        assert sums(fresh.opened(usage)) == [each for each in sums(followed.accounts) if each[0] not in lost]  # type: ignore[index] # a tuple
        assert bool(lost) == any(name not in known and each.allocated.gpu_milli for name, each in usage.items())


def test_charges_of_one_plan_do_not_appear_in_another_ledger() -> None:
    queues, usage = wide(2), {QueueName("q0"): holding(1)}
    seen = snapshot(queues, usage)
    first, second = QueueLedger(seen), QueueLedger(seen)
    first.charge(given.group(given.pod("p", queue="q0")), Resources(gpu_milli=5000))

    assert [ledger.accounts[QueueName("top")].allocated[2] for ledger in (first, second, QueueLedger(seen))] == [
        6000,
        1000,
        1000,
    ]
