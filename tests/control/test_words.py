"""The message in one state of the cluster does not depend on which plan was last."""

from itertools import permutations

import pytest

from app.control.journal.wording import Words
from app.model.names import GroupKey
from app.model.reason import OfVictims, Reason, Refusal
from app.model.sentence import EVERYTHING, Name, say, told

KEY = GroupKey("q", "gang")
OF_VICTIMS = OfVictims(clause="nobody may be made to leave for it", details={"queue": "q"})


def refusal(sentence: str, reason: Reason = Reason.NO_NODE_FITS) -> Refusal:
    return Refusal(reason=reason, sentence=sentence)


SHORT = refusal("No node has room: 2 of 2 nodes have too few GPUs.")
FULL = refusal("It is behind 1 PodGroup: no node has room.").with_victims(OF_VICTIMS)


@pytest.mark.parametrize("order", sorted(set(permutations("ssff"))), ids="".join)
def test_the_message_of_the_full_plan_of_a_state_is_final(order: tuple[str, ...]) -> None:
    words = Words()

    for plan in order:
        said = words.of_full_plan(KEY, FULL, 7) if plan == "f" else words.of_short_plan(KEY, SHORT, 7)

    assert said == FULL


def test_a_short_plan_with_the_same_message_changes_nothing() -> None:
    words = Words()
    words.of_short_plan(KEY, SHORT, 1)
    words.of_full_plan(KEY, FULL, 1)

    assert words.of_short_plan(KEY, SHORT, 2) == FULL


def test_after_a_change_newer_numbers_are_shown_with_what_is_known_about_victims() -> None:
    words, newer = Words(), refusal("No node has room: 1 of 2 nodes has too few GPUs.")
    words.of_short_plan(KEY, SHORT, 1)
    words.of_full_plan(KEY, FULL, 1)

    said = words.of_short_plan(KEY, newer, 2)

    assert said == newer.with_victims(OF_VICTIMS)
    assert said.sentence == "No node has room: 1 of 2 nodes has too few GPUs; nobody may be made to leave for it."


def test_a_search_that_ends_late_does_not_restore_old_numbers() -> None:
    words, newer = Words(), refusal("No node has room: 1 of 2 nodes has too few GPUs.")
    words.of_short_plan(KEY, newer, 2)

    assert words.of_full_plan(KEY, FULL, 1) == newer.with_victims(OF_VICTIMS)


def test_a_full_plan_without_a_complete_search_keeps_what_is_known_about_victims() -> None:
    words = Words()
    words.of_full_plan(KEY, FULL, 1)

    assert words.of_full_plan(KEY, SHORT, 2) == SHORT.with_victims(OF_VICTIMS)


def test_a_full_plan_without_a_word_about_victims_removes_the_earlier_one() -> None:
    words, nothing = Words(), SHORT.with_victims(OfVictims())
    words.of_full_plan(KEY, FULL, 1)

    assert words.of_full_plan(KEY, nothing, 2).sentence == SHORT.sentence
    assert words.of_short_plan(KEY, refusal("No node has room."), 3).sentence == "No node has room."


def test_the_current_holder_of_the_room_is_named_although_the_message_without_names_is_the_same() -> None:
    words = Words()
    before, now = (refusal(say("The room is promised to {first}.", first=Name(team, "train"))) for team in ("a", "b"))
    words.of_short_plan(KEY, before, 1)

    assert told(words.of_short_plan(KEY, now, 2).sentence, EVERYTHING) == "The room is promised to b/train."


def test_another_reason_is_shown_at_once_and_without_victims() -> None:
    words, other = Words(), refusal("Waiting for 5 pods.", Reason.MEMBERS_MISSING)
    words.of_full_plan(KEY, FULL, 1)

    assert words.of_short_plan(KEY, other, 1) == other


def test_nothing_is_kept_about_a_podgroup_that_is_no_longer_pending() -> None:
    words = Words()
    words.of_full_plan(KEY, FULL, 1)
    words.forget(KEY)

    assert words.of_short_plan(KEY, SHORT, 2) == SHORT
