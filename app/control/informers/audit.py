"""Compares slowly what the watches have shown with the stored objects, and repairs what lost events left wrong.

One round for each kind:
1. list the metadata of all objects, page by page, and note where key or version differ from what the watch has shown
2. give the watch time: most differences are events that are still on their way
3. read each object that still differs, and apply it; what the watch shows meanwhile takes precedence
4. a stored object that is still older than the shown one cannot be repaired: the store was restored from a backup, and
   its versions had caught up before the watch reconnected, so the watch did not notice.
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
"""How long an event may take from the store to us before it counts as lost."""

MOST_SUSPECTS = 500
"""Objects of one kind that are read in a round at most; the others still differ in the next round."""

COMPARED_AT_ONCE = 2000


Audited = AuditedResource | AuditedOwners


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An object whose stored state differs from what the watch has shown."""

    key: Any
    namespace: str
    name: str
    shown: int | None
    """The version that the watch had shown; None when it had shown no object."""
    is_past: bool = False
    """Whether the stored version is older than the shown one: the store was restored from a backup."""


class _Comparison:
    """The comparison of one list of a kind, object by object, so that only keys are kept."""

    def __init__(self, kind: Audited) -> None:
        """Copy what the watch has shown before the list begins: the list must contain these objects."""
        self._before = dict(kind.shown())
        self._kind = kind
        self._stored: set[Any] = set()
        self._suspects: list[_Suspect] = []

    def take(self, raw: RawObject) -> None:
        """Compare one stored object."""
        key = self._kind.key_of(raw)
        if not key:
            return  # The object has no readable identity.
        shown = self._kind.shown().get(key)
        self._stored.add(key)
        if shown is None and key in self._before:
            return  # The watch has shown its deletion since.
        version = decode.version(raw)
        is_past = 0 < version < self._before.get(key, 0)
        if shown is None or shown < version or is_past:
            self._suspects.append(_Suspect(key, decode.namespace_of(raw), decode.identity(raw)[0], shown, is_past))

    async def finish(self) -> Sequence[_Suspect]:
        """Add the objects that were shown and are not stored; return all that differ."""
        for number, (key, version) in enumerate(self._before.items(), start=1):
            if key not in self._stored and self._kind.shown().get(key) == version:
                self._suspects.append(_Suspect(key, *self._kind.place_of(key), version))
            if number % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return self._suspects


class Audit:
    """Looks at every kind at intervals. It changes state only through the follower of the kind."""

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
        """Audit until cancelled, unless the audit is switched off."""
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
            # Another kind may have replaced it while the kinds before it were audited.
            if kind in owners.kinds.listed():
                yield AuditedOwners(owners, self._cluster, kind)

    async def look(self, kind: Audited) -> None:
        """Compare one kind and repair the differences; a kind that cannot be listed now is left for the next round.

        Raises `RestoredError` when a stored version is older than the version that was shown before.
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
        # From here to the repair there is no await: what the watch has shown until now takes precedence.
        if kind.shown().get(suspect.key) != suspect.shown:
            return
        raw = found if found is not None and kind.key_of(found) == suspect.key else None
        if raw is not None and suspect.is_past and 0 < decode.version(raw) < (suspect.shown or 0):
            kind.note_past()
        if raw is not None and decode.version(raw) > (suspect.shown or 0):
            if kind.has_ended(suspect.key, decode.version(raw)):
                return  # It was created and deleted during the read.
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
    """Yield the suspects for which the watch has shown nothing newer at the time of iteration."""
    return (one for one in suspects if kind.shown().get(one.key) == one.shown)
