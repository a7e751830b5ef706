"""A mapping of PodGroups that can be frozen at almost no cost, whatever its size.

The mapping is kept in buckets. A frozen mapping shares them. A later change copies only the bucket that it changes.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, Generic, TypeVar
from zlib import crc32

from app.model.names import GroupKey

V = TypeVar("V")

BUCKETS = 512
"""50,000 groups give buckets of about a hundred: a bucket is as cheap to copy as the list of all buckets."""


class FrozenGroups(Mapping[GroupKey, V]):
    """The groups at one moment, in an order that is the same in every process with the same groups."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, buckets: list[dict[GroupKey, V]], count: int) -> None:
        """Neither `buckets` nor a bucket in it is written after this."""
        self._buckets = buckets
        self._count = count

    def __getitem__(self, key: GroupKey) -> V:
        return self._buckets[_number(key)][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, GroupKey) and key in self._buckets[_number(key)]

    def get(self, key: GroupKey, default: Any = None) -> Any:
        """Return the group, the default without one; with one lookup and no exception."""
        return self._buckets[_number(key)].get(key, default)

    def __iter__(self) -> Iterator[GroupKey]:
        # `filter` passes over empty buckets without any step of Python, and where few groups wait most are empty.
        return chain.from_iterable(filter(None, self._buckets))

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[V]:
        """Return the groups, without a lookup."""
        return _Values(self)

    def items(self) -> ItemsView[GroupKey, V]:
        """Return keys and groups, without a lookup."""
        return _Items(self)

    def buckets(self) -> list[dict[GroupKey, V]]:
        """Return the buckets; read only."""
        return self._buckets


class _Values(ValuesView[V]):
    """The values of `FrozenGroups`, bucket by bucket."""

    def __init__(self, groups: FrozenGroups[V]) -> None:
        super().__init__(groups)
        self._groups = groups

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(bucket.values() for bucket in filter(None, self._groups.buckets()))


class _Items(ItemsView[GroupKey, V]):
    """The items of `FrozenGroups`, bucket by bucket."""

    def __init__(self, groups: FrozenGroups[V]) -> None:
        super().__init__(groups)
        self._groups = groups

    def __iter__(self) -> Iterator[tuple[GroupKey, V]]:
        return chain.from_iterable(bucket.items() for bucket in filter(None, self._groups.buckets()))


class Buckets(Generic[V]):
    """The groups as they change. `freeze` copies the list of buckets; a change copies at most one bucket."""

    def __init__(self) -> None:
        """Start without groups."""
        self._buckets: list[dict[GroupKey, V]] = [{} for _ in range(BUCKETS)]
        self._mine = set(range(BUCKETS))
        """The buckets that no frozen mapping shares; changed by `freeze` and by the first write after it."""
        self._count = 0
        self._frozen: FrozenGroups[V] | None = None

    def get(self, key: GroupKey) -> V | None:
        """Return the stored group; None when there is none."""
        return self._buckets[_number(key)].get(key)

    def put(self, key: GroupKey, group: V | None) -> None:
        """Store a group; None removes it."""
        bucket = self._writable(_number(key))
        before = len(bucket)
        if group is None:
            bucket.pop(key, None)
        else:
            bucket[key] = group
        self._count += len(bucket) - before

    def freeze(self) -> FrozenGroups[V]:
        """Return the present groups; the same value as long as none has changed."""
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
    # Not hash(): the hash of a text differs between processes, and a plan must be reproducible from its snapshot.
    return crc32(key.name.encode(errors="surrogatepass")) % BUCKETS
