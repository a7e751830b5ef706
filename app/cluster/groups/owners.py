"""Keeps the objects that own pods, and walks from a pod up to its last owner, or to the first unknown owner."""

from collections.abc import Callable
from dataclasses import dataclass

from app.model.owner import Kind, Owner, OwnerRef

LONGEST_WALK = 16
"""The maximum number of owners of a pod that are followed: real chains have up to five, and a circle must end."""

Name = tuple[str, str, str, str]
"""API group, kind, namespace and name: two watches of one kind in different versions show the same objects."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The owners of a pod as far as they are known, from the nearest up."""

    owners: tuple[Owner, ...] = ()
    missing: OwnerRef | None = None
    """The unknown owner that the last object names; None when the walk is complete."""
    ended: OwnerRef | None = None
    """The owner that the last object names and that is gone or may not be read; None when there is no such owner."""


class Owners:
    """Owners by uid and by name. Only `control.grouping` changes them."""

    def __init__(self, pod: Callable[[str], Owner | None]) -> None:
        """Start empty; `pod` returns the pod of this uid as an owner: in a LeaderWorkerSet, pods own other pods."""
        self._pod = pod
        self._by_uid: dict[str, Owner] = {}
        self._by_name: dict[Name, Owner] = {}
        self._ended: set[OwnerRef | None] = set()
        """Owners that are gone or may not be read: a walk ends before them."""

    def put(self, owner: Owner) -> bool:
        """Store an owner; return whether anything has changed."""
        self._ended.discard(owner.ref)
        if self._by_uid.get(owner.ref.uid) == owner:
            return False
        self._by_uid[owner.ref.uid] = owner
        self._by_name[_name(owner.ref.kind, owner.namespace, owner.ref.name)] = owner
        return True

    def drop(self, uid: str) -> None:
        """Forget a deleted owner."""
        owner = self._by_uid.pop(uid, None)
        if owner is None:
            return
        name = _name(owner.ref.kind, owner.namespace, owner.ref.name)
        if self._by_name.get(name) is owner:
            del self._by_name[name]
        self.forget_end(owner.owner)

    def get(self, uid: str) -> Owner | None:
        """Return an owner by its uid, whatever its kind; None when it is not known."""
        return self._by_uid.get(uid)

    def end_at(self, ref: OwnerRef) -> None:
        """Make walks end before an object that is gone, or that Leeboard may not read (KAI's rule)."""
        self._ended.add(ref)

    def of(self, kind: Kind) -> list[Owner]:
        """Return the objects of a kind."""
        return [owner for owner in self._by_uid.values() if owner.ref.kind == kind]

    def forget_end(self, ref: OwnerRef | None) -> None:
        """Forget that walks end before an object to which no walk can lead any more."""
        self._ended.discard(ref)

    def reopen(self, kind: Kind) -> None:
        """Look for objects of a kind again: the kind can be read now."""
        self._ended = {ref for ref in self._ended if ref is not None and ref.kind != kind}

    def find(self, kind: Kind, namespace: str, name: str) -> Owner | None:
        """Return an object by its name, whatever version of its kind was requested."""
        return self._by_name.get(_name(kind, namespace, name))

    def walk(self, first: OwnerRef | None, namespace: str) -> Walk:
        """Return the owners from the first one up."""
        owners: list[Owner] = []
        ref = first
        while ref is not None and len(owners) < LONGEST_WALK:
            if ref in self._ended:
                return Walk(tuple(owners), ended=ref)
            owner = self._look_up(ref, namespace)
            if owner is None:
                return Walk(tuple(owners), ref)
            if owner.namespace != namespace:
                # An owner reference must not give access to the labels of an object in another namespace.
                break
            owners.append(owner)
            ref = owner.owner
        return Walk(tuple(owners))

    def _look_up(self, ref: OwnerRef, namespace: str) -> Owner | None:
        if not ref.uid:
            return self.find(ref.kind, namespace, ref.name)
        if not ref.kind.group and ref.kind.name == "Pod":
            return self._pod(ref.uid)
        return self._by_uid.get(ref.uid)


def _name(kind: Kind, namespace: str, name: str) -> Name:
    return kind.group, kind.name, namespace, name
