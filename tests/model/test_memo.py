"""The cache of a table of nodes, used by the event loop and the threads of the planner at the same time."""

import pytest

from app.model.snapshot import Memo


def test_an_answer_is_read_only_by_get_because_another_thread_may_drop_it() -> None:
    memo = Memo()
    memo.remember("question", 1)

    with pytest.raises(TypeError, match="get"):
        memo["question"]
    with pytest.raises(TypeError, match="remember"):
        memo["question"] = 2
    assert (memo.get("question"), "question" in memo) == (1, True)


def test_all_answers_are_dropped_before_there_are_too_many() -> None:
    memo = Memo()
    for number in range(3):
        memo.remember(number, number, most=2)

    assert dict(memo.items()) == {2: 2}
