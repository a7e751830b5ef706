"""Keeps which pods have which owners, so that a change of an owner reaches the pods below it."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from app.cluster.groups.owners import Owners, Walk
from app.model.names import GroupKey, PodUid
from app.model.owner import Kind, Owner, OwnerRef
from app.model.podgroup import GroupSpec

Link = tuple[str, str, str, str]
"""API group, kind, namespace, and uid, or name where there is no uid."""


def link_of(ref: OwnerRef, namespace: str) -> Link:
    """Return the identity of an object for the objects below it, whatever version of its kind they name."""
    return ref.kind.group, ref.kind.name, namespace, ref.uid or ref.name


@dataclass(slots=True)
class OwnedPods:
    """The pods that have the same owner. Only `Lineage` changes them."""

    first: OwnerRef
    namespace: str
    pods: dict[PodUid, None] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    """All owners found on the way up, and the missing one; once each. Tens of thousands have one link: so it is no set.
    """
    missing: OwnerRef | None = None
    link: Link = field(init=False)
    """Of their first owner."""

    def __post_init__(self) -> None:
        self.link = link_of(self.first, self.namespace)


class Lineage:
    """Pods by their owners. An owner that is gone is kept in `Owners` until its last pod is gone."""

    def __init__(self, owners: Owners) -> None:
        """Start empty."""
        self._owners = owners
        self._lines: dict[Link, OwnedPods] = {}
        self._below: dict[Link, dict[Link, None]] = {}
        """The lines that have found, or miss, an object on their way up."""
        self._gone: set[Link] = set()
        self._late: dict[Link, OwnedPods] = {}
        """The lines that miss an object: few, so that they can be read every second."""

    def add(self, first: OwnerRef, namespace: str, pod: PodUid) -> OwnedPods:
        """Add a pod to the pods of its owner; return them."""
        line = self._lines.get(link_of(first, namespace))
        if line is None:
            line = OwnedPods(first, namespace)
            self._lines[line.link] = line
        line.pods[pod] = None
        return line

    def remove(self, first: OwnerRef, namespace: str, pod: PodUid) -> None:
        """Forget a pod."""
        line = self._lines.get(link_of(first, namespace))
        if line is None:
            return
        line.pods.pop(pod, None)
        if not line.pods:
            del self._lines[line.link]
            self._late.pop(line.link, None)
            self._link(line, ())
            self._owners.forget_end(first)

    def note(self, line: OwnedPods, walk: Walk) -> None:
        """Note the owners that the pods of a line have, and the owner that is missing."""
        links = [link_of(one.ref, one.namespace) for one in walk.owners]
        # A missing object may be created later, and an object named by a label may be created again under its name.
        named = None if line.first.uid else line.first
        links += [link_of(ref, line.namespace) for ref in (walk.missing, walk.ended, named) if ref is not None]
        line.missing = walk.missing
        if walk.missing is None:
            self._late.pop(line.link, None)
        else:
            self._late[line.link] = line
        self._link(line, links)

    def note_asked(self, line: OwnedPods, ref: OwnerRef) -> None:
        """Note an object outside the chain of owners that was read: its changes affect the pods of the line too.

        So do changes of an object that is created later under its name.
        """
        asked = (link_of(one, line.namespace) for one in (ref, replace(ref, uid="")))
        self._link(line, (*line.links, *asked))

    def retire(self, owner: Owner) -> None:
        """Forget an owner that is gone as soon as no pods have it."""
        link = link_of(owner.ref, owner.namespace)
        if link in self._below:
            self._gone.add(link)
        else:
            self._owners.drop(owner.ref.uid)

    def is_gone(self, ref: OwnerRef, namespace: str) -> bool:
        """Return whether an owner is gone before its pods."""
        return link_of(ref, namespace) in self._gone

    def lines_of(self, owner: Owner) -> Collection[OwnedPods]:
        """Return the lines that lead to an object, or that have read it by its name."""
        refs = owner.ref, replace(owner.ref, uid="")
        return list({line.link: line for ref in refs for line in self.lines_to(ref, owner.namespace)}.values())

    def lines_to(self, ref: OwnerRef, namespace: str) -> Collection[OwnedPods]:
        """Return the lines that have found an object on their way up, or miss it there."""
        return [self._lines[link] for link in self._below.get(link_of(ref, namespace), ())]

    def waiting_for(self, kind: Kind) -> Collection[OwnedPods]:
        """Return the lines that miss an object of this kind."""
        return [line for line in self._late.values() if line.missing is not None and line.missing.kind == kind]

    def missing(self) -> Collection[tuple[OwnerRef, str]]:
        """Return the missing objects, with their namespaces."""
        return [(line.missing, line.namespace) for line in self._late.values() if line.missing is not None]

    def pods_below(self, owner: Owner) -> Iterator[PodUid]:
        """Return the pods below an object."""
        for link in tuple(self._below.get(link_of(owner.ref, owner.namespace), ())):
            yield from self._lines[link].pods

    def _link(self, line: OwnedPods, links: Iterable[Link]) -> None:
        # The line's own link is kept once, not as one more copy for each place that refers to it.
        now = dict.fromkeys(line.link if link == line.link else link for link in links)
        before = dict.fromkeys(line.links)
        for link in before:
            if link not in now:
                self._unlink(link, line.link)
        for link in now:
            if link not in before:
                self._below.setdefault(link, {})[line.link] = None
        line.links = tuple(now)

    def _unlink(self, link: Link, line: Link) -> None:
        self._below[link].pop(line, None)
        if self._below[link]:
            return
        del self._below[link]
        if link in self._gone:
            self._gone.discard(link)
            self._owners.drop(link[3])


class OwnedObjects:
    """PodGroup objects by their owners."""

    def __init__(self) -> None:
        """Start without objects."""
        self._links: dict[GroupKey, Link] = {}
        self._keys: dict[Link, dict[GroupKey, None]] = {}

    def put(self, spec: GroupSpec) -> bool:
        """Store the owner of an object; return whether it has changed."""
        link = link_of(spec.owner, spec.key.namespace) if spec.owner is not None else None
        if self._links.get(spec.key) == link:
            return False
        self.drop(spec.key)
        if link is not None:
            self._links[spec.key] = link
            self._keys.setdefault(link, {})[spec.key] = None
        return True

    def drop(self, key: GroupKey) -> None:
        """Forget an object."""
        link = self._links.pop(key, None)
        if link is None:
            return
        self._keys[link].pop(key, None)
        if not self._keys[link]:
            del self._keys[link]

    def of(self, owner: OwnerRef, namespace: str) -> Collection[GroupKey]:
        """Return the objects of an owner."""
        return tuple(self._keys.get(link_of(owner, namespace), ()))


def pods_of(lines: Iterable[OwnedPods]) -> list[PodUid]:
    """Return the present pods of several lines."""
    return [uid for line in lines for uid in line.pods]
