"""Frozen groups: a returned mapping does not change later, and costs almost nothing."""

import sys

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from app.cluster.groups.frozen import Buckets, FrozenGroups
from app.model.names import GroupKey


def key(name: str) -> GroupKey:
    return GroupKey("default", name)


def kept(**groups: int) -> Buckets[int]:
    found = Buckets[int]()
    for name, value in groups.items():
        found.put(key(name), value)
    return found


def test_a_frozen_mapping_shows_the_stored_entries() -> None:
    seen = kept(a=1, b=2).freeze()

    assert seen == {key("a"): 1, key("b"): 2}
    assert (len(seen), seen[key("a")], seen.get(key("c")), key("b") in seen) == (2, 1, None, True)
    assert (set(seen), set(seen.values()), set(seen.items())) == (
        {key("a"), key("b")},
        {1, 2},
        {(key("a"), 1), (key("b"), 2)},
    )


def test_the_order_is_the_same_in_every_process() -> None:
    assert [one.name for one in kept(**dict.fromkeys("abcdef", 0)).freeze()] == ["a", "e", "d", "c", "f", "b"]


def test_nothing_is_copied_while_nothing_changes() -> None:
    found = kept(a=1)
    before = found.freeze()

    assert found.freeze() is before
    found.put(key("a"), 2)
    assert found.freeze() is not before


changes = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(0, 3)), max_size=8)


@settings(deadline=None)
@for_all(st.lists(changes))
def test_a_frozen_mapping_equals_a_copy(rounds: list[list[tuple[str, int | None]]]) -> None:
    found, known = Buckets[int](), dict[GroupKey, int]()
    seen: list[tuple[FrozenGroups[int], dict[GroupKey, int]]] = []
    for changed in rounds:
        for name, value in changed:
            found.put(key(name), value)
            known.pop(key(name), None)
            known |= {} if value is None else {key(name): value}
        seen.append((found.freeze(), dict(known)))

    assert all(dict(frozen) == copy and len(frozen) == len(copy) for frozen, copy in seen)
    assert all(found.get(one) == known.get(one) for one in map(key, "abcdefgh"))


def test_a_long_name_of_a_request_is_not_kept() -> None:
    seen, text = kept(a=1).freeze(), "n" * 1_000_000
    uses = sys.getrefcount(text)

    assert GroupKey(text, "a") not in seen

    assert sys.getrefcount(text) == uses
