"""Which name a user may have meant."""

import pytest

from app.model import spelling
from app.model.spelling import LONGEST, NEIGHBOURS, KnownNames

QUEUES = KnownNames(["vision", "speech", "research", "team-a", "x" * 200, *(f"q{number:04}" for number in range(9000))])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("visoin", "vision"),
        ("ision", "vision"),
        ("Vision", "vision"),
        ("visions", "vision"),
        ("reserch", "research"),
        ("team_a", "team-a"),
    ],
)
def test_a_name_with_one_mistake_is_found_among_thousands(wrong: str, meant: str) -> None:
    assert QUEUES.hint(wrong) == f"did you mean {meant}?"


@pytest.mark.parametrize("wrong", ["", "q", "billing", "vois", "x" * 199, "v" * (LONGEST + 1)])
def test_a_name_like_no_other_gets_no_hint(wrong: str) -> None:
    assert QUEUES.hint(wrong) == ""


def test_the_name_with_the_smaller_mistake_is_meant() -> None:
    assert KnownNames(["train-ab", "train-a", "train-xy"]).hint("train-x") == "did you mean train-a?"
    assert KnownNames(["train-xy", "train-abc"]).hint("train-x") == "did you mean train-xy?"


def test_thousands_of_names_that_are_alike_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    same = spelling._same

    def counted(one: str, other: str) -> int:
        compared.append(other)
        return same(one, other)

    monkeypatch.setattr("app.model.spelling._same", counted)

    KnownNames(f"{'a' * 58}{number:04}" for number in range(9000)).hint(f"{'a' * 57}b{1234:04}")

    assert 0 < len(compared) <= 2 * 4 * NEIGHBOURS
