"""Finds out what a reader may see, and keeps one encoded picture for each set of rights."""

from collections.abc import Mapping

from cachetools import LRUCache

from app.view.kept_state import KeptState
from app.view.sight import Picture, Sight
from app.web.callers import QUEUES, Caller, Callers, token_of

MOST_PICTURES = 256
"""So many sets of rights are kept encoded: as many as there may be streams."""


class ReadersRights:
    """The readers of one state."""

    def __init__(self, kept: KeptState, callers: Callers) -> None:
        """`callers` authenticates them."""
        self._kept = kept
        self._callers = callers
        self._pictures: LRUCache[Sight, Picture] = LRUCache(MOST_PICTURES)

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
        return found
