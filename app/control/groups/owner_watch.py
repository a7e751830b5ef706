"""Follows the kinds of objects that own pods: each from the first time that somebody asks for one of its objects.

Kinds that are not installed, or that we may not read, are `denied` until that changes: a walk up the owners ends there.
Pods whose owners are of a kind that cannot be listed for another reason wait, and no others.
What a watch should show and does not is read by itself, since nobody may wait for an owner that is gone.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import structlog

from app.cluster import decode
from app.cluster.groups.owners import Owners
from app.control.groups.shown import Shown
from app.grouping import fields_read, reads
from app.model.owner import Kind, Owner, OwnerRef
from app.model.seam import Changed, Deleted, ForbiddenError, KubeError, Listed, Lost, Objects, RawObject, WatchEvent

log = structlog.get_logger()

LAG_S = 1.0
"""How long the watch of a kind may lag behind that of pods before an owner is read by itself."""

LOOK_AGAIN_S = 30.0
"""How often it is looked whether a kind is served that was not."""

LOSSES_UNTIL_OTHERS_GO_ON = 3
"""Failures in a row before the first list of a kind until only the pods wait that need it."""

OTHERS_GO_ON_AFTER_S = 5.0
"""How long the first list of a kind holds up all pods: the API server may accept the request and never answer, which
counts as a failure only after half a minute. Pods with owners of that kind wait on."""

MOST_KINDS = 200
"""Kinds that are followed or looked for; whoever invents new ones in ownerReferences must not cost us a task each.

Of more, the first that cannot be read is forgotten for each new one, and the others wait for their turn: invented kinds
must not keep others from being followed.
"""

NO_ANSWER = "the API server has not answered yet"

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


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of an object that a list or an event shows."""

    what: Owner | OwnerRef | None
    """Which one it is alone when our reader fails on it, and None when nothing tells that."""
    uid: str
    version: int


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
        # Pods are followed already; as owners they are looked up in the cache.
        self._kinds: dict[Kind, Follow] = {POD_KIND: Follow.LISTED}
        self._paths: dict[Kind, str] = {POD_KIND: POD_PATH}
        self._losses: Counter[Kind] = Counter()
        """Of kinds that have not been listed yet."""
        self._causes: dict[Kind, str] = {}
        """Why those were lost last."""
        self._late: set[Kind] = set()
        """Those among them whose first list takes too long, until it ends."""
        self._unreadable: set[OwnerRef] = set()
        """Owners on which our reader has failed, until it does not or they are gone."""
        self._shown: defaultdict[Kind, Shown] = defaultdict(Shown)
        """By uid."""
        self._new: list[Kind] = []
        self._queued: dict[Kind, None] = {}
        """Kinds for which there is no room yet."""
        self._tasks: dict[Kind, tuple[asyncio.Task[None], ...]] = {}
        """That follow the kinds or look for them."""
        self._is_new = asyncio.Event()
        self._is_late = asyncio.Event()

    def ask_for(self, kind: Kind) -> None:
        """Have the objects of a kind followed, if they are not and may own pods."""
        if kind not in self._kinds and not _never_owns(kind) and self._has_turns():
            self._queued.setdefault(kind)
            self._begin()

    def _has_turns(self) -> bool:
        """Whether there is room for another kind, now or when it is known which of these can be read."""
        return len(self._kinds) < MOST_KINDS or any(state is not Follow.LISTED for state in self._kinds.values())

    def _begin(self) -> None:
        """Follow queued kinds as long as there is room."""
        while self._queued and self._makes_room():
            kind = next(iter(self._queued))
            del self._queued[kind]
            self._kinds[kind] = Follow.BEGUN
            self._new.append(kind)
            self._is_new.set()

    def _makes_room(self) -> bool:
        """Forget a kind that cannot be read if there are too many; return whether there is room for another."""
        if len(self._kinds) < MOST_KINDS:
            return True
        forgotten = next((kind for kind in self._kinds if self._is_in_vain(kind)), None)
        if forgotten is None:
            return False
        del self._kinds[forgotten]
        for of_kinds in (self._paths, self._losses, self._causes):
            of_kinds.pop(forgotten, None)
        self._late.discard(forgotten)
        self._shown.pop(forgotten, None)
        for task in self._tasks.pop(forgotten, ()):
            task.cancel()
        return True

    def _is_in_vain(self, kind: Kind) -> bool:
        # A kind whose first list only takes long is not: it would have to be listed from the beginning.
        return self._kinds[kind] is Follow.DENIED or self._losses[kind] >= LOSSES_UNTIL_OTHERS_GO_ON

    def _holds_up_others(self, kind: Kind) -> bool:
        """Whether no pod may be decided before this kind is listed, if it is not."""
        return kind not in self._late and self._losses[kind] < LOSSES_UNTIL_OTHERS_GO_ON

    def miss(self, kind: Kind) -> None:
        """Note that an object of this kind is waited for."""
        self.ask_for(kind)
        if self._kinds.get(kind) is Follow.LISTED:
            self._is_late.set()

    def is_denied(self, kind: Kind) -> bool:
        """Return whether objects of this kind are waited for in vain."""
        state = self._kinds.get(kind)
        if state is None:
            return _never_owns(kind) or (len(self._kinds) >= MOST_KINDS and kind not in self._queued)
        return state is Follow.DENIED

    def kinds(self) -> list[Kind]:
        """Return the kinds that are followed."""
        return list(self._kinds)

    def unlisted(self) -> list[Kind]:
        """Return the kinds of which nothing is known yet, but may be soon."""
        begun = (kind for kind, state in self._kinds.items() if state is Follow.BEGUN)
        return [*filter(self._holds_up_others, begun), *self._queued]

    def unwatchable(self) -> Mapping[Kind, str]:
        """Return the kinds that cannot be listed for now, with why."""
        begun = (kind for kind, state in self._kinds.items() if state is Follow.BEGUN)
        return {kind: self._causes.get(kind, NO_ANSWER) for kind in begun if not self._holds_up_others(kind)}

    def is_unreadable(self, ref: OwnerRef) -> bool:
        """Return whether an owner is there and our reader has failed on it."""
        return ref in self._unreadable

    # What the audit asks and repairs ---------------------------------------------------------------------------------

    def listed(self) -> list[Kind]:
        """Return the kinds whose watch has begun here; that of pods has begun elsewhere."""
        return [kind for kind, state in self._kinds.items() if state is Follow.LISTED and kind != POD_KIND]

    def path_of(self, kind: Kind) -> str:
        """Return where a kind is served that is listed."""
        return self._paths[kind]

    def shown(self, kind: Kind) -> Shown:
        """Return what the watch of a kind has shown, by uid; not to be kept across an await."""
        return self._shown[kind]

    def place_of(self, uid: str) -> tuple[str, str]:
        """Return the namespace and the name of an owner."""
        owner = self._owners.get(uid)
        return (owner.namespace, owner.ref.name) if owner is not None else ("", uid)

    async def mend(self, kind: Kind, raw: RawObject) -> None:
        """Take over an object as the watch should have shown it."""
        await self._take(kind, Changed(_seen(kind, raw)))
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
                await self._is_new.wait()
                self._is_new.clear()
                new, self._new = self._new, []
                for kind in new:
                    self._tasks[kind] = (
                        tasks.create_task(self._follow(kind), name=f"watch {kind!r}"),
                        tasks.create_task(self._tire_of(kind), name=f"first list of {kind!r}"),
                    )

    async def _follow(self, kind: Kind) -> None:
        path = await self._path(kind)
        async for event in self._cluster.follow(path, partial(_seen, kind), depth=reads(kind)):
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
                self._paths[kind] = path
                return path
            await self._deny(kind)
            self._dependants.note_progress()
            await self._sleep(LOOK_AGAIN_S)

    async def _lose(self, kind: Kind, cause: str) -> None:
        """Note that a kind could not be listed, if it never was: when that repeats, the others go on without it."""
        if self._kinds[kind] is not Follow.BEGUN:
            return
        self._losses[kind] += 1
        self._causes[kind] = cause
        if self._losses[kind] == LOSSES_UNTIL_OTHERS_GO_ON:
            await self._go_on_without(kind)
        else:
            self._dependants.note_progress()

    async def _tire_of(self, kind: Kind) -> None:
        await self._sleep(OTHERS_GO_ON_AFTER_S)
        if self._kinds.get(kind) is Follow.BEGUN:
            self._late.add(kind)
            await self._go_on_without(kind)

    async def _go_on_without(self, kind: Kind) -> None:
        await self._dependants.kind_answered(kind)
        self._dependants.note_progress()
        self._begin()

    async def _take(self, kind: Kind, event: WatchEvent[_Seen]) -> None:
        if kind not in self._kinds:
            return  # Forgotten a moment ago.
        if self._kinds[kind] is Follow.DENIED and not isinstance(event, Lost | Listed):
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

    async def _replace(self, kind: Kind, listed: list[_Seen]) -> None:
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
        self._kinds[kind] = Follow.LISTED
        self._late.discard(kind)
        self._losses.pop(kind, None)
        self._causes.pop(kind, None)
        self._owners.reopen(kind)

    async def _deny(self, kind: Kind) -> None:
        if self._kinds[kind] is not Follow.DENIED:
            self._kinds[kind] = Follow.DENIED
            self._late.discard(kind)
            self._losses.pop(kind, None)
            self._causes.pop(kind, None)
            # Whoever invents kinds must not fill the log.
            if len(self._kinds) < MOST_KINDS:
                log.info("owners of this kind are not read: their pods are grouped by what is below", kind=repr(kind))
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
        found = None if raw is None else _kept(ref.kind, raw)
        if found == ref:
            self._unreadable.add(ref)
            await self._dependants.owner_missed(ref, namespace)
        elif isinstance(found, Owner) and found.ref.uid == ref.uid:
            await self._put(found)
        else:
            self._owners.end_at(ref)
            await self._dependants.owner_missed(ref, namespace)
        self._dependants.note_progress()


def _never_owns(kind: Kind) -> bool:
    return kind.group in NEVER_OWNERS or (not kind.group and kind != POD_KIND)


def _seen(kind: Kind, raw: RawObject) -> _Seen:
    return _Seen(_kept(kind, raw), decode.identity(raw)[1], decode.version(raw))


def _kept(kind: Kind, raw: RawObject) -> Owner | OwnerRef | None:
    """Read an owner; only which one it is when our reader fails on it, and None when nothing tells that."""
    try:
        return decode.owner(raw, kind=kind, parts=fields_read(kind))
    except decode.DecodeError as error:
        log.warning("owner without a name", kind=repr(kind), error=str(error))
        return None
    except Exception:
        log.exception("owner cannot be read", kind=repr(kind), owner=decode.full_name(raw))
        return OwnerRef(kind, *decode.identity(raw)) if all(decode.identity(raw)) else None
