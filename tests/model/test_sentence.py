"""A reader sees only the names that the reader may see, however a sentence was put together."""

import copy
import pickle

from app.model.sentence import (
    EVERYBODY,
    EVERYTHING,
    Name,
    Names,
    Reader,
    as_clause,
    capital,
    joined,
    open_ended,
    say,
    tenant,
    told,
)

PROMISED = say("The node is promised to {first}.", first=Name("a", "train"))


def test_a_name_is_shown_only_to_readers_of_its_namespace() -> None:
    hidden = "The node is promised to a PodGroup in another namespace."

    assert told(PROMISED, EVERYTHING) == told(PROMISED, tenant("a")) == "The node is promised to a/train."
    assert told(PROMISED, tenant("b")) == told(PROMISED, EVERYBODY) == str(PROMISED) == hidden


def test_text_without_names_is_shown_as_it_is() -> None:
    assert told("No node has room.", EVERYBODY) == "No node has room."
    assert told(say("{count} of {all} nodes", count=1, all="two"), EVERYBODY) == "1 of two nodes"


def test_sentences_within_sentences_keep_their_names() -> None:
    whole = joined(say("It waits: {why}", why=as_clause(PROMISED)), "nobody leaves")

    assert told(whole, tenant("a")) == "It waits: the node is promised to a/train; nobody leaves."
    assert told(whole, EVERYBODY) == "It waits: the node is promised to a PodGroup in another namespace; nobody leaves."


def test_random_text_reveals_no_name() -> None:
    assert "train" not in f"{PROMISED}" + PROMISED.rstrip(".") + PROMISED.upper().lower()


def test_the_first_few_names_of_a_list_are_shown_and_the_others_counted() -> None:
    names = Names(tuple(Name(namespace, f"p-{n}") for n in range(4) for namespace in ("a", "b")))
    one_hidden = Names((Name("a", "p"), Name("b", "p")))

    assert names.to(EVERYTHING) == "a/p-0, a/p-1, a/p-2 and 5 more"
    assert names.to(tenant("b")) == "b/p-0, b/p-1, b/p-2 and 1 more and 4 in other namespaces"
    assert names.to(EVERYBODY) == "8 in other namespaces"
    assert one_hidden.to(tenant("a")) == "a/p and 1 in another namespace"
    assert one_hidden.to(Reader({"a", "b"})) == "a/p, b/p"


def test_the_ends_of_a_sentence_are_changed_without_its_names() -> None:
    ending = say("It waits for {whom}", whom=Name("a", "p"))

    assert told(open_ended(PROMISED), EVERYTHING) == "The node is promised to a/train"
    assert told(open_ended(ending), EVERYTHING) == told(capital(as_clause(ending)), EVERYTHING) == "It waits for a/p"
    assert (open_ended(""), as_clause(""), capital("its cause.")) == ("", "", "Its cause")


def test_a_copy_keeps_its_names() -> None:
    copies = copy.deepcopy(PROMISED), pickle.loads(pickle.dumps(PROMISED))

    assert [told(each, EVERYTHING) for each in copies] == ["The node is promised to a/train."] * 2


def test_sentences_differ_when_any_reader_sees_another_name_in_them() -> None:
    other = say("The node is promised to {first}.", first=Name("b", "train"))

    assert str(other) == str(PROMISED)
    assert other != PROMISED
    assert not (other == PROMISED)  # noqa: SIM201 # the other operator
    assert say("The node is promised to {first}.", first=Name("a", "train")) == PROMISED
    assert PROMISED == "The node is promised to a PodGroup in another namespace."
    assert len({PROMISED, other}) == 2
