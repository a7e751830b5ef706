"""Compares what the watches have shown with what is stored, slowly, and repairs what differs: a lost event ends here.

One round for each kind:
  1. list the metadata of all objects, page by page, and note where key or version differ from what the watch has shown
  2. give the watch time: most differences are events that are under way
  3. read each object that still differs, and repair what was not shown; what the watch shows meanwhile wins
  4. what is still older than what was shown cannot be repaired: the store was restored from a backup, and had caught up
     before the watch was made anew, which saw nothing of it
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog

from app.cluster import decode
from app.control.groups.owner_watch import OwnerWatch
from app.control.informers.audited import AuditedOwners, AuditedResource
from app.control.informers.feed import Feed
from app.control.leadership.freshness import Freshness
from app.model.seam import Cluster, KubeError, RawObject, Resource, RestoredError
from app.telemetry import Drift, Metrics

log = structlog.get_logger()

WATCH_LAG_S = 10.0
"""How long an event may take from the store to us until it counts as lost."""

MOST_SUSPECTS = 500
"""Objects of one kind that are read in a round; what is left differs in the next one as well."""

COMPARED_AT_ONCE = 2000


Audited = AuditedResource | AuditedOwners


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An object that is not stored as the watch has shown it."""

    key: Any
    namespace: str
    name: str
    shown: int | None
    """The version that the watch had shown; None for nothing."""
    is_past: bool = False
    """Whether what is stored is older than what was shown before: the store was restored from a backup."""


class _Comparison:
    """One list of a kind, compared object by object as it comes, so that nothing of it is kept but keys."""

    def __init__(self, kind: Audited) -> None:
        """Note what the watch has shown before the list begins: whatever is there still has to be in it."""
        self._before = dict(kind.shown())
        self._kind = kind
        self._stored: set[Any] = set()
        self._suspects: list[_Suspect] = []

    def take(self, raw: RawObject) -> None:
        """Compare one object that is stored."""
        key = self._kind.key_of(raw)
        if not key:
            return  # Nothing tells which object it is.
        shown = self._kind.shown().get(key)
        self._stored.add(key)
        if shown is None and key in self._before:
            return  # The watch has shown its end since.
        version = decode.version(raw)
        is_past = 0 < version < self._before.get(key, 0)
        if shown is None or shown < version or is_past:
            self._suspects.append(_Suspect(key, decode.namespace_of(raw), decode.identity(raw)[0], shown, is_past))

    async def finish(self) -> Sequence[_Suspect]:
        """Look for what was shown and is not stored; return what differs."""
        for number, (key, version) in enumerate(self._before.items(), start=1):
            if key not in self._stored and self._kind.shown().get(key) == version:
                self._suspects.append(_Suspect(key, *self._kind.place_of(key), version))
            if number % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return self._suspects


class Audit:
    """Looks at every kind once in a while. Changes nothing but through what follows the kind."""

    def __init__(  # noqa: PLR0913 # collaborators come in through the constructor
        self,
        feed: Feed,
        owners: OwnerWatch,
        freshness: Freshness,
        cluster: Cluster,
        metrics: Metrics,
        *,
        interval_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`interval_s` is the pause between two rounds; 0 switches the audit off."""
        self._feed = feed
        self._owners = owners
        self._freshness = freshness
        self._cluster = cluster
        self._metrics = metrics
        self._interval_s = interval_s
        self._sleep = sleep

    async def run(self) -> None:
        """Look for ever, if that is wanted."""
        if not self._interval_s:
            return
        await self._freshness.synced()
        while True:
            await self._sleep(self._interval_s)
            for kind in self._kinds():
                await self.look(kind)

    def _kinds(self) -> Iterator[Audited]:
        for resource in filter(self._freshness.is_listed, Resource):
            yield AuditedResource(self._feed, self._cluster, resource)
        owners = self._owners
        for kind in owners.kinds.listed():
            # Another kind may have taken its place while those before it were looked at.
            if kind in owners.kinds.listed():
                yield AuditedOwners(owners, self._cluster, kind)

    async def look(self, kind: Audited) -> None:
        """Compare one kind and repair what differs; a kind that cannot be listed now is left for the next round.

        Raises `RestoredError` when what is stored is older than what was shown before.
        """
        try:
            comparison = _Comparison(kind)
            await kind.listed(comparison.take)
            suspects = await comparison.finish()
            if suspects:
                await self._sleep(WATCH_LAG_S)
            for suspect in islice(_unchanged(kind, suspects), MOST_SUSPECTS):
                await self._repair(kind, suspect)
        except RestoredError:
            raise
        except KubeError as error:
            log.warning("kind not audited", resource=kind.name, error=str(error))

    async def _repair(self, kind: Audited, suspect: _Suspect) -> None:
        found = await kind.read(suspect.namespace, suspect.name)
        # From here to the repair there is no await: what the watch has shown until now wins.
        if kind.shown().get(suspect.key) != suspect.shown:
            return
        raw = found if found is not None and kind.key_of(found) == suspect.key else None
        if raw is not None and suspect.is_past and 0 < decode.version(raw) < (suspect.shown or 0):
            kind.note_past()
        if raw is not None and decode.version(raw) > (suspect.shown or 0):
            if kind.has_ended(suspect.key, decode.version(raw)):
                return  # It came and went while it was read.
            drift = Drift.MISSED if suspect.shown is None else Drift.STALE
            await kind.mend(raw)
        elif raw is None and suspect.shown is not None:
            drift = Drift.GONE
            await kind.remove(suspect.key)
        else:
            return
        self._metrics.drifted(kind.name, drift)
        where = f"{suspect.namespace}/{suspect.name}"
        log.warning("lost event repaired", resource=kind.name, object=where, drift=drift.value)


def _unchanged(kind: Audited, suspects: Sequence[_Suspect]) -> Iterator[_Suspect]:
    """Yield those of which the watch has still shown nothing newer, as things are when each is asked for."""
    return (one for one in suspects if kind.shown().get(one.key) == one.shown)
