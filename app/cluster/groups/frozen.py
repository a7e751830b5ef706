"""A mapping of PodGroups that is handed out frozen for next to nothing, however many it holds.

It is kept in buckets: whoever gets it shares them, and a change afterwards copies the one bucket that it falls into.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Generic, TypeVar
from zlib import crc32

from app.model.names import GroupKey

V = TypeVar("V")

BUCKETS = 512
"""50,000 groups make buckets of a hundred: as cheap to copy as the list of all buckets."""


class FrozenGroups(Mapping[GroupKey, V]):
    """The groups at one moment, in an order that is the same in every process that holds the same groups."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, buckets: list[dict[GroupKey, V]], count: int) -> None:
        """`buckets` and what is in them is never written again."""
        self._buckets = buckets
        self._count = count

    def __getitem__(self, key: GroupKey) -> V:
        return self._buckets[_number(key)][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, GroupKey) and key in self._buckets[_number(key)]

    def __iter__(self) -> Iterator[GroupKey]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[V]:
        """Return the groups, without looking any of them up."""
        return _Values(self)

    def items(self) -> ItemsView[GroupKey, V]:
        """Return keys and groups, without looking any of them up."""
        return _Items(self)

    def buckets(self) -> list[dict[GroupKey, V]]:
        """Return what it is made of, only to be read."""
        return self._buckets


class _Values(ValuesView[V]):
    """The values of `FrozenGroups`, bucket by bucket."""

    def __init__(self, groups: FrozenGroups[V]) -> None:
        super().__init__(groups)
        self._groups = groups

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(bucket.values() for bucket in self._groups.buckets())


class _Items(ItemsView[GroupKey, V]):
    """The items of `FrozenGroups`, bucket by bucket."""

    def __init__(self, groups: FrozenGroups[V]) -> None:
        super().__init__(groups)
        self._groups = groups

    def __iter__(self) -> Iterator[tuple[GroupKey, V]]:
        return chain.from_iterable(bucket.items() for bucket in self._groups.buckets())


class Buckets(Generic[V]):
    """The groups as they change. `freeze` costs one copy of the list of buckets, a change at most one of a bucket."""

    def __init__(self) -> None:
        """Start with none."""
        self._buckets: list[dict[GroupKey, V]] = [{} for _ in range(BUCKETS)]
        self._mine = set(range(BUCKETS))
        """The buckets that nobody else has been given; changed by `freeze` and by the first write after it."""
        self._count = 0
        self._frozen: FrozenGroups[V] | None = None

    def get(self, key: GroupKey) -> V | None:
        """Return what is kept of a group, None when nothing is."""
        return self._buckets[_number(key)].get(key)

    def put(self, key: GroupKey, group: V | None) -> None:
        """Keep this of a group, or nothing (None), instead of what was kept before."""
        bucket = self._writable(_number(key))
        before = len(bucket)
        if group is None:
            bucket.pop(key, None)
        else:
            bucket[key] = group
        self._count += len(bucket) - before

    def freeze(self) -> FrozenGroups[V]:
        """Return the groups as they are now; the same value as long as none has changed."""
        if self._frozen is None:
            self._mine.clear()
            self._frozen = FrozenGroups(list(self._buckets), self._count)
        return self._frozen

    def _writable(self, number: int) -> dict[GroupKey, V]:
        self._frozen = None
        if number not in self._mine:
            self._buckets[number] = dict(self._buckets[number])
            self._mine.add(number)
        return self._buckets[number]


def _number(key: GroupKey) -> int:
    # Not hash(): that of a text differs from process to process, and a plan is to be told again from its snapshot.
    return crc32(key.name.encode(errors="surrogatepass")) % BUCKETS
