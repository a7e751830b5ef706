"""What a table of nodes remembers for the event loop and the threads of the planner at the same time."""

import pytest

from app.model.snapshot import Memo


def test_an_answer_is_read_by_get_alone_since_another_thread_may_forget_it() -> None:
    memo = Memo()
    memo.remember("question", 1)

    with pytest.raises(TypeError, match="get"):
        memo["question"]
    with pytest.raises(TypeError, match="remember"):
        memo["question"] = 2
    assert (memo.get("question"), "question" in memo) == (1, True)


def test_before_there_are_too_many_answers_all_are_forgotten() -> None:
    memo = Memo()
    for number in range(3):
        memo.remember(number, number, most=2)

    assert dict(memo.items()) == {2: 2}
