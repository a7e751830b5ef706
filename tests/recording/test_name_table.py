"""Lists of names come back exactly, and a list in the usual order costs one run."""

import random
from timeit import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.recording.name_table import CodedNames, NameTable, UnknownRunError

NODES = [f"gpu-node-{number:05}.cluster.local" for number in range(5_000)]


def test_a_list_in_the_usual_order_is_one_run_and_has_no_new_names() -> None:
    table = NameTable()

    assert table.coded(NODES) == CodedNames(tuple(NODES), ((0, 5_000),))
    assert table.coded(NODES) == CodedNames((), ((0, 5_000),))
    assert table.coded(NODES[:1000]) == CodedNames((), ((0, 1000),))


def test_a_rotated_list_with_missing_nodes_is_a_few_runs() -> None:
    table = NameTable()
    table.coded(NODES)
    rotated = NODES[3_000:] + NODES[:3_000]
    rotated.remove(NODES[100])

    assert table.coded(rotated).runs == ((3_000, 2_000), (0, 100), (101, 2_899))


def test_names_come_back_in_their_order() -> None:
    writer, reader, chance = NameTable(), NameTable(), random.Random(1)
    for number in range(20):
        shuffled = [*NODES[:500], f"new-{number}"]
        chance.shuffle(shuffled)
        lists: tuple[list[str], ...] = (shuffled, NODES[number * 7 :] + NODES[: number * 7], [], [NODES[3], NODES[3]])
        for names in lists:
            assert reader.names(writer.coded(names)) == tuple(names)
    assert len(reader) == len(writer) == 5_020


@given(st.lists(st.lists(st.text(max_size=3), max_size=12), max_size=12))
def test_any_lists_come_back_with_little_memory(lists: list[list[str]]) -> None:
    writer, reader = NameTable(most=10), NameTable(most=10)
    for names in lists:
        assert reader.names(writer.coded(names)) == tuple(names)
        assert len(writer) == len(reader) <= max(10, *map(len, lists))


def test_numbers_begin_again_when_there_are_too_many_names() -> None:
    table = NameTable(most=3)
    table.coded(["a", "b"])

    assert table.coded(["b", "c", "d"]) == CodedNames(("b", "c", "d"), ((0, 3),), starts_over=True)
    assert len(table) == 3


def test_a_missing_list_is_noticed() -> None:
    writer = NameTable()
    writer.coded(NODES)

    with pytest.raises(UnknownRunError, match="names 0 to 5000 of 0 are not known"):
        NameTable().names(writer.coded(NODES))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["the same", "one less each time", "shuffled"])
def test_coding_a_question_takes_little_time(order: str) -> None:
    table, shuffled = NameTable(), NODES[:]
    random.Random(1).shuffle(shuffled)
    table.coded(NODES)
    lists = {"the same": [NODES], "one less each time": [NODES[1:], NODES[2:]], "shuffled": [shuffled, NODES]}[order]
    # Names of two questions are equal, but not the same objects.
    copies = [["".join(list(name)) for name in names] for names in lists]

    each_s = min(repeat(lambda: [table.coded(names) for names in copies], number=10, repeat=9)) / 10 / len(lists)

    print(f"5,000 names, {order}: {1e6 * each_s:.0f} us")
    assert each_s < 0.05
