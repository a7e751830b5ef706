"""Finds out what a reader may see, and shares one encoded picture among all readers with these rights."""

from collections.abc import Mapping
from weakref import WeakValueDictionary

from cachetools import LRUCache

from app.view.kept_state import KeptState
from app.view.sight import Picture, Sight
from app.web.callers import QUEUES, Caller, Callers, token_of

MOST_PICTURES = 16
"""So many sets of rights are kept encoded when no stream needs them. An encoded state may be 2 MB, and a reader has
another set of rights whenever a namespace comes or goes.
"""


class ReadersRights:
    """The readers of one state."""

    def __init__(self, kept: KeptState, callers: Callers) -> None:
        """`callers` authenticates them."""
        self._kept = kept
        self._callers = callers
        self._pictures = WeakValueDictionary[Sight, Picture]()
        self._latest: LRUCache[Sight, Picture] = LRUCache(MOST_PICTURES)

    async def caller(self, headers: Mapping[bytes, bytes], address: str) -> Caller:
        """Return the caller of a request; raise `RefusedError`."""
        return await self._callers.of(token_of(headers), address)

    async def picture(self, caller: Caller, seen: frozenset[str] = frozenset()) -> Picture:
        """Return what a caller may see, also of the namespaces that it has `seen`; raise `RefusedError`."""
        asked = self._kept.namespaces | seen
        reader = await caller.reader(asked)
        named = None if reader.namespaces is None else frozenset(filter(reader.sees, asked))
        sight = Sight(named, await caller.may(QUEUES), reader.unknown)
        found = self._pictures.get(sight)
        if found is None:
            found = self._pictures[sight] = Picture(self._kept, sight)
        self._latest[sight] = found
        return found
