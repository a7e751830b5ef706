"""Follows the kinds of objects that own pods: each from the first time that somebody asks for one of its objects.

Kinds that are not installed, or that we may not read, are `denied` until that changes: a walk up the owners ends there.
What a watch should show and does not is read by itself, since nobody may wait for an owner that is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from functools import partial
from typing import Protocol

import structlog

from app.cluster import decode
from app.cluster.owners import Owners
from app.grouping import fields_read, reads
from app.model.owner import Kind, Owner, OwnerRef
from app.model.seam import Changed, Deleted, ForbiddenError, KubeError, Listed, Lost, Objects, RawObject, WatchEvent

log = structlog.get_logger()

LAG_S = 1.0
"""How long the watch of a kind may lag behind that of pods before an owner is read by itself."""

LOOK_AGAIN_S = 30.0
"""How often it is looked whether a kind is served that was not."""

MOST_KINDS = 200
"""Kinds that are followed or looked for; whoever invents new ones in ownerReferences must not cost us a task each."""

POD_KIND = Kind("", "v1", "Pod")
POD_PATH = "api/v1/pods"


NEVER_OWNERS = frozenset(
    {
        "scheduling.run.ai",
        "kai.scheduler",
        "leeboard.dev",
        "scheduling.k8s.io",
        "policy",
        "autoscaling.x-k8s.io",
    }
)
"""API groups that we read for other ends: nobody checks who puts labels there, and no workload is of them."""


class Follow(Enum):
    """How it stands with a kind."""

    BEGUN = "begun"
    LISTED = "listed"
    DENIED = "denied"


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


class OwnerWatch:
    """The kinds that are followed. Only the event loop calls in here."""

    def __init__(
        self,
        owners: Owners,
        cluster: Objects,
        dependants: Dependants,
        *,
        on_change: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_change` is called after whatever may let pods be decided."""
        self._owners = owners
        self._cluster = cluster
        self._dependants = dependants
        self._on_change = on_change
        self._sleep = sleep
        # Pods are followed already; as owners they are looked up in the cache.
        self._kinds: dict[Kind, Follow] = {POD_KIND: Follow.LISTED}
        self._paths: dict[Kind, str] = {POD_KIND: POD_PATH}
        self._new: list[Kind] = []
        self._is_new = asyncio.Event()
        self._is_late = asyncio.Event()

    def ask_for(self, kind: Kind) -> None:
        """Have the objects of a kind followed, if they are not and may own pods."""
        if kind not in self._kinds and len(self._kinds) < MOST_KINDS and not _never_owns(kind):
            self._kinds[kind] = Follow.BEGUN
            self._new.append(kind)
            self._is_new.set()

    def miss(self, kind: Kind) -> None:
        """Note that an object of this kind is waited for."""
        self.ask_for(kind)
        if self._kinds.get(kind) is Follow.LISTED:
            self._is_late.set()

    def is_denied(self, kind: Kind) -> bool:
        """Return whether objects of this kind are waited for in vain."""
        state = self._kinds.get(kind)
        return state is Follow.DENIED or (state is None and (_never_owns(kind) or len(self._kinds) >= MOST_KINDS))

    def kinds(self) -> list[Kind]:
        """Return the kinds that are followed."""
        return list(self._kinds)

    def unlisted(self) -> list[Kind]:
        """Return the kinds of which nothing is known yet."""
        return [kind for kind, state in self._kinds.items() if state is Follow.BEGUN]

    async def run(self) -> None:
        """Follow for ever whatever is asked for."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_for_late(), name="late owners")
            while True:
                await self._is_new.wait()
                self._is_new.clear()
                new, self._new = self._new, []
                for kind in new:
                    tasks.create_task(self._follow(kind), name=f"watch {kind!r}")

    async def _follow(self, kind: Kind) -> None:
        path = await self._path(kind)
        async for event in self._cluster.follow(path, partial(_kept, kind), depth=reads(kind)):
            await self._take(kind, event)
            self._on_change()

    async def _path(self, kind: Kind) -> str:
        while True:
            try:
                path = await self._cluster.path_of(kind.api_version, kind.name)
            except ForbiddenError:
                path = None
            except KubeError as error:
                log.warning("kind of an owner not looked up", kind=repr(kind), error=str(error))
                await self._sleep(LAG_S)
                continue
            if path is not None:
                self._paths[kind] = path
                return path
            await self._deny(kind)
            self._on_change()
            await self._sleep(LOOK_AGAIN_S)

    async def _take(self, kind: Kind, event: WatchEvent[Owner | None]) -> None:
        if self._kinds[kind] is Follow.DENIED and not isinstance(event, Lost | Listed):
            # A watch goes on where it was refused, often without a list.
            self._allow(kind)
        match event:
            case Listed(owners):
                await self._replace(kind, [one for one in owners if one is not None])
            case Changed(owner) if owner is not None:
                if self._owners.put(owner):
                    await self._dependants.owner_changed(owner)
            case Deleted(owner) if owner is not None:
                self._dependants.owner_gone(owner)
            case Lost(cause, denied):
                log.warning("watch lost", kind=repr(kind), cause=cause)
                if denied:
                    await self._deny(kind)
            case _:
                pass

    async def _replace(self, kind: Kind, owners: list[Owner]) -> None:
        self._allow(kind)
        there = {owner.ref.uid for owner in owners}
        for owner in self._owners.of(kind):
            if owner.ref.uid not in there:
                self._dependants.owner_gone(owner)
        for owner in owners:
            if self._owners.put(owner):
                await self._dependants.owner_changed(owner)
        await self._dependants.kind_answered(kind)

    def _allow(self, kind: Kind) -> None:
        self._kinds[kind] = Follow.LISTED
        self._owners.reopen(kind)

    async def _deny(self, kind: Kind) -> None:
        if self._kinds[kind] is not Follow.DENIED:
            self._kinds[kind] = Follow.DENIED
            log.info("owners of this kind are not read: their pods are grouped by what is below", kind=repr(kind))
        await self._dependants.kind_answered(kind)

    async def _look_for_late(self) -> None:
        while True:
            await self._is_late.wait()
            self._is_late.clear()
            await self._sleep(LAG_S)
            # Hundreds of Jobs may miss the same JobSet.
            for ref, namespace in dict.fromkeys(self._dependants.late()):
                # Whoever a label names is waited for: without it nobody knows how many pods start together.
                if ref.uid and self._kinds.get(ref.kind) is Follow.LISTED:
                    await self._read(ref, namespace)

    async def _read(self, ref: OwnerRef, namespace: str) -> None:
        path = self._paths[ref.kind]
        try:
            raw = await self._cluster.read_object(path, namespace, ref.name, depth=reads(ref.kind))
        except ForbiddenError:
            raw = None
        except KubeError as error:
            log.warning("owner not read", owner=f"{namespace}/{ref.name}", kind=repr(ref.kind), error=str(error))
            self._is_late.set()
            return
        owner = None if raw is None else _kept(ref.kind, raw)
        if owner is None or owner.ref.uid != ref.uid:
            self._owners.end_at(ref)
            await self._dependants.owner_missed(ref, namespace)
        elif self._owners.put(owner):
            await self._dependants.owner_changed(owner)
        self._on_change()


def _never_owns(kind: Kind) -> bool:
    return kind.group in NEVER_OWNERS or (not kind.group and kind != POD_KIND)


def _kept(kind: Kind, raw: RawObject) -> Owner | None:
    try:
        return decode.owner(raw, kind=kind, parts=fields_read(kind))
    except decode.DecodeError as error:
        log.warning("owner without a name", kind=repr(kind), error=str(error))
        return None
