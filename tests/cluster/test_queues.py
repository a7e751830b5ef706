"""The tree of queues as a whole: missing parents, cycles, and queues below an invalid one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.cluster.queues.tree import judged
from app.model.names import QueueName
from app.model.queue import Queue


def queue(name: str, parent: str | None = None, problem: str = "") -> Queue:
    return Queue(name=QueueName(name), parent=QueueName(parent) if parent else None, problem=problem)


def problems(*queues: Queue) -> dict[str, str]:
    return {name: each.problem for name, each in judged(queues).items()}


def test_a_valid_queue_tree_stays_as_it_is() -> None:
    tree = [queue("leaf", "top"), queue("top"), queue("other", "top")]

    assert judged(tree) == {each.name: each for each in tree}


def test_a_missing_parent_is_named() -> None:
    assert problems(queue("a", "gone")) == {
        "a": "its parent queue gone does not exist; create it, or change spec.parentQueue"
    }


def test_a_queue_below_an_invalid_queue_is_invalid_and_names_that_queue() -> None:
    seen = problems(queue("leaf", "middle"), queue("middle", "top"), queue("top", problem="no numbers"))

    assert seen == {
        "top": "no numbers",
        "middle": "its parent queue top is not valid; the status of that queue says what to change",
        "leaf": "its parent queue middle is not valid; the status of that queue says what to change",
    }


def test_a_cycle_is_reported_by_all_its_queues_and_those_below() -> None:
    seen = problems(queue("below", "a"), queue("a", "b"), queue("b", "a"), queue("self", "self"))

    circle = "its parents form a circle (a -> b -> a); change spec.parentQueue of one of them"
    assert (seen["a"], seen["b"]) == (circle, circle)
    assert seen["below"].startswith("its parent queue a is not valid")
    assert "(self -> self)" in seen["self"]


def test_the_own_problem_of_a_queue_is_not_replaced() -> None:
    assert problems(queue("a", "gone", problem="mine")) == {"a": "mine"}


def test_a_tree_that_is_too_deep_is_invalid_from_the_excessive_level_on() -> None:
    chain = [queue(f"q{level}", f"q{level - 1}" if level > 1 else None) for level in range(1, 1001)]

    seen = problems(*chain)

    assert [name for name, problem in seen.items() if not problem] == [f"q{level}" for level in range(1, 33)]
    assert seen["q33"] == "it is more than 32 levels deep; change spec.parentQueue to a queue nearer to the top"
    assert seen["q34"].startswith("its parent queue q33 is not valid")


def test_the_message_about_a_long_cycle_stays_short() -> None:
    size = 1000

    seen = problems(*(queue(f"q{number}", f"q{(number + 1) % size}") for number in range(size)))

    assert seen["q0"] == (
        "its parents form a circle (q0 -> q1 -> q2 -> q3 -> q4 -> ... -> q0); change spec.parentQueue of one of them"
    )


def test_a_chain_of_many_thousand_queues_is_checked_without_recursion_or_delay() -> None:
    # From the leaf up, checking each queue again would take more than a billion steps.
    chain = [queue(f"q{number}", f"q{number - 1}" if number else None) for number in reversed(range(50_000))]

    # Only the queues at the top are valid: a tree has a limited depth.
    assert [name for name, problem in problems(*chain).items() if not problem] == [f"q{n}" for n in reversed(range(32))]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.none() | st.sampled_from("abcdefgh"), max_size=6),
    st.sets(st.sampled_from("abcdef")),
)
def test_a_queue_is_valid_exactly_when_its_path_ends_at_a_valid_root(
    parents: dict[str, str | None], bad: set[str]
) -> None:
    tree = [queue(name, parent, "bad" if name in bad else "") for name, parent in parents.items()]

    seen = problems(*tree)

    assert {name: not problem for name, problem in seen.items()} == {
        name: _sound(name, parents, bad) for name in parents
    }
    assert judged(tree) == {each.name: replace(each, problem=seen[each.name]) for each in tree}


def _sound(name: str | None, parents: dict[str, str | None], bad: set[str]) -> bool:
    for _ in range(len(parents) + 1):
        if name is None:
            return True
        if name not in parents or name in bad:
            return False
        name = parents[name]
    return False
