"""What readers see: changes lead to what a new reader sees, and no hidden name is ever sent."""

from collections.abc import Iterable
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.model.live import QUEUES, SHARES, WAITING, packed
from app.model.reason import Reason
from app.model.sentence import Name, Names, Reader, say
from app.view.kept_state import KEPT, KeptState
from app.view.readers import MOST_PICTURES, ReadersRights
from app.view.sight import HIDDEN, NO_QUEUES, Picture, Sight
from app.web.callers import Anybody
from tests.view.frames import Client, events, frame, through

SECRET = "secret"
HOSTILE = [
    "</script><script>",
    "\u202etxt.exe",
    "a\n\nevent: state\ndata: {}",
    "\x00",
    "\ud800",
    "'; drop",
    "x" * 3000,
]

NAMESPACES = st.sampled_from(["mine", f"{SECRET}-team", f"{SECRET}{HOSTILE[2]}"])
NAMES = st.sampled_from(["pod", *HOSTILE])
KEYS = st.sampled_from([f"{number}" for number in range(6)])


@st.composite
def shares(draw: st.DrawFn) -> list[Any]:
    namespace = draw(NAMESPACES)
    name = f"{namespace}-{draw(NAMES)}"
    return [draw(KEYS), "n/0", draw(st.integers(0, 1000)), "bound", f"q-{namespace}", namespace, name, name, None]


@st.composite
def groups(draw: st.DrawFn) -> list[Any]:
    namespace = draw(NAMESPACES)
    name, queue = f"{namespace}-{draw(NAMES)}", f"q-{namespace}"
    others = Names((Name(f"{SECRET}-other", draw(NAMES)), Name("mine", "other")))
    sentence = say(
        "Queue {queue} is full: {first} and {others}.", queue=queue, first=Name(namespace, name), others=others
    )
    key, place = draw(KEYS), draw(st.integers(1, 9))
    return [key, place, queue, namespace, name, 1, 1, 1000, Reason.OVER_LIMIT.value, packed(sentence), None]


@st.composite
def frames(draw: st.DrawFn) -> list[Any]:
    """Return a frame: parts, and whether it has everything."""
    queues = st.builds(lambda key: [f"{SECRET}-{key}", *range(1, len(QUEUES))], KEYS)
    parts = {
        "shares": draw(st.lists(shares(), max_size=4, unique_by=lambda row: row[0])),
        "waiting": draw(st.lists(groups(), max_size=4, unique_by=lambda row: row[0])),
        "queues": draw(st.lists(queues, max_size=3, unique_by=lambda row: row[0])),
    }
    gone = {name: sorted(draw(st.sets(KEYS, max_size=3)) - {row[0] for row in rows}) for name, rows in parts.items()}
    return [
        {name: (rows, gone[name]) for name, rows in parts.items() if rows or gone[name]},
        draw(st.integers(0, 9)) == 0,
    ]


def known_only(kept: KeptState, part: Any) -> Any:
    """Leave out of a frame what no deciding process sends: rows that are gone and were never there."""
    return {name: (rows, [key for key in gone if key in kept.tables[name]]) for name, (rows, gone) in part.items()}


SIGHTS = [Sight(), Sight(frozenset({"mine"}), queues=True), Sight(frozenset({"mine"}), queues=False)]


@given(st.lists(frames(), min_size=1, max_size=12), st.integers(1, 5))
def test_changes_lead_to_what_a_new_reader_sees_and_hidden_names_are_never_sent(told: list[Any], pace: int) -> None:
    kept = KeptState()
    pictures = [Picture(kept, sight) for sight in SIGHTS]
    clients, heard = [Client() for _ in SIGHTS], [b"" for _ in SIGHTS]
    for number, (part, is_full) in enumerate(told):
        kept.add_part(through({} if is_full else known_only(kept, part)))
        kept.take(through(frame(full=is_full, leftOut=number % 3)))
        for index, (client, picture) in enumerate(zip(clients, pictures, strict=True)):
            if number % pace == 0:
                known = client.state["tick"] if client.state.get("epoch") == picture.epoch else -1
                said = events(picture, known, most=1 + pace)
                heard[index] += said
                client.hear(said)
                newcomer = Client()
                newcomer.hear(events(picture, -1, most=0))
                assert client.whole == newcomer.whole

    assert SECRET.encode() not in heard[2]
    for row in clients[1].tables["shares"].values():
        assert SECRET not in "".join(map(str, row[SHARES.index("namespace") :]))
    for row in clients[1].tables["waiting"].values():
        assert SECRET not in row[WAITING.index("name")]


def test_a_reader_is_told_what_is_missing_and_which_right_shows_it() -> None:
    assert Sight().incomplete(0) is None
    assert Sight(frozenset(), queues=False).incomplete(0) == f"{HIDDEN} {NO_QUEUES}"
    assert "7 more PodGroups" in (Sight().incomplete(7) or "")


def test_a_reader_is_told_how_many_podgroups_are_left_out_as_long_as_there_are() -> None:
    kept, client = KeptState(), Client()
    picture = Picture(kept, Sight())
    kept.take(frame(full=True, leftOut=7))
    client.hear(events(picture, -1, most=0))
    assert client.state["leftOut"] == 7
    kept.take(frame(leftOut=0))
    client.hear(events(picture, 1, most=1))
    assert (client.deltas, client.state["leftOut"], client.state["incomplete"]) == (1, 0, None)


def test_a_sentence_names_what_its_reader_may_see() -> None:
    sentence = packed(say("promised to {first} and {second}", first=Name("mine", "a"), second=Name("theirs", "b")))
    row = ["k", 1, "q", "mine", "group", 1, 1, 0, Reason.OVER_LIMIT.value, sentence, None]

    assert Sight().waiting(row)[9] == "promised to mine/a and theirs/b"
    seen = Sight(frozenset({"mine"})).waiting(row)
    assert seen[:9] == row[:9]
    assert seen[9] == "promised to mine/a and a PodGroup in another namespace"


@pytest.mark.parametrize("queues", [True, False])
def test_no_sentence_is_shown_of_a_podgroup_in_a_namespace_that_is_hidden(queues: bool) -> None:  # noqa: FBT001 # parametrized
    sentence = packed('No node that pod secret-run-0 may use: persistentvolumeclaim "customer-x" not found.')
    row = ["k", 1, "q", "theirs", "secret-run", 1, 1, 0, Reason.OVER_LIMIT.value, sentence, None]

    shown = Sight(frozenset({"mine"}), queues=queues).waiting(row)

    assert shown[2:5] == ["q" if queues else "", "", ""]
    assert shown[9] == "Its queue or one above it would exceed its limit."


def test_a_client_that_comes_back_gets_what_it_missed_as_long_as_that_is_kept() -> None:
    kept, client = KeptState(), Client()
    picture = Picture(kept, Sight())
    kept.take(frame(full=True))
    client.hear(events(picture, -1, most=1000))
    for number in range(KEPT):
        kept.take(frame(leftOut=number + 1))
    assert events(picture, 1, most=1000).count(b"event: delta") == KEPT
    kept.take(frame(leftOut=0))
    assert events(picture, 1, most=1000).startswith(b"event: state\n")


def test_a_new_series_of_frames_and_other_rights_have_another_epoch() -> None:
    kept = KeptState()
    epochs = set()
    for _ in range(2):
        kept.take(frame(full=True))
        epochs |= {Picture(kept, sight).epoch for sight in SIGHTS}
    assert len(epochs) == 2 * len(SIGHTS)


def test_time_alone_is_told_every_few_seconds() -> None:
    kept = KeptState()
    kept.take(frame(full=True))
    ticks = []
    for number in range(20):
        kept.take(frame(time=f"2026-01-01T00:00:{number:02}Z"))
        ticks.append(kept.tick)
    assert (ticks[0], ticks[-1]) == (1, 3)


def test_a_row_of_which_only_the_place_differs_is_told_by_its_place() -> None:
    kept, client = KeptState(), Client()
    picture = Picture(kept, Sight())
    rest = ["q", "ns", "pod", 1, 1, 1000, "Full", "It waits.", None]
    rows = [[f"{number}", number, *rest] for number in (1, 2, 3)]
    kept.add_part({"waiting": (rows, [])})
    kept.take(frame(full=True))
    client.hear(events(picture, -1, most=0))
    moved = [["2", 1, *rows[1][2:]], ["3", 2, *rows[2][2:9], "Another reason.", None]]
    kept.add_part({"waiting": (moved, ["1"])})
    kept.take(frame())
    said = events(picture, 1, most=1)
    client.hear(said)
    assert b'"move":[["2",1]]' in said
    assert said.count(b"It waits.") == 0
    assert client.tables["waiting"] == {row[0]: row for row in moved}


async def test_a_state_is_kept_encoded_only_while_somebody_may_ask_for_it() -> None:
    kept = KeptState()
    kept.take(frame(full=True))
    rights = ReadersRights(kept, Anybody())

    class Changing(Anybody):
        """May see another namespace each time."""

        async def reader(self, namespaces: Iterable[str]) -> Reader:
            return Reader(frozenset(namespaces) & seen)

    caller, streaming = Changing(), await rights.picture(Anybody())
    pictures = []
    for number in range(5 * MOST_PICTURES):
        seen = frozenset({f"n-{number}"})
        picture = await rights.picture(caller, seen)
        picture.state()
        pictures.append(ref(picture))
    del picture

    assert sum(each() is not None for each in pictures) <= MOST_PICTURES
    assert await rights.picture(Anybody()) is streaming
