"""Follows the kinds of objects that own pods: each from the first time that somebody asks for one of its objects.

What a watch should show and does not is read by itself, since nobody may wait for an owner that is gone.
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
"""How long the watch of a kind may lag behind that of pods before an owner is read by itself."""

LOOK_AGAIN_S = 30.0
"""How often it is looked whether a kind is served that was not."""

OTHERS_GO_ON_AFTER_S = 5.0
"""How long the first list of a kind holds up all pods: the API server may accept the request and never answer, which
counts as a failure only after half a minute. Pods with owners of that kind wait on."""


class Dependants(Protocol):
    """Whoever hangs on owners."""

    async def owner_changed(self, owner: Owner) -> None:
        """Group the pods anew that come from this object."""
        ...

    async def kind_answered(self, kind: Kind) -> None:
        """Group the pods anew that wait for objects of this kind: they are there now, or will never be."""
        ...

    async def owner_missed(self, ref: OwnerRef, namespace: str) -> None:
        """Group the pods anew that wait for this one object, which does not exist."""
        ...

    def owner_gone(self, owner: Owner) -> None:
        """Forget the object as soon as no pods come from it."""
        ...

    def late(self) -> Collection[tuple[OwnerRef, str]]:
        """Return the objects, with their namespaces, for which pods wait."""
        ...

    def note_progress(self) -> None:
        """Note that more is known of owners, or that fewer are waited for: pods may be decided now."""
        ...


class OwnerWatch:
    """The kinds that are followed. Only the event loop calls in here."""

    def __init__(
        self,
        owners: Owners,
        cluster: Objects,
        dependants: Dependants,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with no kind followed but that of pods, which are followed elsewhere."""
        self._owners = owners
        self._cluster = cluster
        self._dependants = dependants
        self._sleep = sleep
        self.kinds = OwnerKinds()
        self._unreadable: set[OwnerRef] = set()
        """Owners on which our reader has failed, until it does not or they are gone."""
        self._shown: defaultdict[Kind, Shown] = defaultdict(Shown)
        """By uid."""
        self._tasks: dict[Kind, tuple[asyncio.Task[None], ...]] = {}
        """That follow the kinds or look for them."""
        self._is_late = asyncio.Event()

    def ask_for(self, kind: Kind) -> None:
        """Have the objects of a kind followed, if they are not and may own pods."""
        if self.kinds.queue(kind):
            self._begin()

    def _begin(self) -> None:
        for kind in self.kinds.begin():
            self._shown.pop(kind, None)
            for task in self._tasks.pop(kind, ()):
                task.cancel()

    def miss(self, kind: Kind) -> None:
        """Note that an object of this kind is waited for."""
        self.ask_for(kind)
        if self.kinds.state(kind) is Follow.LISTED:
            self._is_late.set()

    def is_unreadable(self, ref: OwnerRef) -> bool:
        """Return whether an owner is there and our reader has failed on it."""
        return ref in self._unreadable

    # What the audit asks and repairs ---------------------------------------------------------------------------------

    def shown(self, kind: Kind) -> Shown:
        """Return what the watch of a kind has shown, by uid; not to be kept across an await."""
        return self._shown[kind]

    def place_of(self, uid: str) -> tuple[str, str]:
        """Return the namespace and the name of an owner."""
        owner = self._owners.get(uid)
        return (owner.namespace, owner.ref.name) if owner is not None else ("", uid)

    async def mend(self, kind: Kind, raw: RawObject) -> None:
        """Take over an object as the watch should have shown it."""
        await self._take(kind, Changed(seen_owner(kind, raw)))
        self._dependants.note_progress()

    def remove(self, kind: Kind, uid: str) -> None:
        """Forget an object of whose end the watch has shown nothing."""
        self._shown[kind].known.pop(uid, None)
        self._unreadable = {ref for ref in self._unreadable if ref.uid != uid}
        owner = self._owners.get(uid)
        if owner is not None:
            self._forget(owner)
        self._dependants.note_progress()

    async def run(self) -> None:
        """Follow for ever whatever is asked for."""
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
        """Note that a kind could not be listed, if it never was: when that repeats, the others go on without it."""
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
            return  # Forgotten a moment ago.
        if self.kinds.state(kind) is Follow.DENIED and not isinstance(event, Lost | Listed):
            # A watch goes on where it was refused, often without a list.
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
            # What was known of it stays; who waits for it learns why.
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
            # An object that cannot even be named may be any of them.
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
                # Whoever a label names is waited for: without it nobody knows how many pods start together.
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
