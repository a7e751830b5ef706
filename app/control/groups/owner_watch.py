"""Follows the kinds of objects that own pods, each kind from the first request for one of its objects.

An owner that the watch should show but does not is read individually: pods must not wait for an owner that is deleted.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Protocol

import structlog

from app.cluster.groups.owners import Owners
from app.control.groups.owner_kinds import Follow, OwnerKinds
from app.control.groups.owner_reading import SeenOwner, read_owner, seen_owner
from app.control.groups.shown import Shown
from app.grouping import reads
from app.model.owner import Kind, Owner, OwnerRef
from app.model.seam import Changed, Deleted, ForbiddenError, KubeError, Listed, Lost, Objects, RawObject, WatchEvent

log = structlog.get_logger()

LAG_S = 1.0
"""How long the watch of a kind may lag behind the watch of pods before an owner is read individually."""

LOOK_AGAIN_S = 30.0
"""How often to check whether a kind that was not served is served now."""

OTHERS_GO_ON_AFTER_S = 5.0
"""How long the first list of a kind holds up all pods: the API server may accept the request and never answer, which
counts as a failure only after half a minute. Pods with owners of that kind continue to wait.
"""


class Dependants(Protocol):
    """The pods and groups that depend on owners."""

    async def owner_changed(self, owner: Owner) -> None:
        """Regroup the pods below this object."""
        ...

    async def kind_answered(self, kind: Kind) -> None:
        """Regroup the pods that wait for objects of this kind: the kind is listed now, or not available."""
        ...

    async def owner_missed(self, ref: OwnerRef, namespace: str) -> None:
        """Regroup the pods that wait for this object, which does not exist."""
        ...

    def owner_gone(self, owner: Owner) -> None:
        """Forget the object as soon as it has no pods."""
        ...

    def late(self) -> Collection[tuple[OwnerRef, str]]:
        """Return the objects that pods wait for, with their namespaces."""
        ...

    def note_progress(self) -> None:
        """Note that more owners are known, or that fewer are missing: pods may be decided now."""
        ...


class OwnerWatch:
    """The kinds that are followed. Only the event loop calls this class."""

    def __init__(
        self,
        owners: Owners,
        cluster: Objects,
        dependants: Dependants,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start without kinds, except pods, which are followed elsewhere."""
        self._owners = owners
        self._cluster = cluster
        self._dependants = dependants
        self._sleep = sleep
        self.kinds = OwnerKinds()
        self._unreadable: set[OwnerRef] = set()
        """Owners on which our reader has failed, until it succeeds or the owner is deleted."""
        self._shown: defaultdict[Kind, Shown] = defaultdict(Shown)
        """By uid."""
        self._tasks: dict[Kind, tuple[asyncio.Task[None], ...]] = {}
        """The tasks that follow the kinds or look for them."""
        self._is_late = asyncio.Event()

    def ask_for(self, kind: Kind) -> None:
        """Follow the objects of a kind, if the kind is not followed yet and may own pods."""
        if self.kinds.queue(kind):
            self._begin()

    def _begin(self) -> None:
        for kind in self.kinds.begin():
            self._shown.pop(kind, None)
            for task in self._tasks.pop(kind, ()):
                task.cancel()

    def miss(self, kind: Kind) -> None:
        """Note that pods wait for an object of this kind."""
        self.ask_for(kind)
        if self.kinds.state(kind) is Follow.LISTED:
            self._is_late.set()

    def is_unreadable(self, ref: OwnerRef) -> bool:
        """Return whether an owner exists and our reader has failed on it."""
        return ref in self._unreadable

    # Calls of the audit ----------------------------------------------------------------------------------------------

    def shown(self, kind: Kind) -> Shown:
        """Return what the watch of a kind has shown, by uid; the result must not be kept across an await."""
        return self._shown[kind]

    def place_of(self, uid: str) -> tuple[str, str]:
        """Return the namespace and the name of an owner."""
        owner = self._owners.get(uid)
        return (owner.namespace, owner.ref.name) if owner is not None else ("", uid)

    async def mend(self, kind: Kind, raw: RawObject) -> None:
        """Apply an object as the watch should have shown it."""
        await self._take(kind, Changed(seen_owner(kind, raw)))
        self._dependants.note_progress()

    def remove(self, kind: Kind, uid: str) -> None:
        """Forget an object whose deletion the watch has not shown."""
        self._shown[kind].known.pop(uid, None)
        self._unreadable = {ref for ref in self._unreadable if ref.uid != uid}
        owner = self._owners.get(uid)
        if owner is not None:
            self._forget(owner)
        self._dependants.note_progress()

    async def run(self) -> None:
        """Follow all requested kinds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_for_late(), name="late owners")
            while True:
                kind = await self.kinds.begun.get()
                self._tasks[kind] = (
                    tasks.create_task(self._follow(kind), name=f"watch {kind!r}"),
                    tasks.create_task(self._tire_of(kind), name=f"first list of {kind!r}"),
                )

    async def _follow(self, kind: Kind) -> None:
        path = await self._path(kind)
        async for event in self._cluster.follow(path, partial(seen_owner, kind), depth=reads(kind)):
            await self._take(kind, event)
            self._dependants.note_progress()

    async def _path(self, kind: Kind) -> str:
        while True:
            try:
                path = await self._cluster.path_of(kind.api_version, kind.name)
            except ForbiddenError:
                path = None
            except KubeError as error:
                log.warning("kind of an owner not looked up", kind=repr(kind), error=str(error))
                await self._lose(kind, str(error))
                await self._sleep(LAG_S)
                continue
            if path is not None:
                self.kinds.note_path(kind, path)
                return path
            await self._deny(kind)
            self._dependants.note_progress()
            await self._sleep(LOOK_AGAIN_S)

    async def _lose(self, kind: Kind, cause: str) -> None:
        """Note a failure before the first list of a kind: after several failures, other pods stop waiting for it."""
        if self.kinds.lose(kind, cause):
            await self._go_on_without(kind)
        else:
            self._dependants.note_progress()

    async def _tire_of(self, kind: Kind) -> None:
        await self._sleep(OTHERS_GO_ON_AFTER_S)
        if self.kinds.tire_of(kind):
            await self._go_on_without(kind)

    async def _go_on_without(self, kind: Kind) -> None:
        await self._dependants.kind_answered(kind)
        self._dependants.note_progress()
        self._begin()

    async def _take(self, kind: Kind, event: WatchEvent[SeenOwner]) -> None:
        if kind not in self.kinds:
            return  # The kind was just forgotten.
        if self.kinds.state(kind) is Follow.DENIED and not isinstance(event, Lost | Listed):
            # A watch that was refused may continue without a new list.
            self._allow(kind)
        shown = self._shown[kind]
        match event:
            case Listed(seen):
                await self._replace(kind, seen)
            case Changed(seen) if seen.what is not None and not shown.is_old(seen.uid, seen.version):
                shown.known[seen.uid] = seen.version
                await self._change(kind, seen.what)
            case Deleted(seen) if seen.what is not None and not shown.is_old(seen.uid, seen.version):
                shown.end(seen.uid, seen.version)
                self._delete(kind, seen.what)
            case Lost(cause, denied):
                log.warning("watch lost", kind=repr(kind), cause=cause)
                await (self._deny(kind) if denied else self._lose(kind, cause))
            case _:
                pass

    async def _change(self, kind: Kind, seen: Owner | OwnerRef | None) -> None:
        if isinstance(seen, Owner):
            await self._put(seen)
        elif seen is not None:
            # The old record of the owner stays; pods that wait for the owner show the reason.
            self._unreadable.add(seen)
            await self._dependants.kind_answered(kind)

    def _delete(self, kind: Kind, seen: Owner | OwnerRef | None) -> None:
        if isinstance(seen, Owner):
            self._forget(seen)
        elif seen is not None:
            for owner in [one for one in self._owners.of(kind) if one.ref == seen]:
                self._forget(owner)

    async def _put(self, owner: Owner) -> None:
        self._unreadable.discard(owner.ref)
        if self._owners.put(owner):
            await self._dependants.owner_changed(owner)

    def _forget(self, owner: Owner) -> None:
        self._unreadable.discard(owner.ref)
        self._dependants.owner_gone(owner)

    async def _replace(self, kind: Kind, listed: list[SeenOwner]) -> None:
        self._allow(kind)
        shown, seen = self._shown[kind], [one.what for one in listed]
        before = shown.known if None in seen else {}
        shown.known = before | {one.uid: one.version for one in listed if one.what is not None}
        self._unreadable = {ref for ref in self._unreadable if ref.kind != kind}
        self._unreadable |= {one for one in seen if isinstance(one, OwnerRef)}
        there = {one.uid if isinstance(one, OwnerRef) else one.ref.uid for one in seen if one is not None}
        for owner in self._owners.of(kind):
            # An object without a readable identity may be any of the known objects.
            if owner.ref.uid not in there and None not in seen:
                self._dependants.owner_gone(owner)
        for one in seen:
            if isinstance(one, Owner):
                await self._put(one)
        await self._dependants.kind_answered(kind)

    def _allow(self, kind: Kind) -> None:
        self.kinds.allow(kind)
        self._owners.reopen(kind)

    async def _deny(self, kind: Kind) -> None:
        self.kinds.deny(kind)
        await self._dependants.kind_answered(kind)
        self._begin()

    async def _look_for_late(self) -> None:
        while True:
            await self._is_late.wait()
            self._is_late.clear()
            await self._sleep(LAG_S)
            # Hundreds of Jobs may miss the same JobSet.
            for ref, namespace in dict.fromkeys(self._dependants.late()):
                # Pods wait for an owner that a label names: without this owner, the size of their gang is unknown.
                if ref.uid and self.kinds.state(ref.kind) is Follow.LISTED:
                    await self._read(ref, namespace)

    async def _read(self, ref: OwnerRef, namespace: str) -> None:
        path = self.kinds.path_of(ref.kind)
        try:
            raw = await self._cluster.read_object(path, namespace, ref.name, depth=reads(ref.kind))
        except ForbiddenError:
            raw = None
        except KubeError as error:
            log.warning("owner not read", owner=f"{namespace}/{ref.name}", kind=repr(ref.kind), error=str(error))
            self._is_late.set()
            return
        found = None if raw is None else read_owner(ref.kind, raw)
        if found == ref:
            self._unreadable.add(ref)
            await self._dependants.owner_missed(ref, namespace)
        elif isinstance(found, Owner) and found.ref.uid == ref.uid:
            await self._put(found)
        else:
            self._owners.end_at(ref)
            await self._dependants.owner_missed(ref, namespace)
        self._dependants.note_progress()
