"""Counts what changes in the cache, and keeps what follows from it for those who act on it."""

from dataclasses import dataclass, field

from app.model.names import GroupKey, NodeName, PodUid


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed in the cache that is followed up once."""

    bereft: set[PodUid] = field(default_factory=set)
    """Pods whose promise ended by what the watch showed: a nomination may outlive it."""
    relieved: set[NodeName] = field(default_factory=set)
    """Nodes that have changed, or on which less is held or will be soon."""
    taken_by_others: set[NodeName] = field(default_factory=set)
    """Nodes to which other programs have bound managed pods without a promise."""
    gone: set[GroupKey] = field(default_factory=set)
    """Groups that have stopped waiting; some may wait again."""


class ChangeLog:
    """One for the whole cache: each part of the cache that changes anything notes it here."""

    def __init__(self) -> None:
        """Start with nothing changed."""
        self.version = 0
        """Grows with every change."""
        self.relief = 0
        """Grows with every change that may let a pod run that could not run before."""
        self.refusals = 0
        """Grows whenever a pod may have been refused that waits now."""
        self._changes = Changes()

    def note(self) -> None:
        """Note a change that lets no waiting pod run."""
        self.version += 1

    def relieve(self, node: NodeName | None = None) -> None:
        """Note a change that may let waiting pods run, on this node if it is about one node alone."""
        self.relief += 1
        self.version += 1
        if node is not None:
            self._changes.relieved.add(node)

    def change_node(self, node: NodeName) -> None:
        """Note that a node has changed in a way that lets no waiting pod run."""
        self.version += 1
        self._changes.relieved.add(node)

    def lose_promise(self, pod: PodUid) -> None:
        """Note that the promise to a pod has ended by what the watch showed."""
        self._changes.bereft.add(pod)

    def take_over_place(self, node: NodeName) -> None:
        """Note that another program has bound a managed pod to a node that was not promised to the pod."""
        self._changes.taken_by_others.add(node)

    def stop_waiting(self, key: GroupKey) -> None:
        """Note that a group waits no more."""
        self._changes.gone.add(key)

    def note_refusals(self) -> None:
        """Note that a plan that has begun refused pods, or may do so, by what is held now."""
        self.refusals += 1

    def drain(self) -> Changes:
        """Return what has changed since last asked, for one reader."""
        changes, self._changes = self._changes, Changes()
        return changes
